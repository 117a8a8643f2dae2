"""Unsent statistics: sums over the documents that are not in the ledger."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from moerge.documents.shards import Shard
from moerge.files import file_sha256
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.journal import Journal, join
from moerge.statistics.passes import RouterPass, TrunkPass, described, named
from moerge_proto.digests import digest_of
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import Manifest
from moerge_workers.computing.memory import free_memory, that_fit
from moerge_workers.computing.plan import Plan, Planner, total
from moerge_workers.data.splits import Data
from moerge_workers.leaving.ledger import Ledger, Sent
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

ComputeShards = Callable[[RouterPass | TrunkPass, Iterable[Shard]], Iterator[tuple[Shard, ShardSums]]]
"""(pass, shards) -> every shard with its sums, in any order."""


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
        compute: sums shards.
        blank: the manifest without counts and shards.
        work: the pass that computes the sums.
        ledger: the sent documents; its folder has the files.
    """

    settings: Settings
    data: Data
    events: Events
    compute: ComputeShards
    blank: Manifest
    work: RouterPass | TrunkPass
    ledger: Ledger

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self.settings, self.data, self.events, self.blank, self.ledger)

    def complete(self) -> Whole | None:
        """Compute every unsent shard, once in each layer group.

        Returns:
            The journal, or the groups' joined journals; None if there is nothing new, or too little for the policy.

        Raises:
            MoergeError: no document has a token, all are fewer than the policy's minimum, or the model doesn't fit.
        """
        if not self.ledger.files():
            # before reading the data, if all of it must be computed
            that_fit(self.work, self.settings, free_memory(self.settings))
        while True:
            plan = self._planner.plan()
            if not self._planner.is_worth_sending(plan):
                return None
            name = f"{digest_of(self.blank.model_dump(mode='json'))}-{self.ledger.next()}.safetensors"
            path = self.ledger.path(name)
            if (manifest := self._summed(plan, path)) is not None:
                break
            self.events.say("documents were removed during the work; planning again")
        for part in _parts(path):
            part.unlink()
        sent = Sent(path.name, file_sha256(path), manifest.documents, manifest.tokens)
        return Whole(sent, lambda: self.ledger.send(sent, self._planner.how, replace=plan.replaces))

    def _summed(self, plan: Plan, path: Path) -> Manifest | None:
        """The manifest of the file with the plan's sums; None if the data no longer matches the plan."""
        whole = self._journal(plan, path, None)
        if plan.sizes.keys() <= whole.shards:
            return whole.save()
        passes = self._passes(path)
        if len(passes) == 1:
            return self._compute(plan, whole, self.work)
        parts = []
        for number, work in enumerate(passes, 1):
            part = path.with_suffix(f".{number}-of-{len(passes)}.part")
            if self._compute(plan, self._journal(plan, part, work.layers), work, number - 1, len(passes)) is None:
                return None
            parts.append((part, work.layers))
        return join(path, parts)

    def _passes(self, path: Path) -> list[RouterPass | TrunkPass]:
        """The passes over the layer groups; removes journals of other groups."""
        begun = _parts(path)
        groups = max((int(part.stem.rpartition("-")[2]) for part in begun), default=1)
        passes = that_fit(self.work, self.settings, free_memory(self.settings), groups)
        others = [part for part in begun if not part.stem.endswith(f"-of-{len(passes)}")]
        if len(passes) > 1:
            self.events.say(f"the sums are computed in {described(passes)}")
            others += [path] * path.is_file()
        for other in others:
            self.events.say(f"removing {other.name}, because its layer groups differ; computing its sums again")
            other.unlink()
        return passes

    def _journal(self, plan: Plan, path: Path, layers: range | None) -> Journal:
        kept = plan.sent if self._planner.grows else frozenset()
        before = self.ledger.path(self.ledger.files()[-1].name) if kept else None

        def opened() -> Journal:
            return Journal(path, self.blank, seconds=self.settings.journal_seconds, before=before, layers=layers)

        journal = opened()
        if journal.shards - plan.sizes.keys() - kept or kept - journal.shards:
            self.events.say("the data has changed since the journal was begun; computing its sums again")
            path.unlink()
            journal = opened()
        return journal

    def _compute(
        self, plan: Plan, journal: Journal, work: RouterPass | TrunkPass, before: int = 0, groups: int = 1
    ) -> Manifest | None:
        """Complete the journal with the missing shards of the plan.

        `before`: number of finished layer groups. None if the data no longer matches the plan.
        """
        left = {name for name in plan.sizes if name not in journal.shards}
        done, every = (before + 1) * len(plan.sizes) - len(left), groups * len(plan.sizes)
        others = plan.sent | plan.sizes.keys()
        same = True

        def each_once(shards: Iterator[Shard]) -> Iterator[Shard]:
            nonlocal same
            for shard in shards:
                same = same and shard.name in others
                if shard.name in left:
                    left.remove(shard.name)
                    yield shard

        tokens, tokens_left = total(plan.sizes.values()).tokens, sum(plan.sizes[name].tokens for name in left)
        later = (groups - before - 1) * tokens
        self.events.enter(Stage.COMPUTING)
        with self.events.track(self._title(work), tokens, "tokens") as tracker:
            tracker.advance(tokens - tokens_left)
            self.events.shards(done, every, tokens_left + later)
            if not left:
                return journal.save()
            split, hidden = self.blank.split, self.blank.hidden_size
            again = self.data.shards(split, self.ledger, hidden, everything=plan.replaces, again=True)
            for shard, sums in self.compute(work, each_once(again)):
                journal.add(shard.name, sums)
                tracker.advance(shard.tokens)
                done, tokens_left = done + 1, tokens_left - shard.tokens
                self.events.shards(done, every, tokens_left + later)
        return journal.save() if same and not left else None

    def _title(self, work: RouterPass | TrunkPass) -> str:
        kind = "trunk statistics" if self._planner.grows else "statistics"
        split = f", {self.blank.split}" if self.blank.split != "statistics" else ""
        layers = f", layers {named(work.layers)}" if work.layers is not None else ""
        return f"{kind} of {self.settings.domain}{split}{layers}"


def _parts(path: Path) -> list[Path]:
    """The journals of layer groups of a contribution."""
    return sorted(path.parent.glob(f"{path.stem}.*-of-*.part"))
