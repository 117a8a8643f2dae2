"""The stage of the evaluations: the newest version and the dense expert, scored on the owner's held-out documents."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.filesize import decimal

from moerge.errors import CoordinatorError, MoergeError
from moerge.files import atomic_file
from moerge.memory.machine import free_for, is_out_of_memory
from moerge.memory.needs import Need
from moerge.memory.room import states_for
from moerge.models.dense import expert_weights
from moerge.models.dense_files import DenseBody
from moerge.models.expert_folder import DenseExpert
from moerge.models.published import expected_config, published_weights
from moerge.models.weights import Weights
from moerge.scoring.routers import RouterHook, forcing
from moerge.scoring.streamed import StreamedModel, need_of, streamed_model
from moerge_proto.digests import canonical_json, digest_of
from moerge_proto.evaluations import NewEvaluation, Perplexity, Scored
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Obstacle, Stage
from moerge_proto.versions import Version
from moerge_workers.computing.held_out import Counted, HeldOut, NotNowError
from moerge_workers.contributing.documents import Documents
from moerge_workers.contributing.exchange import SOFTWARE, Exchange
from moerge_workers.contributing.publications import logged_body, logged_version
from moerge_workers.contributing.seed import checked_body
from moerge_workers.contributing.version_check import AlteredVersionError, require_own, slot_of
from moerge_workers.outgoing.ledger import Ledger, Sent
from moerge_workers.settings import Settings

_AGAIN_SECONDS = 3600.0  # until the next attempt after a failure
_REFUSALS = (ProblemType.FORBIDDEN.urn, ProblemType.GONE.urn)


@dataclass
class Evaluations:
    """The evaluations of one run: finished versions, times of the next attempts."""

    exchange: Exchange
    documents: Documents
    expert: DenseExpert
    clock: Callable[[], float] = time.monotonic
    _done: set[int] = field(default_factory=set)
    _again: dict[int, float] = field(default_factory=dict)
    _dense: dict[str, Scored] = field(default_factory=dict)  # digest of the documents -> the expert's score

    def look(self, number: int | None) -> None:
        """Evaluate the demanded version, unless done; print a failure's reason once. None: no version is demanded."""
        settings, say = self.documents.settings, self.documents.events.say
        if number is None:
            if settings.once or settings.dry_run:
                say("no served version has this expert, so there is nothing to evaluate")
        elif number not in self._done and self.clock() >= self._again.get(number, -math.inf):
            self._try(logged_version(self.exchange, number))

    def _try(self, version: Version) -> None:
        number, files = version.number, _files(self.documents.settings, version)
        for old in set(files.parent.glob("files-*")) - {files}:  # left by a killed worker
            shutil.rmtree(old)
        try:
            if self._evaluate(version):
                self._done.add(number)
        except NotNowError as reason:
            if number not in self._again:
                self.documents.events.say(f"version {number} is not evaluated: {reason}")
            self._again[number] = self.clock() + _AGAIN_SECONDS
            if isinstance(reason, AlteredVersionError):
                self.documents.events.hindered(Obstacle.VERSION_ALTERED)
        finally:
            shutil.rmtree(files, ignore_errors=True)

    def _evaluate(self, version: Version) -> bool:
        """Evaluate a version and send the sums; returns whether the version is done.

        Raises:
            NotNowError: it can't be evaluated now.
        """
        outbox, settings = self.exchange.outbox, self.documents.settings
        rows = list(self.exchange.client.evaluations(version.number, replaced=True))
        sums = [(row, row.score) for row in rows if isinstance(row.score, Perplexity)]
        outbox.settle(row for row, _ in sums)
        if any(row.active and score.expert == self.expert.digest for row, score in sums):
            return True
        outdated = _outdated(self.exchange, version)
        weights = self._checked_body(version)  # before text is read
        folder = _folder(settings)
        name = digest_of({"expert": self.expert.digest, "domain": settings.domain})
        with closing(Ledger(folder / f"{name}.sqlite")) as ledger:
            held_out = HeldOut(settings, self.documents.data, self.documents.events, ledger)
            counted = held_out.counted()
            key = _key(settings, self.expert.digest, version, counted)
            path = folder / f"version-{version.number}-{key[:12]}.json"
            if not path.is_file():
                use = outbox.version_use(version.number, key, version.lineage.body, path)
                if not outbox.may_use(use, outdated):
                    raise NotNowError("you haven't approved it")
                score = self._scored(version, weights, held_out, counted)
                new = NewEvaluation(number=version.number, scores=[score])
                with atomic_file(path) as out:
                    out.write(canonical_json(new.model_dump(mode="json")))
            return _send(self.exchange, version, path, counted, ledger)

    def _checked_body(self, version: Version) -> DenseBody:
        """As `checked_body`, for a version's body; NotNowError: it is refused."""
        with _refusals_delayed():
            body = logged_body(self.exchange, version.lineage.body)
            try:
                return checked_body(self.documents.settings, self.expert, self.documents.events, body).weights
            except CoordinatorError:
                raise
            except MoergeError as error:
                raise NotNowError(f"its body can't be used: {error}") from error

    def _scored(self, version: Version, weights: DenseBody, held_out: HeldOut, counted: Counted) -> Perplexity:
        """The sums of the version, of the version with all tokens at the owner's expert, and of the expert itself."""
        settings, events, expert = self.documents.settings, self.documents.events, self.expert
        folder = _files(settings, version)
        _require_room(settings, expert, version)
        try:
            with _refusals_delayed():
                place, title = f"/v1/versions/{version.number}/files", f"downloading version {version.number}"
                self.exchange.client.download(place, list(version.files), folder, events, title=title)
            require_own(settings.home, expert, version, weights, folder)
            events.enter(Stage.EVALUATING)
            title = f"scoring version {version.number}"
            model = _model(published_weights(folder), settings)
            result = held_out.score(model, title, counted)
            hook = forcing(slot_of(settings.domain, version), len(version.lineage.experts))
            forced = _model(published_weights(folder), settings, hook)
            oracle = held_out.score(forced, f"{title}, all by your expert", counted)
            routed = model.routed.tolist()
            del model, forced
            shutil.rmtree(folder)
            if counted.digest not in self._dense:
                own = held_out.score(_model(expert_weights(expert), settings), "scoring your expert", counted)
                self._dense.clear()
                self._dense[counted.digest] = own
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise NotNowError("not enough memory; use `precision` bfloat16 or a smaller `context`") from error
        return Perplexity(
            domain=settings.domain,
            expert=expert.digest,
            documents=counted.documents,
            context=settings.statistics.context,
            stride=settings.statistics.context // 2,
            dense=self._dense[counted.digest],
            version=result,
            oracle=oracle,
            routed=routed,
            software=SOFTWARE,
        )


