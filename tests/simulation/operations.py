"""Operations drawn by Hypothesis, applied to a world and to the model."""

import math
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from operator import add
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

from moerge.bodies.merge import DENSE_BODY_FILE, FolderFiles, MergedBody, seed_body
from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.client.pull import pull
from moerge.client.signatures import verify_folder
from moerge.errors import CoordinatorError
from moerge.fits.fitting import fit
from moerge.models.batches import batches
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, expert_files
from moerge.models.tokens import all_counted
from moerge.progress import LogProgress
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import head_manifest
from moerge.statistics.passes import HeadPass
from moerge_proto.bodies import HeadMethod
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.experts import ExpertState, NewExpert, Parts
from moerge_proto.grants import ALL
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import HeadManifest, RouterManifest, StatisticsSettings
from moerge_proto.uploads import Upload
from moerge_proto.version_names import part_digest, version_name
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE
from moerge_proto.versions import NewVersion
from simulation.faults import Fault
from simulation.model import FOR_EVER, READERS, REVOKED, SHARDS, Body, Model, Place, Sent
from simulation.world import World, register_seed
from support.models import SEED, expert, on_body
from support.passes import sums_of
from support.statistics import LAYERS, honest_shards, written
from support.uploads import announced
from support.versions import ROWS

DOMAINS = ("law", "art", "code")
HIDDEN = 16
SMALL: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": 16, "num_hidden_layers": LAYERS}
Kind = Literal[
    "join", "contribute", "supersede", "stale", "together", "withdraw", "withdraw_sent", "purge", "solve",
    "promote", "roll_back", "retire", "pull", "abandon", "jump", "restart", "seed", "head", "grant", "revoke", "part",
]  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """An operation; `which` and `other` choose its objects."""

    kind: Kind
    which: int = 0
    other: int = 0
    fault: Fault | None = None


def faults(kinds: tuple[str, ...], most: int) -> st.SearchStrategy[Fault | None]:
    return st.none() | st.builds(Fault, kind=st.sampled_from(kinds), at=st.integers(1, most))


def schedules(fault: st.SearchStrategy[Fault | None]) -> st.SearchStrategy[list[Operation]]:
    """Up to thirty operations, usually with those that a version needs at the start."""
    often: tuple[Kind, ...] = (
        "contribute", "contribute", "solve", "solve", "promote", "withdraw", "join", "seed", "head", "grant", "part",
        "part",
    )  # fmt: skip
    every: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
    small = st.integers(0, 5)
    anything = st.builds(Operation, kind=st.sampled_from(often + every), which=small, other=small, fault=fault)

    def by_both(kind: Kind) -> list[st.SearchStrategy[Operation]]:
        return [st.builds(Operation, kind=st.just(kind), which=st.just(n), fault=fault) for n in range(2)]

    seed, solve = (st.builds(Operation, kind=st.just(kind), fault=fault) for kind in ("seed", "solve"))
    plain = st.tuples(*by_both("join"), *by_both("contribute"), *by_both("head"), solve).map(list)
    again = st.tuples(*by_both("join"), seed, *by_both("join"), *by_both("contribute"), solve).map(list)
    apart = [st.builds(Operation, kind=st.just(kind), other=small, fault=fault) for kind in ("grant", "part", "part")]
    opening = plain | again | st.tuples(plain, *apart).map(lambda drawn: [*drawn[0], *drawn[1:]])
    rest = st.sampled_from([1, 4, 10]).flatmap(lambda least: st.lists(anything, min_size=least, max_size=24))
    return st.tuples(st.just([]) | opening, rest).map(lambda two: two[0] + two[1])


@cache
def experts() -> dict[str, Path]:
    folder = Path(tempfile.mkdtemp(prefix="moerge-simulation-"))
    return {domain: expert(folder / domain, seed, **SMALL) for seed, domain in enumerate(DOMAINS, start=1)}


@cache
def seed_folder(body: Body = 0) -> Path:
    return expert(Path(tempfile.mkdtemp(prefix="moerge-simulation-")), SEED + body, **SMALL)


