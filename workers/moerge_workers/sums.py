"""What is still to be sent of a split: sums over the documents that the ledger doesn't hold yet."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.progress import Progress
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import Manifest, StatisticsFile, TrunkManifest
from moerge_workers import actors
from moerge_workers.data import Data, Split
from moerge_workers.journal import Journal
from moerge_workers.ledger import Ledger, Sent
from moerge_workers.memory import free_bytes, require_room
from moerge_workers.settings import Settings
from moerge_workers.shards import Shard, enough


@dataclass(frozen=True)
class _Plan:
    """Name -> tokens of every shard to compute, the names of those that were sent, and whether it is all anew."""

    sizes: dict[str, int]
    sent: frozenset[str]
    replaces: bool


@dataclass(frozen=True)
class Sums:
    """The sums of one split of the data, for one kind of contribution.

    A further file of router statistics holds what is new; one for trunks goes on from the last, and holds all.

    Attributes:
        blank: the manifest, but for its counts and shards.
        work: computes them.
        ledger: what was sent, in files of `folder`.
        say: is told what is decided.
    """

    settings: Settings
    data: Data
    split: Split
    blank: Manifest
    work: RouterPass | TrunkPass
    ledger: Ledger
    folder: Path
    progress: Progress
    say: Callable[[str], None]

    @property
    def _how(self) -> str:
        turns = None if self.settings.chat is None else self.settings.chat_turns
        return digest_of({"settings": self.blank.settings.model_dump(), "turns": turns})

    def complete(self) -> Callable[[], None] | None:
        """Computes every shard that is still to be sent, each once.

        Returns:
            What notes in the ledger that the journal, now a whole file, is to be sent; None if there is nothing new.

        Raises:
            MoergeError: no document has a token, or the model doesn't fit.
        """
        if not self.ledger.files():
            self._require_room()  # before the data is read, if all of it is to be computed
        while True:
            plan = self._plan()
            if not self._worth_sending(plan):
                return None
            journal = self._journal(plan)
            if self._compute(plan, journal):
                break
            self.say("documents have gone meanwhile; planning anew")
        journal.save()
        sent = Sent(journal.path.name, file_sha256(journal.path))
        return lambda: self.ledger.send(sent, self._how, replace=plan.replaces)

    def path(self, sent: Sent) -> Path:
        return self.folder / sent.name

    def _require_room(self) -> None:
        if self.settings.ray_address is None:
            free = free_bytes(self.work.device)
            require_room(self.work, self.settings.statistics, self.settings.slots, free)

    def _plan(self) -> _Plan:
        files = [self.path(each) for each in self.ledger.files()]
        replaces = not self.ledger.made_as(self._how)
        if files and self._grows:
            files = files[-1:]
            replaces = replaces or not files[0].is_file()
        sizes = self._sizes(everything=replaces)
        if files and not replaces and (gone := self.ledger.gone()):
            self.say(f"{gone:,} documents that were sent are gone; what is left takes the place of all that was sent")
            sizes, replaces = self._sizes(everything=True), True
        if replaces:
            return _Plan(sizes, frozenset(), replaces)
        sent = frozenset(name for file in files if file.is_file() for name in _shards(file))
        return _Plan({name: size for name, size in sizes.items() if name not in sent}, sent, replaces)

    @property
    def _grows(self) -> bool:
        return isinstance(self.blank, TrunkManifest)

    def _sizes(self, *, everything: bool) -> dict[str, int]:
        with self.progress.track("reading documents", self.data.size(), "B") as tracker:
            hidden = self.blank.hidden_size
            shards = self.data.shards(self.split, self.ledger, hidden, everything=everything, tracker=tracker)
            return {shard.name: shard.tokens for shard in shards}

    def _worth_sending(self, plan: _Plan) -> bool:
        further = bool(self.ledger.files()) and not plan.replaces
        tokens, least = sum(plan.sizes.values()), enough(self.blank.hidden_size)
        if further and 0 < tokens < least:
            self.say(f"{tokens:,} further tokens of {self.split} wait until there are {least:,}, a shard's worth")
        if further:
            return tokens >= least
        if not plan.sizes and self.split == "statistics":
            todo = "check what --text-field or --chat names, and the shares"
            raise MoergeError("no document has a token that counts", where="--data", todo=todo)
        if not plan.sizes and plan.replaces:
            self.ledger.forget()
        return bool(plan.sizes)

    def _journal(self, plan: _Plan) -> Journal:
        name = digest_of(self.blank.model_dump(mode="json"))
        path = self.folder / f"{name}-{self.ledger.next()}.safetensors"
        kept = plan.sent if self._grows else frozenset()
        before = self.path(self.ledger.files()[-1]) if kept else None
        journal = Journal(path, self.blank, self.settings.journal_seconds, before)
        if journal.shards - plan.sizes.keys() - kept or kept - journal.shards:
            self.say("the data has changed since the journal was begun; its sums are begun anew")
            path.unlink()
            journal = Journal(path, self.blank, self.settings.journal_seconds, before)
        return journal

    def _compute(self, plan: _Plan, journal: Journal) -> bool:
        """Computes every planned shard that is not in the journal; whether the data still gave the plan."""
        left = {name for name in plan.sizes if name not in journal.shards}
        others = plan.sent | plan.sizes.keys()
        same = True

        def each_once(shards: Iterator[Shard]) -> Iterator[Shard]:
            nonlocal same
            for shard in shards:
                same = same and shard.name in others
                if shard.name in left:
                    left.remove(shard.name)
                    yield shard

        kind = "trunk statistics" if self._grows else "statistics"
        title = f"{kind} of {self.settings.domain}" + (f", {self.split}" if self.split != "statistics" else "")
        with self.progress.track(title, sum(plan.sizes.values()), "tokens") as tracker:
            tracker.advance(sum(size for name, size in plan.sizes.items() if name not in left))
            if not left:
                return True
            self._require_room()
            hidden = self.blank.hidden_size
            again = self.data.shards(self.split, self.ledger, hidden, everything=plan.replaces, again=True)
            settings = self.settings
            slots = actors.Slots(settings.ray_address, settings.slots, self.work, settings.statistics, self.say)
            for shard, sums in slots.compute(each_once(again)):
                journal.add(shard.name, sums)
                tracker.advance(shard.tokens)
        return same and not left


def _shards(file: Path) -> list[str]:
    with StatisticsFile(file) as opened:
        return opened.manifest.shards
