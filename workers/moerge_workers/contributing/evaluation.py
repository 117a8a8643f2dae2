"""Evaluations: the newest version and the dense expert, scored on the owner's held-out documents."""

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.filesize import decimal
from transformers import PreTrainedModel
from transformers.utils import logging

from moerge.client.client import Client
from moerge.errors import CoordinatorError
from moerge.files import atomic_file
from moerge.models.reader import Checkpoint
from moerge.models.tokens import Tokens
from moerge.progress import Tracker
from moerge.scoring.perplexity import Window, load, score, windows
from moerge.scoring.routers import RoutingCounter, forced
from moerge.statistics.memory import free_bytes, is_out_of_memory
from moerge_proto.digests import canonical_json, digest_of
from moerge_proto.evaluations import NewEvaluation, Scored
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Stage
from moerge_proto.versions import Version
from moerge_workers.data.splits import Data
from moerge_workers.leaving.ledger import Ledger, Sent
from moerge_workers.leaving.outbox import Outbox
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Watch

_LOOK_SECONDS = 30.0  # between two looks for a newer version
_AGAIN_SECONDS = 3600.0  # until a version that couldn't be evaluated is tried again
_BLOCK_TOKENS = 2**17  # in memory at a time
_REFUSALS = (ProblemType.FORBIDDEN.urn, ProblemType.GONE.urn)


class _NotNowError(Exception):
    """The version can't be evaluated, at least not yet; says why."""


@dataclass(frozen=True)
class _HeldOut:
    """What is scored.

    Attributes:
        documents: how many.
        tokens: that are scored in them.
        digest: of the documents, in order.
        earlier: whether those that came since the last evaluation are left out.
    """

    documents: int
    tokens: int
    digest: str
    earlier: bool