@cache
def seed_body_file(body: Body) -> tuple[Path, MergedBody]:
    """A seed's body, made by the library alone, and its facts."""
    place = FolderFiles(Path(tempfile.mkdtemp(prefix="moerge-simulation-")))
    return place.folder / DENSE_BODY_FILE, seed_body(DenseFiles(seed_folder(body)), place, SILENT)


@cache
def parts(place: Place) -> tuple[Path, Parts]:
    """The folder of a domain's parts, with MLPs fitted to the body, and their origin."""
    body, domain = place
    own = experts()[domain]
    rows = list(batches(all_counted(ROWS), 512))
    folder = fit(*on_body(own, seed_body_file(body)[0]), rows, own.with_name(f"{domain}-parts-{body}"))
    origin = Parts(expert=DenseExpert(domain, own).digest, body=seed_body_file(body)[1].digest, fitted=True)
    return folder, origin


@cache
def head_sums(domain: str) -> tuple[HeadManifest, ShardSums]:
    """Those of a domain's head contribution, and its manifest but for the expert's digest."""
    own = DenseExpert(domain, experts()[domain])
    manifest = head_manifest(f"{domain}-owner", own, own.digest, StatisticsSettings(), domain)
    content = sums_of(HeadPass(own, manifest.exponents), 4 * ROWS)
    counts = {"tokens": content.tokens, "documents": content.documents, "shards": [sha256_hex(domain.encode())]}
    return manifest.model_copy(update=counts), content


@cache
def sums(domain: str, variant: int) -> Any:
    """Sums over the variant's shards: a shard is the same in all of its variants."""
    shards = honest_shards(HIDDEN, 1024, 4, HIDDEN, DOMAINS.index(domain))
    return reduce(add, [shards[n] for n in sorted(SHARDS[variant])])


