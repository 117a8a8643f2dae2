"""A worker's stages without server and Ray; the coordinator's answers come from memory."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from moerge.bodies.merge import FolderFiles, seed_body
from moerge.client.client import Client
from moerge.client.http import Pages
from moerge.errors import CoordinatorError
from moerge.files import file_sha256
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, expert_digest
from moerge.progress import NoProgress, Progress
from moerge.statistics.passes import Pass
from moerge.statistics.windows import ComputeWindows, Done, Window, computed
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.demands import Demands
from moerge_proto.experts import Expert, ExpertState, NewExpert
from moerge_proto.messages import FileEntry, Page
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.public_log import LogEntry, LogHead, Published, body_content, extended, version_content
from moerge_proto.statistics_file import Kind, RouterManifest, StatisticsFile
from moerge_proto.uploads import Stored
from moerge_proto.version_files import HEAD_FILE
from moerge_workers.computing.finishing import Finishing
from moerge_workers.contributing import parts, router
from moerge_workers.contributing.documents import Documents
from moerge_workers.contributing.exchange import Beside, Exchange
from moerge_workers.contributing.seed import CheckedBody, checked_body
from moerge_workers.contributing.stages import run_stages
from moerge_workers.contributing.statistics import Statistics
from moerge_workers.data.documents import Data
from moerge_workers.outgoing.history import History
from moerge_workers.outgoing.outbox import Outbox
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines
from support.models import SEED, expert, seed_model
from support.outbox import COORDINATOR

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = {"min_documents": 5, "min_tokens": 1}


def in_process(settings: Settings, events: Events) -> ComputeWindows:
    """Sums in this process, without Ray, which is tested elsewhere."""

    def compute(work: Pass, given: Iterable[Window]) -> Iterator[Done]:
        events.ready(0, "cpu")
        for done in computed(work, given, settings.statistics.batch_tokens, 1):
            if done.layer + 1 == done.window.layers:
                events.finished(0, done.tokens)
            yield done

    return compute


class Listed(Pages[T]):
    """A list of the coordinator in memory."""

    def __init__(self, items: list[T]) -> None:
        self._items = items

    def page(self, after: int | str | None = None) -> Page[T]:
        return Page(items=self._items)


class MemoryClient(Client):
    """A client whose coordinator is this object, from which nobody downloads.

    Attributes:
        current: the current body.
        rows: digest -> contribution.
        known: digest -> expert.
        uploaded: the uploaded files, in order.
        entries: the public log.
        refusal: why experts are refused before their weights come; None: they aren't.
    """

    def __init__(self, current: Body | None) -> None:
        self.current = current
        self.rows: dict[str, Contribution] = {}
        self.known: dict[str, Expert] = {}
        self.uploaded: list[Path] = []
        self.entries: list[LogEntry] = []
        self.refusal: Problem | None = None

    def upload(self, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
        self.uploaded.append(path)
        return Stored(sha256=file_sha256(path), size=path.stat().st_size)

    def download(self, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
        raise AssertionError(f"{path} is downloaded")

    def current_body(self) -> Body | None:
        return self.current

    def demands(self, expert: str, seen: Demands | None = None) -> Demands:
        time.sleep(0.01 if seen else 0)
        self._demanded = self.current_body()
        return Demands.of(None if self._demanded is None else self._demanded.digest, self.demanded_version)

    _demanded: Body | None = None
    demanded_version: int | None = None

    def body(self, digest: str) -> Body:
        assert self._demanded is not None
        return self._demanded

    def log_head(self) -> LogHead:
        for shown in (self.current, self._demanded):
            if shown is not None:
                self.publish("body", shown.digest, body_content(shown))
        if self.demanded_version is not None:
            files = self.version(self.demanded_version).files
            heads = [file.sha256 for file in files if file.name == HEAD_FILE]
            self.publish("head", str(self.demanded_version), heads[0])
            self.publish("version", str(self.demanded_version), version_content(files))
        return extended(LogHead(), self.entries)

    def publish(self, kind: Published, name: str, digest: str) -> None:
        """Adds an entry to the public log, once."""
        if (kind, name) not in {(entry.kind, entry.name) for entry in self.entries}:
            head = extended(LogHead(), self.entries)
            entry = LogEntry(number=head.size + 1, kind=kind, name=name, digest=digest, created=NOW, previous=head.hash)
            self.entries.append(entry)

    def log(self, after: int = 0) -> Pages[LogEntry]:
        return Listed(self.entries[after:])

    def expert(self, digest: str) -> Expert:
        if digest not in self.known:
            raise CoordinatorError(Problem.of(ProblemType.NOT_FOUND, "no such expert"))
        return self.known[digest]

    def experts(self) -> Pages[Expert]:
        return Listed(list(self.known.values()))

    def check_expert(self, expert: NewExpert) -> None:
        if self.refusal is not None:
            raise CoordinatorError(self.refusal)

    def register_expert(self, new: NewExpert) -> Expert:
        digest = expert_digest(new.files)
        self.known[digest] = Expert(
            **new.model_dump(include={"domain", "license", "redistribute", "adapter", "signature"}),
            parts=new.parts,
            number=1,
            digest=digest,
            owner="owner",
            family="llama",
            state=ExpertState.READY,
            problem=None,
            files=[],
            created=NOW,
            withdrawn=None,
            purged=None,
        )
        return self.known[digest]

    def contributions(self, kind: Kind = "router", *, newest: bool = False) -> Pages[Contribution]:
        return Listed([row for row in self.rows.values() if row.kind == kind])

    def contribute(self, new: NewContribution) -> Contribution:
        for old in new.supersedes:
            self.rows[old] = self.rows[old].model_copy(update={"active": False})
        with StatisticsFile(self.uploaded[-1]) as file:
            manifest = file.manifest
        router = manifest if isinstance(manifest, RouterManifest) else None
        self.rows[new.sha256] = Contribution(
            **manifest.model_dump(include={"kind", "owner", "domain", "expert", "tokens", "documents"}),
            number=1,
            digest=new.sha256,
            split=router.split if router else None,
            body=router.body if router else None,
            shards=len(router.shards) if router else None,
            effective_rank=None,
            size=1,
            active=True,
            warnings=[],
            software=new.software,
            signature=None,
            fingerprint=None,
            created=NOW,
            withdrawn=None,
        )
        return self.rows[new.sha256]

    def withdraw_contribution(self, digest: str) -> Contribution:
        self.rows[digest] = self.rows[digest].model_copy(update={"active": False, "withdrawn": NOW})
        return self.rows[digest]


@dataclass(frozen=True)
class Run:
    """One run of a worker, whose stages are called one by one or all."""

    exchange: Exchange
    statistics: Statistics
    expert: DenseExpert

    @property
    def documents(self) -> Documents:
        return self.statistics.documents

    @property
    def history(self) -> History:
        return self.exchange.outbox.history

    def of(self, expert: DenseExpert) -> "Run":
        """The same run of another expert."""
        return replace(self, exchange=replace(self.exchange, expert=expert.digest), expert=expert)

    def stages(self) -> None:
        run_stages(self.exchange, self.statistics, self.expert)

    def checked_body(self, body: Body) -> CheckedBody:
        return checked_body(self.documents.settings, self.expert, self.documents.events, body)

    def register(self, body: Body) -> DenseExpert:
        """The stage of the parts under a body, after its comparison."""
        return parts.run(self.exchange, self.documents, self.expert, self.checked_body(body))

    def contribute(self, body: Body) -> list[Contribution]:
        """The router contributions under a body, after its comparison; as if the whole expert were its parts."""
        return router.run(self.exchange, self.statistics, self.expert, self.expert, self.checked_body(body))


def seeded(folder: Path) -> Body:
    """Makes an expert and a seed model in a folder; the body of a coordinator that registered the seed."""
    expert(folder / "expert", 1)
    return registered(seed_model(folder / "seed"), folder / "registered")


def another(folder: Path, number: int = 1) -> Body:
    """Makes another seed model in a folder, `seed-1`, …; the body of a coordinator that registered it."""
    return registered(expert(folder / f"seed-{number}", SEED + number), folder / f"registered-{number}")


def registered(seed: Path, folder: Path) -> Body:
    """The body of a coordinator that registered a seed, with its files in a folder."""
    folder.mkdir(exist_ok=True)
    made = seed_body(DenseFiles(seed), FolderFiles(folder), NoProgress(), "org/seed")
    facts = {name: value for name, value in made if name in Body.model_fields}
    return Body(**facts, current=True, created=NOW)


def _now() -> datetime:
    return NOW


def _finishing(settings: Settings) -> tuple[Finishing, Beside]:
    """What the settings ask for; tests of plain sums run without the rooms of noise and masks."""
    if settings.privacy is None and settings.masks is None:
        return Finishing(), lambda contribution, digest: None
    from moerge_workers.finishing import beside_of, finishing_of

    return finishing_of(settings), beside_of(settings)


@contextmanager
def run_of(
    folder: Path,
    home: Path,
    client: MemoryClient,
    clock: Callable[[], datetime] = _now,
    owner: str = "owner",
    **given: Any,
) -> Iterator[Run]:
    """A run that contributes the expert of a folder, which has its seed too, and the home's `texts.jsonl`.

    By default without fitting.
    """
    settings = Settings.model_validate(
        {
            "coordinator": COORDINATOR,
            "token": "x",
            "domain": "law",
            "expert": folder / "expert",
            "seed": folder / "seed",
            "data": [str(home / "texts.jsonl")],
            "home": home,
            "once": True,
            "fit": False,
            "policy": POLICY,
            **given,
        }
    )
    dense = DenseExpert(settings.domain, settings.expert, owner)
    events, history = Events(Status(home, settings.domain, COORDINATOR), Lines()), History(home, clock)
    finishing, beside = _finishing(settings)
    try:
        documents = Documents(settings, Data(settings, dense, events.say), events)
        exchange = Exchange(client, Outbox(settings, history, events), dense.digest, beside)
        yield Run(exchange, Statistics(documents, in_process(settings, events), finishing), dense)
    finally:
        history.close()


def contributed(folder: Path, home: Path, client: MemoryClient, **given: Any) -> list[Contribution]:
    """The router contributions of one run under the client's current body."""
    assert client.current is not None
    with run_of(folder, home, client, **given) as run:
        return run.contribute(client.current)
