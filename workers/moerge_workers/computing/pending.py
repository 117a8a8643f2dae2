"""Unsent statistics: sums over the documents that are not in the ledger."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from moerge.documents.shards import Shard
from moerge.files import file_sha256, unfinished
from moerge.statistics.journal import Journal, clear
from moerge.statistics.passes import Pass
from moerge.statistics.windows import ComputeWindows, Layered, WindowSize, windows
from moerge_proto.digests import digest_of
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import Manifest
from moerge_workers.computing.memory import free_memory, room_of
from moerge_workers.computing.plan import Plan, Planner, total
from moerge_workers.data.documents import Data
from moerge_workers.leaving.ledger import Ledger, Sent
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

    A further file of router statistics has only new documents. One for trunks continues the last, and has all.

    Attributes:
        settings: the worker's.
        data: the owner's.
        events: receives messages and progress.
        compute: sums windows of shards.
        blank: the manifest without counts and shards.
        work: the pass that computes the sums.
        ledger: the sent documents; its folder has the files.
    """

    settings: Settings
    data: Data
    events: Events
    compute: ComputeWindows
    blank: Manifest
    work: Pass
    ledger: Ledger

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.settings, self.data, self.events, self.blank, self.ledger)

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
            if (manifest := self._summed(plan, path)) is not None:
                break
            self.events.say("documents were removed during the work; planning again")
        sent = Sent(path.name, file_sha256(path), manifest.documents, manifest.tokens)
        return Whole(sent, lambda: self.ledger.send(sent, self._planner.how, replace=plan.replaces))

    def _summed(self, plan: Plan, path: Path) -> Manifest | None:
        """The manifest of the file with the plan's sums; None if the data no longer matches the plan."""
        journal = self._journal(plan, path)
        complete = journal.complete
        left = {name for name in plan.sizes if name not in complete}
        tokens, summed = total(plan.sizes.values()).tokens, sum(plan.sizes[name].tokens for name in left)
        others, same = plan.sent | plan.sizes.keys(), True

        def each_once(shards: Iterator[Shard]) -> Iterator[Shard]:
            nonlocal same
            for shard in shards:
                same = same and shard.name in others
                if shard.name in left:
                    left.remove(shard.name)
                    yield shard

        self.events.enter(Stage.COMPUTING)
        with self.events.track(self._title, tokens, "tokens") as tracker:
            progress = Layered(tracker, self.blank.layers)
            progress.advance(sum(plan.sizes[name].tokens for own in journal.shards for name in own & plan.sizes.keys()))
            self._tell(plan, journal, progress)
            if left:
                room = room_of(self.work, self.settings, free_memory(self.settings))
                size = WindowSize(room.states, room.need.token, -(-summed // self.settings.slots))
                split, hidden = self.blank.split, self.blank.hidden_size
                again = self.data.shards(split, self.ledger, hidden, everything=plan.replaces, again=True)
                batch_tokens, seconds = self.settings.statistics.batch_tokens, self.settings.journal_seconds
                for done in self.compute(self.work, windows(each_once(again), journal, size, batch_tokens, seconds)):
                    done.keep(journal)
                    progress.advance(done.tokens)
                    self._tell(plan, journal, progress)
        return journal.join() if same and not left else None

    def _tell(self, plan: Plan, journal: Journal, progress: Layered) -> None:
        """Tell the events how many shards are complete."""
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
        kind = "trunk statistics" if self._planner.grows else "statistics"
        split = f", {self.blank.split}" if self.blank.split != "statistics" else ""
        return f"{kind} of {self.settings.domain}{split}"
