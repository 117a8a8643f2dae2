"""What is still to be sent of a split: sums over the documents that the ledger doesn't hold yet."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moerge.documents.shards import Shard, enough
from moerge.documents.splits import Split
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.statistics.journal import Journal, join
from moerge.statistics.passes import RouterPass, TrunkPass, described, named
from moerge_proto.digests import digest_of
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import Manifest, StatisticsFile, TrunkManifest
from moerge_workers.computing import actors
from moerge_workers.computing.memory import free_memory, that_fit
from moerge_workers.data.splits import Data
from moerge_workers.leaving.ledger import Ledger, Sent
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Watch


@dataclass(frozen=True)
class _Size:
    documents: int
    tokens: int


@dataclass(frozen=True)
class _Plan:
    """What to compute.

    Attributes:
        sizes: name -> size of every shard.
        sent: names of those that were sent.
        replaces: whether it takes the place of all that was sent.
        differs: documents and tokens in which it differs from all that was sent; None: in how all was computed.
    """

    sizes: dict[str, _Size]
    sent: frozenset[str]
    replaces: bool
    differs: _Size | None


@dataclass(frozen=True)
class Whole:
    """A file that holds all that is to be sent; `note` says in the ledger that it is."""

    file: Sent
    note: Callable[[], None]


@dataclass(frozen=True)
class Sums:
    """The sums of one split of the data, for one kind of contribution.

    A further file of router statistics holds what is new; one for trunks goes on from the last, and holds all.

    Attributes:
        blank: the manifest, but for its counts and shards.
        work: computes them.
        ledger: what was sent, in files of `folder`.
        watch: is told what is decided, and how far it is.
    """

    settings: Settings
    data: Data
    split: Split
    blank: Manifest
    work: RouterPass | TrunkPass
    ledger: Ledger
    folder: Path
    watch: Watch

    @property
    def say(self) -> Callable[[str], None]:
        return self.watch.say

    @property
    def _how(self) -> str:
        turns = None if self.settings.chat is None else self.settings.chat_turns
        return digest_of({"settings": self.blank.settings.model_dump(), "turns": turns})

    def complete(self) -> Whole | None:
        """Computes every shard that is still to be sent, once in each layer group.

        Returns:
            The journal, or what those of the groups were joined to; None if there is nothing new, or so little that the
            policy keeps it.

        Raises:
            MoergeError: no document has a token, or all are fewer than the policy's least; or the model doesn't fit.
        """
        if not self.ledger.files():
            # before the data is read, if all of it is to be computed
            that_fit(self.work, self.settings, free_memory(self.settings))
        while True:
            plan = self._plan()
            if not self._worth_sending(plan):
                return None
            path = self.folder / f"{digest_of(self.blank.model_dump(mode='json'))}-{self.ledger.next()}.safetensors"
            if (manifest := self._summed(plan, path)) is not None:
                break
            self.say("documents have gone meanwhile; planning anew")
        for part in _parts(path):
            part.unlink()
        sent = Sent(path.name, file_sha256(path), manifest.documents, manifest.tokens)
        return Whole(sent, lambda: self.ledger.send(sent, self._how, replace=plan.replaces))

    def path(self, sent: Sent) -> Path:
        return self.folder / sent.name

    def _plan(self) -> _Plan:
        counted = self.ledger.files()[-1:] if self._grows else self.ledger.files()
        files = [self.path(each) for each in counted]
        if files and (not self.ledger.made_as(self._how) or (self._grows and not files[0].is_file())):
            sizes = self._sizes(everything=True)
            documents = self.ledger.added() + self.ledger.gone()  # the tokens that differ may be all
            return _Plan(
                sizes, frozenset(), True, _Size(documents, _total(sizes.values()).tokens) if documents else None
            )
        sizes = self._sizes(everything=False)
        if files and (gone := self.ledger.gone()):
            self.say(f"{gone:,} documents that were sent are gone; what is left takes the place of all that was sent")
            added, before, sizes = _total(sizes.values()), _total(counted), self._sizes(everything=True)
            left = _total(sizes.values())
            documents = 2 * added.documents + before.documents - left.documents
            tokens = 2 * added.tokens + before.tokens - left.tokens
            return _Plan(sizes, frozenset(), True, _Size(documents, tokens))
        sent = frozenset(name for file in files if file.is_file() for name in _shards(file))
        sizes = {name: size for name, size in sizes.items() if name not in sent}
        return _Plan(sizes, sent, False, _total(sizes.values()) if files else None)

    @property
    def _grows(self) -> bool:
        return isinstance(self.blank, TrunkManifest)

    def _sizes(self, *, everything: bool) -> dict[str, _Size]:
        self.watch.enter(Stage.READING)
        with self.watch.track("reading documents", self.data.size(), "B") as tracker:
            hidden = self.blank.hidden_size
            shards = self.data.shards(self.split, self.ledger, hidden, everything=everything, tracker=tracker)
            return {shard.name: _Size(shard.documents, shard.tokens) for shard in shards}

    def _worth_sending(self, plan: _Plan) -> bool:
        if not plan.sizes and self.split == "statistics" and (plan.replaces or plan.differs is None):
            todo = "check what --text-field or --chat names, and the shares"
            raise MoergeError("no document has a token that counts", where="--data", todo=todo)
        if not plan.sizes and plan.replaces:
            self.ledger.forget()
        return bool(plan.sizes) and self._large_enough(plan)

    def _large_enough(self, plan: _Plan) -> bool:
        policy, least = self.settings.policy, enough(self.blank.hidden_size)
        if plan.differs is not None:
            why = policy.too_small(plan.differs.documents, plan.differs.tokens, least)
            if why is not None and plan.differs.documents:
                self.say(f"{self.split}: what differs from what was sent is only {why}; it waits until it is more")
            if why is not None or not plan.replaces:
                return why is None
        whole = _total(plan.sizes.values())
        why = policy.too_small(whole.documents, whole.tokens, least)
        if why is not None and self.split == "statistics":
            todo = "add documents; or lower the least in worker.toml, if single ones may show"
            raise MoergeError(f"all there is to send is {why}", where="--data", todo=todo)
        if why is not None:
            self.say(f"{self.split}: all there is to send is {why}; it waits until it is more")
        return why is None

    def _summed(self, plan: _Plan, path: Path) -> Manifest | None:
        """The manifest of the file that holds the plan's sums; None if the data didn't give the plan any more."""
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
        """The passes over the layer groups; journals of other groups are removed."""
        begun = _parts(path)
        groups = max((int(part.stem.rpartition("-")[2]) for part in begun), default=1)
        passes = that_fit(self.work, self.settings, free_memory(self.settings), groups)
        others = [part for part in begun if not part.stem.endswith(f"-of-{len(passes)}")]
        if len(passes) > 1:
            self.say(f"the sums are computed in {described(passes)}")
            others += [path] * path.is_file()
        for other in others:
            self.say(f"{other.name} is of other layer groups; it is removed, and its sums are computed anew")
            other.unlink()
        return passes

    def _journal(self, plan: _Plan, path: Path, layers: range | None) -> Journal:
        kept = plan.sent if self._grows else frozenset()
        opened = partial(
            Journal,
            path,
            self.blank,
            seconds=self.settings.journal_seconds,
            before=self.path(self.ledger.files()[-1]) if kept else None,
            layers=layers,
        )
        journal = opened()
        if journal.shards - plan.sizes.keys() - kept or kept - journal.shards:
            self.say("the data has changed since the journal was begun; its sums are begun anew")
            path.unlink()
            journal = opened()
        return journal

    def _compute(
        self, plan: _Plan, journal: Journal, work: RouterPass | TrunkPass, before: int = 0, groups: int = 1
    ) -> Manifest | None:
        """Computes every planned shard that is not in the journal, which is then whole.

        `before` of all layer groups are done. None if the data didn't give the plan any more.
        """
        left = {name for name in plan.sizes if name not in journal.shards}
        done, total = (before + 1) * len(plan.sizes) - len(left), groups * len(plan.sizes)
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
        title += f", layers {named(work.layers)}" if work.layers is not None else ""
        tokens, tokens_left = _total(plan.sizes.values()).tokens, sum(plan.sizes[name].tokens for name in left)
        later = (groups - before - 1) * tokens
        self.watch.enter(Stage.COMPUTING)
        with self.watch.track(title, tokens, "tokens") as tracker:
            tracker.advance(tokens - tokens_left)
            self.watch.shards(done, total, tokens_left + later)
            if not left:
                return journal.save()
            hidden = self.blank.hidden_size
            again = self.data.shards(self.split, self.ledger, hidden, everything=plan.replaces, again=True)
            slots = actors.Slots(
                address=self.settings.ray_address,
                slots=self.settings.slots,
                work=work,
                statistics=self.settings.statistics,
                say=self.say,
                watch=self.watch,
            )
            for shard, sums in slots.compute(each_once(again)):
                journal.add(shard.name, sums)
                tracker.advance(shard.tokens)
                done, tokens_left = done + 1, tokens_left - shard.tokens
                self.watch.shards(done, total, tokens_left + later)
        return journal.save() if same and not left else None


def _parts(path: Path) -> list[Path]:
    """The journals of layer groups of a contribution."""
    return sorted(path.parent.glob(f"{path.stem}.*-of-*.part"))


def _total(sizes: Iterable[_Size | Sent]) -> _Size:
    each = list(sizes)
    return _Size(sum(size.documents for size in each), sum(size.tokens for size in each))


def _shards(file: Path) -> list[str]:
    with StatisticsFile(file) as opened:
        return opened.manifest.shards
