"""Unsent statistics: sums over the documents that are not in the ledger."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from moerge.documents.shards import Shard
from moerge.files import file_sha256, unfinished
from moerge.statistics.contribution import holds
from moerge.statistics.journal import Journal, clear
from moerge.statistics.passes import Pass, RouterPass
from moerge.statistics.windows import ComputeWindows, Layered, WindowSize, windows
from moerge_proto.digests import digest_of
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import Manifest, StatisticsFile
from moerge_workers.computing.finishing import Finishing
from moerge_workers.computing.memory import free_memory, room_of
from moerge_workers.computing.plan import Plan, Planner, total
from moerge_workers.data.documents import Data
from moerge_workers.outgoing.ledger import Ledger, Sent
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events


@dataclass(frozen=True)
class Whole:
    """A complete file to send; `note` records it in the ledger."""

    file: Sent
    note: Callable[[], None]


@dataclass(frozen=True)
class PendingStatistics:
    """Statistics of one split of the data, for one kind of contribution.

    A further file of router statistics has only new documents. One of the expert's own continues the last, and has all.

    Attributes:
        compute: sums windows of shards.
        blank: the manifest without counts and shards.
        ledger: the sent documents; its folder has the files.
        finishing: makes router contributions of exact sums.
    """

    settings: Settings
    data: Data
    events: Events
    compute: ComputeWindows
    blank: Manifest
    work: Pass
    ledger: Ledger
    finishing: Finishing = field(default_factory=Finishing)

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.settings, self.data, self.events, self.blank, self.ledger, self.finishing)

    def complete(self) -> Whole | None:
        """Compute every unsent shard.

        Returns:
            The joined journal; None if there is nothing new, or too little for the policy.

        Raises:
            MoergeError: no document has a token, all are fewer than the policy's minimum, or the model doesn't fit.
        """
        if not self.ledger.files():
            # before reading the data, if all of it must be computed
            room_of(self.work, self.settings, free_memory(self.settings))
        while True:
            plan = self._planner.plan()
            if not self._planner.is_worth_sending(plan):
                return None
            name = f"{digest_of(self.blank.model_dump(mode='json'))}-{self.ledger.next()}.safetensors"
            path = self.ledger.path(name)
            if (manifest := self._made(plan, path)) is not None:
                break
            self.events.say("documents were removed during the work; planning again")
        sent = Sent(path.name, file_sha256(path), manifest.documents, manifest.tokens, manifest.expert)
        cost = self.finishing.cost
        return Whole(sent, lambda: self.ledger.send(sent, self._planner.how, replace=plan.replaces, cost=cost))

    def _made(self, plan: Plan, path: Path) -> Manifest | None:
        """As `_summed`; a finishing that isn't plain makes the file of exact sums, which are removed."""
        if self.finishing.is_plain or not isinstance(self.work, RouterPass):
            return self._summed(plan, path)
        exact = path.with_suffix(".exact")
        if not holds(path, self.blank, plan.sizes):  # else of an earlier run, which asked the owner or was killed
            self.finishing.prepare(replace(self.work, device="cpu"), self.blank.settings)
            if self._summed(plan, exact) is None:
                return None
            self.finishing.write(exact, path, self.work)
        exact.unlink(missing_ok=True)
        self.finishing.clear(self.work)
        with StatisticsFile(path) as file:
            return file.manifest

    def _summed(self, plan: Plan, path: Path) -> Manifest | None:
        """The manifest of the file with the plan's sums; None: the data no longer matches the plan."""
        journal, sizes = self._journal(plan, path), plan.sizes
        left = sizes.keys() - journal.complete
        known, same = plan.sent | sizes.keys(), True

        def unsummed() -> Iterator[Shard]:
            nonlocal same
            for shard in self.data.shards(self.blank, self.ledger, everything=plan.replaces, again=True):
                same = same and shard.name in known
                if shard.name in left:
                    left.remove(shard.name)
                    yield shard

        self.events.enter(Stage.COMPUTING)
        with self.events.track(self._title, total(sizes.values()).tokens, "tokens") as tracker:
            progress = Layered(tracker, self.blank.layers)
            summed = (name for names in journal.shards for name in names & sizes.keys())
            progress.advance(sum(sizes[name].tokens for name in summed))
            self._tell(plan, journal, progress)
            if left:
                settings, room = self.settings, room_of(self.work, self.settings, free_memory(self.settings))
                per_slot = -(-sum(sizes[name].tokens for name in left) // settings.slots)
                size, seconds = (
                    WindowSize(room.states, room.need.token // room.need.positions, per_slot),
                    settings.journal_seconds,
                )
                source = windows(unsummed(), journal, size, settings.statistics.batch_tokens, seconds)
                for done in self.compute(self.work, source):
                    done.keep(journal)
                    progress.advance(done.tokens)
                    self._tell(plan, journal, progress)
        return journal.join() if same and not left else None

    def _tell(self, plan: Plan, journal: Journal, progress: Layered) -> None:
        done = len(journal.complete & plan.sizes.keys())
        self.events.shards(done, len(plan.sizes), total(plan.sizes.values()).tokens - progress.tokens)

    def _journal(self, plan: Plan, path: Path) -> Journal:
        for left in unfinished(self.ledger.path("*")):
            left.unlink()
        kept = plan.sent if self._planner.grows else frozenset()
        before = self.ledger.path(self.ledger.files()[-1].name) if kept else None
        journal = Journal(path, self.blank, before)
        if journal.begun - plan.sizes.keys() - kept or kept - journal.complete:
            self.events.say("the data has changed since the journal was begun; computing its sums again")
            path.unlink(missing_ok=True)
            clear(path)
            journal = Journal(path, self.blank, before)
        return journal

    @property
    def _title(self) -> str:
        kind = f"{self.blank.kind} statistics" if self._planner.grows else "statistics"
        split = f", {self.blank.split}" if self.blank.split != "statistics" else ""
        return f"{kind} of {self.settings.domain}{split}"