@dataclass
class Evaluations:
    """One worker's evaluations of versions that have its expert.

    Attributes:
        settings: the worker's.
        client: of the coordinator.
        outbox: through which they leave.
        data: the owner's.
        watch: shows scoring, and is told what happens.
        software: builds that make them.
        expert: digest of the dense expert.
    """

    settings: Settings
    client: Client
    outbox: Outbox
    data: Data
    watch: Watch
    software: dict[str, str]
    expert: str
    _done: set[int] = field(default_factory=set)
    _again: dict[int, float] = field(default_factory=dict)
    _dense: dict[str, Scored] = field(default_factory=dict)  # digest of the documents -> the expert's score
    _looked: float = -math.inf

    def look(self) -> None:
        """Evaluates the newest version, if the last look is some time ago."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.newest()

    def newest(self) -> None:
        """Evaluates the newest served version that has the expert, if that isn't done; why it can't be is said once."""
        version, now = self._newest(), time.monotonic()
        try:
            if version is None:
                if self.settings.once or self.settings.dry_run:
                    self.watch.say("no version that is served has this expert, so there is nothing to evaluate")
            elif version.number not in self._done and now >= self._again.get(version.number, -math.inf):
                self._try(version)
        finally:
            self._looked = time.monotonic()

    def _newest(self) -> Version | None:
        served = [row for row in self.client.versions() if row.retired is None and row.withheld is None]
        own = {self.expert, *(row.digest for row in self.client.experts() if row.trained == self.expert)}
        return next((row for row in reversed(served) if not own.isdisjoint(row.lineage.experts)), None)

    @property
    def _folder(self) -> Path:
        return self.settings.home / "evaluations"

    def _try(self, version: Version) -> None:
        number = version.number
        for old in set(self._folder.glob("files-*")) - {self._files(version)}:  # of a worker that was killed
            shutil.rmtree(old)
        try:
            if self._evaluate(version):
                self._done.add(number)
        except _NotNowError as reason:
            if number not in self._again:
                self.watch.say(f"version {number} is not evaluated: {reason}")
            self._again[number] = time.monotonic() + _AGAIN_SECONDS
        finally:
            shutil.rmtree(self._files(version), ignore_errors=True)

    def _files(self, version: Version) -> Path:
        """Where a version lies until it is scored."""
        return self._folder / f"files-{version.number}"

    def _evaluate(self, version: Version) -> bool:
        """Whether nothing is left to do about a version."""
        rows = list(self.client.evaluations(version.number))
        self.outbox.settle(rows)
        if any(row.active and row.sums.expert == self.expert for row in rows):
            return True
        name = digest_of({"expert": self.expert, "domain": self.settings.domain})
        with closing(Ledger(self._folder / f"{name}.sqlite")) as ledger:
            held_out = self._held_out(ledger)
            path = self._folder / f"version-{version.number}-{self._key(version, held_out)[:12]}.json"
            if not path.is_file():
                sums = self._scored(version, held_out, ledger)
                with atomic_file(path) as out:
                    out.write(canonical_json(sums.model_dump(mode="json")))
            return self._send(version, path, held_out, ledger)

    def _key(self, version: Version, held_out: _HeldOut) -> str:
        """Names everything that an evaluation depends on."""
        return digest_of(
            {
                "coordinator": self.settings.coordinator,
                "lineage": version.lineage.model_dump(mode="json"),
                "expert": self.expert,
                "documents": held_out.digest,
                "settings": self.settings.statistics.model_dump(mode="json"),
            }
        )

    def _send(self, version: Version, path: Path, held_out: _HeldOut, ledger: Ledger) -> bool:
        item = self.outbox.evaluation(path)
        trunk = self.client.current_trunk()

        def outdated() -> bool:
            newest = self._newest()
            return newest is None or newest.number != version.number or self.client.current_trunk() != trunk

        self.outbox.outdate(lambda other: other.kind == "evaluation" and other.digest != item.digest)
        if not self.outbox.may_leave(item, outdated):
            return self.outbox.history.decision(item) != "outdated"
        if not held_out.earlier:
            sent = Sent(path.name, item.digest, held_out.documents, held_out.tokens)
            ledger.send(sent, "", replace=True)
        sums = NewEvaluation.model_validate_json(path.read_bytes())
        with _refusals_told(), self.outbox.sending(item):
            self.client.evaluate(version.number, sums)
        found = f"perplexity {sums.version.perplexity:.3f}, your expert's {sums.dense.perplexity:.3f}"
        self.watch.say(f"evaluated version {version.number}: {found}")
        return True

    # --- the documents

    def _documents(
        self, ledger: Ledger, *, earlier: bool, tracker: Tracker | None = None
    ) -> Iterator[tuple[bytes, Tokens]]:
        """(mac, tokens) of each held-out document with a token to score; `earlier`: of those that were sent before."""
        most = self.settings.statistics.tokens_per_document
        ledger.begin()
        for mac, split, document in self.data.documents(tracker):
            if split == "held-out" and not (ledger.see(mac) and earlier):
                tokens = self.data.encode(document).first(most)
                if tokens[1:].count:
                    yield mac, tokens

    def _held_out(self, ledger: Ledger) -> _HeldOut:
        """What may be scored by the policy: enough documents, and none or enough that differ from the last time."""
        found, least = self._counted(ledger, earlier=False), self.settings.policy.min_documents
        gone = ledger.gone()
        changed = gone + ledger.added()
        if ledger.files() and 0 < changed < least:
            if gone:
                raise _NotNowError(
                    f"{changed:,} held-out documents came or went since the last evaluation, whose difference would "
                    f"tell on them; the policy's min_documents is {least:,}"
                )
            found = self._counted(ledger, earlier=True)
        if found.documents < least:
            raise _NotNowError(f"{found.documents:,} held-out documents; the policy's min_documents is {least:,}")
        return found

    def _counted(self, ledger: Ledger, *, earlier: bool) -> _HeldOut:
        mark, documents, tokens = hashlib.sha256(), 0, 0
        with self.watch.track("reading held-out documents", self.data.size(), "B") as tracker:
            for read in _marked(self._documents(ledger, earlier=earlier, tracker=tracker), mark.update):
                documents += 1
                tokens += read[1:].count
        return _HeldOut(documents, tokens, mark.hexdigest(), earlier)

    # --- scoring

    def _scored(self, version: Version, held_out: _HeldOut, ledger: Ledger) -> NewEvaluation:
        settings, folder = self.settings, self._files(version)
        context = settings.statistics.context
        self._require_room(version)
        logging.disable_progress_bar()
        try:
            with _refusals_told():
                place, title = f"/v1/versions/{version.number}/files", f"downloading version {version.number}"
                self.client.download(place, list(version.files), folder, self.watch, title=title)
            self.watch.enter(Stage.EVALUATING)
            title = f"scoring version {version.number}"
            model = self._load(folder)
            counter = RoutingCounter(model)
            with counter.counting():
                found = self._score(model, title, held_out, ledger, counter.count)
            with forced(model, version.lineage.domains.index(settings.domain)):
                oracle = self._score(model, f"{title}, all by your expert", held_out, ledger)
            del model
            shutil.rmtree(folder)
            if held_out.digest not in self._dense:
                dense = self._score(self._load(settings.expert), "scoring your expert", held_out, ledger)
                self._dense = {held_out.digest: dense}
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise _NotNowError("the memory isn't enough; --precision bfloat16 or a smaller --context help") from error
        return NewEvaluation(
            number=version.number,
            domain=settings.domain,
            expert=self.expert,
            documents=held_out.documents,
            context=context,
            stride=context // 2,
            dense=self._dense[held_out.digest],
            version=found,
            oracle=oracle,
            routed=counter.counts.tolist(),
            software=self.software,
        )

    def _require_room(self, version: Version) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        size, free = version.bytes_total, shutil.disk_usage(self._folder).free
        if size > free:
            raise _NotNowError(f"it takes {decimal(size)}, and {decimal(free)} are free at {self._folder}")
        own = Checkpoint(self.settings.expert).specs.values()
        stored, elements = sum(spec.bytes for spec in own), sum(torch.Size(spec.shape).numel() for spec in own)
        weights = size * elements * getattr(torch, self.settings.statistics.precision).itemsize // stored
        there = free_bytes(self.settings.device)
        if there is not None and weights > there:
            raise _NotNowError(f"its weights take {decimal(weights)} of memory, and {decimal(there)} are there")

    def _load(self, folder: Path) -> PreTrainedModel:
        settings = self.settings
        torch.set_num_threads(settings.slots)
        return load(folder, getattr(torch, settings.statistics.precision), settings.device)

    def _score(
        self,
        model: PreTrainedModel,
        title: str,
        held_out: _HeldOut,
        ledger: Ledger,
        after_batch: Callable[[list[Window]], None] = lambda batch: None,
    ) -> Scored:
        """A model's summed negative log-likelihood of the held-out documents."""
        nll, tokens, mark = 0.0, 0, hashlib.sha256()
        documents = _marked(self._documents(ledger, earlier=held_out.earlier), mark.update)
        with self.watch.track(title, held_out.tokens, "tokens") as tracker:
            for block in _blocks(documents, self.settings.statistics.context):
                done = score(model, block, tracker, after_batch)
                nll, tokens = nll + done.nll, tokens + done.tokens
        if mark.hexdigest() != held_out.digest:
            raise _NotNowError("the data changed while it was read")
        return Scored(nll=nll, tokens=tokens)


def _marked(documents: Iterable[tuple[bytes, Tokens]], note: Callable[[bytes], None]) -> Iterator[Tokens]:
    """The documents' tokens; `note` is told what tells the documents from others."""
    for mac, tokens in documents:
        note(mac + len(tokens).to_bytes(8, "big"))
        yield tokens


def _blocks(documents: Iterable[Tokens], context: int) -> Iterator[list[Window]]:
    """Windows that advance by half a context, of some documents at a time; those without a token to score are left
    out.
    """
    cut: list[Window] = []
    size = 0
    for tokens in documents:
        cut += [window for window in windows([tokens], context, context // 2) if window.scored]
        size += len(tokens)
        if size >= _BLOCK_TOKENS:
            yield cut
            cut, size = [], 0
    if cut:
        yield cut


@contextmanager
def _refusals_told() -> Iterator[None]:
    """Makes a version that the coordinator doesn't give, or doesn't serve any more, one that isn't evaluated now."""
    try:
        yield
    except CoordinatorError as error:
        if error.type not in _REFUSALS:
            raise
        raise _NotNowError(f"{error.what}; {error.todo}") from error