def _outdated(exchange: Exchange, version: Version) -> Callable[[], bool]:
    """A function: whether another version is demanded, or the body has changed since this call."""
    body = exchange.demands().body
    return exchange.outdated(lambda demands: (demands.version, demands.body) != (version.number, body))


def _folder(settings: Settings) -> Path:
    return settings.home / "evaluations"


def _files(settings: Settings, version: Version) -> Path:
    """The folder of a version until it is scored."""
    return _folder(settings) / f"files-{version.number}"


def _key(settings: Settings, expert: str, version: Version, counted: Counted) -> str:
    facts = {"coordinator": settings.coordinator, "expert": expert, "documents": counted.digest}
    models = {"lineage": version.lineage, "settings": settings.statistics}
    return digest_of(facts | {name: model.model_dump(mode="json") for name, model in models.items()})


def _send(exchange: Exchange, version: Version, path: Path, counted: Counted, ledger: Ledger) -> bool:
    outbox = exchange.outbox
    item = outbox.evaluation(path, version.lineage.body)
    outbox.outdate(lambda other: other.kind == "evaluation" and other.digest != item.digest)
    if not outbox.may_leave(item, _outdated(exchange, version)):
        return outbox.history.decision(item) != "outdated"
    if not counted.earlier:
        sent = Sent(path.name, item.digest, counted.documents, counted.tokens, exchange.expert)
        ledger.send(sent, "", replace=True)
    new = NewEvaluation.model_validate_json(path.read_bytes())
    with _refusals_delayed(), outbox.sending(item):
        exchange.client.evaluate(new)
    figures = ", ".join(f"{score.value:.1f} on {score.name}" for score in new.scores)
    outbox.say(f"evaluated version {version.number}: {figures}; your expert has 100")
    return True


def _require_room(settings: Settings, expert: DenseExpert, version: Version) -> None:
    """Require disk and memory for a version; NotNowError: too little."""
    folder = _folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    size, free = version.bytes_total, shutil.disk_usage(folder).free
    if size > free:
        raise NotNowError(f"it needs {decimal(size)}; {decimal(free)} are free at {folder}")
    try:
        require_memory(expert, settings, version)
    except MoergeError as error:
        raise NotNowError(f"{error.what}; {error.todo}") from error


def require_memory(expert: DenseExpert, settings: Settings, version: Version) -> Need:
    """Require memory to evaluate a version; MoergeError: too little, says by how much."""
    statistics, lineage = settings.statistics, version.lineage
    config = expected_config(expert.config, len(lineage.experts), lineage.options.top_k)
    need = need_of(config, statistics.precision, statistics.context, settings.device)
    states_for(need, free_for(settings.device), settings.host_memory)
    return need


def _model(weights: Weights, settings: Settings, hook: RouterHook | None = None) -> StreamedModel:
    torch.set_num_threads(settings.slots)
    statistics, device = settings.statistics, settings.device
    try:
        return streamed_model(weights, statistics.precision, device, statistics.context, settings.host_memory, hook)
    except MoergeError as error:
        raise NotNowError(f"{error.what}; {error.todo}") from error


@contextmanager
def _refusals_delayed() -> Iterator[None]:
    """Turn the coordinator's refusal of a version into NotNowError."""
    try:
        yield
    except CoordinatorError as error:
        if error.type not in _REFUSALS:
            raise
        raise NotNowError(f"{error.what}; {error.todo}") from error