@dataclass
class Run:
    """One schedule on one world, compared with the model."""

    world: World
    folder: Path
    model: Model = field(default_factory=Model)
    digests: dict[Place, str] = field(default_factory=dict)
    sent_digests: dict[Sent, str] = field(default_factory=dict)
    head_digests: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    abandoned: int = 0
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    pulled: dict[str, dict[str, str]] = field(default_factory=dict)

    def do(self, operation: Operation) -> None:
        """Applies one operation, and compares its result with the model's."""
        getattr(self, operation.kind)(operation)

    # --- how an operation is tried

    def _as(self, who: str | None) -> Client:
        return self.world.client(self.tokens[who] if who else self.world.operator_token)

    def _attempt(self, operation: Operation, who: str | None, call: Callable[[Client], str]) -> str:
        """The call's answer, or the problem that refuses it. After a full disk it is repeated, as by a user."""

        def attempt() -> str:
            with self._as(who) as client:
                try:
                    return call(client)
                except CoordinatorError as error:
                    return error.type.removeprefix("urn:moerge:problem:")

        answer: str = self.world.apply(operation.fault, attempt)
        if answer == "storage-full":
            assert operation.fault is not None
            assert operation.fault.kind == "full", f"{operation}: its disk is not full"
            answer = self.world.apply(None, attempt)
        return answer

    def _expect(self, operation: Operation, answer: str, expected: str) -> None:
        assert answer == expected, f"{operation}: the coordinator says {answer}, the model {expected}"

    # --- experts

    def _domain(self, operation: Operation) -> str:
        return DOMAINS[operation.which % len(DOMAINS)]

    def _place(self, operation: Operation) -> Place:
        return self.model.body, self._domain(operation)

    def join(self, operation: Operation) -> None:
        domain = self._domain(operation)
        folder, origin = parts(self._place(operation))

        def add_owner(client: Client) -> str:
            client.add_owner(NewOwner(name=f"{domain}-owner", domains=[domain]))
            return client.add_token(NewToken(role=Role.OWNER, owner=f"{domain}-owner")).secret

        if domain not in self.tokens:
            with self._as(None) as client:
                self.tokens[domain] = add_owner(client)

        def register(client: Client) -> str:
            paths = expert_files(DenseFiles(folder))
            files = {name: client.upload(path, SILENT, title=name).sha256 for name, path in paths.items()}
            made = client.register_expert(NewExpert(domain=domain, files=files, parts=origin))
            self.digests[self._place(operation)] = made.digest
            while made.state is ExpertState.RECEIVED:
                made = client.expert(made.digest)
            if made.problem is not None:
                return made.problem.type.removeprefix("urn:moerge:problem:")
            return made.state.value

        self._expect(operation, self._attempt(operation, domain, register), self.model.join(domain))

    def withdraw(self, operation: Operation) -> None:
        place, serve = self._place(operation), operation.other != 5
        if place not in self.digests:
            return

        def withdraw(client: Client) -> str:
            return client.withdraw_expert(self.digests[place], serve=serve).expert.state.value

        expected = self.model.withdraw(place, serve=serve)
        self._expect(operation, self._attempt(operation, place[1], withdraw), expected)

    def purge(self, operation: Operation) -> None:
        place = self._place(operation)
        if place not in self.digests:
            return
        retire = operation.other % 2 == 1
        expected = self.model.purge(place, retire=retire)

        def purge(client: Client) -> str:
            client.purge_expert(self.digests[place], retire=retire)
            return "purged"

        self._expect(operation, self._attempt(operation, None, purge), expected)

    # --- bodies and contributions

    def seed(self, operation: Operation) -> None:
        """The other seed's body becomes the current one; the operator's command runs beside the coordinator."""
        body = 1 - self.model.body
        register_seed(self.world.home, seed_folder(body))
        self.model.seed(body)

    def head(self, operation: Operation) -> None:
        domain = self._domain(operation)
        if (0, domain) not in self.digests:
            return
        manifest, content = head_sums(domain)
        manifest = manifest.model_copy(update={"expert": self.digests[0, domain]})
        path = written(self.folder / f"{domain}-head", manifest, content)
        self.head_digests[domain] = sha256_hex(path.read_bytes())

        def send(client: Client) -> str:
            stored = client.upload(path, SILENT, title="contribution", compress=True)
            made = client.contribute(NewContribution(sha256=stored.sha256))
            return "active" if made.active else "superseded"

        self._expect(operation, self._attempt(operation, domain, send), self.model.contribute_head(domain))

    def _file(self, item: Sent) -> Path:
        path = self.folder / f"{item.domain}-{item.variant}-{item.body}"
        content = sums(item.domain, item.variant)
        manifest = RouterManifest(
            owner=f"{item.domain}-owner",
            expert=self.digests[item.body, item.domain],
            domain=item.domain,
            body=seed_body_file(item.body)[1].digest,
            settings=StatisticsSettings(),
            hidden_size=HIDDEN,
            layers=LAYERS,
            exponents=[16] * LAYERS,
            tokens=content.tokens,
            documents=content.documents,
            shards=sorted(sha256_hex(f"{item.domain} {n}".encode()) for n in SHARDS[item.variant]),
        )
        written(path, manifest, content)
        self.sent_digests[item] = sha256_hex(path.read_bytes())
        return path

    def _sent_of(self, operation: Operation) -> Sent | None:
        place = self._place(operation)
        return Sent(*place, operation.other % len(SHARDS)) if place in self.digests else None

    def _send(self, item: Sent, supersedes: int | None = None) -> Callable[[Client], str]:
        path = self._file(item)
        old = None if supersedes is None else item._replace(variant=supersedes)
        if old is not None and old not in self.sent_digests:
            self._file(old)

        def send(client: Client) -> str:
            stored = client.upload(path, SILENT, title="contribution", compress=True)
            named = [] if old is None else [self.sent_digests[old]]
            made = client.contribute(NewContribution(sha256=stored.sha256, supersedes=named))
            return "active" if made.active else "superseded"

        return send

    def contribute(self, operation: Operation) -> None:
        item = self._sent_of(operation)
        if item is not None:
            answer = self._attempt(operation, item.domain, self._send(item))
            self._expect(operation, answer, self.model.contribute(item))

    def supersede(self, operation: Operation) -> None:
        item = self._sent_of(operation)
        if item is not None:
            old = (item.variant + 1) % len(SHARDS)
            answer = self._attempt(operation, item.domain, self._send(item, old))
            self._expect(operation, answer, self.model.contribute(item, old))

    def stale(self, operation: Operation) -> None:
        """A contribution under the body that is not the current one."""
        item = Sent(1 - self.model.body, self._domain(operation), operation.other % len(SHARDS))
        if item[:2] in self.digests:
            answer = self._attempt(operation, item.domain, self._send(item))
            self._expect(operation, answer, self.model.contribute(item))

    def together(self, operation: Operation) -> None:
        """Two owners at once; their order makes no difference."""
        sent = [self._sent_of(operation), self._sent_of(Operation("contribute", operation.which + 1, operation.other))]
        result = [item for item in sent if item is not None]
        sends = [(item, self._send(item)) for item in result]

        def both(client: Client) -> str:
            answers: dict[str, str] = {}

            def one(item: Sent, send: Callable[[Client], str]) -> None:
                with self._as(item.domain) as own:
                    try:
                        answers[item.domain] = send(own)
                    except CoordinatorError as error:
                        answers[item.domain] = error.type.removeprefix("urn:moerge:problem:")

            threads = [threading.Thread(target=one, args=item) for item in sends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if "storage-full" in answers.values():
                return "storage-full"
            return " ".join(answers[item.domain] for item in result)

        expected = " ".join(self.model.contribute(item) for item in result)
        self._expect(operation, self._attempt(operation, None, both), expected)

    def withdraw_sent(self, operation: Operation) -> None:
        item = self._sent_of(operation)
        if item is None or item not in self.model.sent:
            return

        def withdraw(client: Client) -> str:
            return "withdrawn" if client.withdraw_contribution(self.sent_digests[item]).withdrawn else "counts"

        expected = self.model.withdraw_contribution(item)
        self._expect(operation, self._attempt(operation, item.domain, withdraw), expected)

    # --- versions

    def solve(self, operation: Operation) -> None:
        ridge_lambda = (0.01, 1.0)[operation.which % 2]
        heads: list[HeadMethod | None] = [None, None, None, None, "average", "seed"]
        head = heads[operation.other]

        def solve(client: Client) -> str:
            new = NewVersion(options=SolveOptions(ridge_lambda=ridge_lambda), head=head, partial=True)
            return wait(client, client.solve_version(new))

        self._expect(operation, self._attempt(operation, None, solve), self.model.solve(ridge_lambda, head))

    def _number(self, operation: Operation) -> int | None:
        count = len(self.model.versions)
        return 1 + operation.which % count if count else None

    def promote(self, operation: Operation) -> None:
        number = self._number(operation)
        if number is not None:
            answer = self._attempt(operation, None, lambda client: str(client.promote("champion", number).version))
            self._expect(operation, answer, self.model.promote(number))

    def roll_back(self, operation: Operation) -> None:
        if not self.model.champion:
            return
        at = self.model.champion[-1]
        answer = self._attempt(operation, None, lambda client: str(client.roll_back("champion", at).version))
        self._expect(operation, answer, self.model.roll_back())

    def retire(self, operation: Operation) -> None:
        number = self._number(operation)
        if number is None:
            return

        def retire(client: Client) -> str:
            client.retire_version(number)
            return "retired"

        self._expect(operation, self._attempt(operation, None, retire), self.model.retire(number))

    def pull(self, operation: Operation) -> None:
        number = self._number(operation)
        if number is not None:
            expected = "pulled" if number in self.model.served() else "gone"
            self._fetch(operation, None, number, str(number), expected)

    def _fetch(self, operation: Operation, who: str | None, number: int, name: str, expected: str) -> None:
        """Pulls a version into the caller's folder, which then has the files of `name`, or else the old ones."""
        folder = self.folder / (who or "pulled")
        before = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}

        def fetch(client: Client) -> str:
            pull(client, client.version(number), folder, SILENT)
            return "pulled"

        self._expect(operation, self._attempt(operation, who, fetch), expected)
        after = {path.name: sha256_hex(path.read_bytes()) for path in folder.iterdir()} if folder.is_dir() else {}
        if expected == "pulled":
            with self._as(None) as client:
                whole = {file.name: file.sha256 for file in client.version(name).files}
            assert verify_folder(folder, None, SILENT).name == name, operation
            assert after.pop(SIGNATURE_FILE), operation
            assert after.pop(PROVENANCE_FILE), operation
            assert after.pop("README.md"), operation  # completed with number and date
            assert after == {file: digest for file, digest in whole.items() if file != "README.md"}, operation
            assert self.pulled.setdefault(name, after) == after, f"{operation}: another reader of {name} has others"
        else:
            assert after == {file: sha256_hex(data) for file, data in before.items()}, operation

    # --- grants

    def _reader(self, name: str) -> str:
        """A reader, or all; the readers' tokens are made at the first use of one."""
        if READERS[0] not in self.tokens:
            with self._as(None) as client:
                for reader in READERS:
                    self.tokens[reader] = client.add_token(NewToken(role=Role.READER, name=reader)).secret
        return name

    def _decide(self, operation: Operation, end: float) -> None:
        domain, reader = self._domain(operation), self._reader((*READERS, ALL)[operation.other % 3])
        if domain not in self.tokens:
            return

        def decide(client: Client) -> str:
            if end == REVOKED:
                return " ".join(client.revoke_grant(domain, reader).readers)
            return " ".join(client.grant(domain, reader, self.until(end)).readers)

        answer = self._attempt(operation, domain, decide)
        self._expect(operation, answer, self.model.decide(domain, reader, end))

    def until(self, end: float) -> datetime | None:
        return None if math.isinf(end) else self.begun + timedelta(hours=end)

    def grant(self, operation: Operation) -> None:
        """To a reader or to all, for ever, or until an end that some jumps of the clock pass."""
        self._decide(operation, FOR_EVER if operation.other < 3 else self.world.ahead + 12.5)

    def revoke(self, operation: Operation) -> None:
        self._decide(operation, REVOKED)

    def part(self, operation: Operation) -> None:
        """A reader's pull."""
        number = self._number(operation)
        if number is not None:
            reader = self._reader(READERS[1 - operation.other % 2])
            name = self.name(number, self.model.granted(number, reader))
            self._fetch(operation, reader, number, name, self.model.part(number, reader))

    def name(self, number: int, domains: tuple[str, ...]) -> str:
        """The name of the part of a version with these domains."""
        key = self.model.versions[number - 1].key
        if domains == key.domains:
            return str(number)
        return version_name(number, part_digest([self.digests[key.body, domain] for domain in domains]))

    # --- what users do besides

    def abandon(self, operation: Operation) -> None:
        """An upload with some chunks that is never committed."""
        domain = self._domain(operation)
        if domain not in self.tokens:
            return
        self.abandoned += 1
        chunks = [f"{domain} {self.abandoned} {n}".encode() for n in range(3)]
        new = announced(b"".join(chunks), *chunks)

        def leave(client: Client) -> str:
            upload = client.post(Upload, "/v1/uploads", new)
            for chunk in chunks[: operation.other % 3]:
                name = sha256_hex(chunk)
                headers = {"Content-Digest": content_digest(name)}
                client.send("PUT", f"/v1/uploads/{upload.id}/chunks/{name}", content=chunk, headers=headers)
            return "left"

        self._expect(operation, self._attempt(operation, domain, leave), "left")

    def jump(self, operation: Operation) -> None:
        self.world.jump((-48.0, -1.0, 1.0, 24.0, 48.0, 200.0)[operation.other])
        self.model.ahead = self.world.ahead

    def restart(self, operation: Operation) -> None:
        self.world.stop()
        self.world.start()


class _Silent(LogProgress):
    """Silent progress."""

    def track(self, title: str, total: int, unit: str) -> Any:
        class Nothing:
            def advance(self, n: int) -> None:
                pass

        return nullcontext(Nothing())


SILENT = _Silent()
