"""The plan of a contribution: unsent shards, and the policy's decision about them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from moerge.documents.shards import enough
from moerge.errors import MoergeError
from moerge_proto.digests import digest_of
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import MAX_SHARDS, Manifest, StatisticsFile
from moerge_workers.computing.finishing import Finishing
from moerge_workers.data.documents import Data
from moerge_workers.data.first_documents import too_little
from moerge_workers.outgoing.ledger import Ledger, Sent
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events


@dataclass(frozen=True)
class Size:
    documents: int
    tokens: int


def total(sizes: Iterable[Size | Sent]) -> Size:
    counts = [(size.documents, size.tokens) for size in sizes]
    return Size(sum(documents for documents, _ in counts), sum(tokens for _, tokens in counts))


@dataclass(frozen=True)
class Plan:
    """The shards to compute.

    Attributes:
        sizes: name -> size of every shard.
        sent: names of the sent ones.
        replaces: whether the contribution replaces all sent ones.
        differs: documents and tokens of the difference from all sent ones; None: no difference, or nothing sent.
    """

    sizes: dict[str, Size]
    sent: frozenset[str]
    replaces: bool
    differs: Size | None


@dataclass(frozen=True)
class Planner:
    """Plans contributions of one kind and split; `blank`: the manifest without counts and shards."""

    settings: Settings
    data: Data
    events: Events
    blank: Manifest
    ledger: Ledger
    finishing: Finishing

    @property
    def grows(self) -> bool:
        """Tell whether a contribution has all sent documents, not only new ones."""
        return self.blank.under is None

    @property
    def how(self) -> str:
        """The digest of the settings that turn documents into sums."""
        turns = None if self.settings.chat is None else self.settings.chat_turns
        return digest_of({"settings": self.blank.settings.model_dump(), "turns": turns})

    def plan(self) -> Plan:
        """Read the documents of the split, and plan their shards.

        Features under similar bodies are similar, so the difference of their sums shows documents that only one has.
        Under another body the documents are those of the last contribution, until enough were added or removed.
        """
        self.ledger.within_last(only=False)
        if not self.ledger.is_of_last() and not self._may_differ():
            return Plan({}, frozenset(), replaces=False, differs=Size(0, 0))
        return self._planned()

    def _may_differ(self) -> bool:
        """Decide which documents to use under another body than the last one's; False: wait."""
        sizes, least = self._sizes(everything=True), enough(self.blank.hidden_size)
        added, gone = self.ledger.since_last()
        whole = total(sizes.values())
        tokens = (added + gone) * whole.tokens // max(whole.documents, 1)  # of documents of average length
        why = self.settings.policy.too_small(added + gone, tokens, least)
        if why is None or not added + gone:
            return True
        rule = f"too few were added or removed since the last contribution under another body: {why}"
        if gone:
            self.events.say(f"{self.blank.split}: waiting, because {rule}")
            return False
        self.events.say(f"{self.blank.split}: {added:,} new documents wait, because {rule}")
        self.ledger.within_last(only=True)
        return True

    def _planned(self) -> Plan:
        counted = self.ledger.files()[-1:] if self.grows else self.ledger.files()
        files = [self.ledger.path(item.name) for item in counted]
        if files and (not self.ledger.made_as(self.how) or (self.grows and not files[0].is_file())):
            return self._anew()
        sizes = self._sizes(everything=False)
        others = any(item.expert != self.blank.expert for item in counted)
        if files and (others or self.ledger.gone()):
            return self._instead(total(counted), total(sizes.values()), others=others)
        sent = frozenset(name for file in files if file.is_file() for name in _shards(file))
        sizes = {name: size for name, size in sizes.items() if name not in sent}
        return Plan(sizes, sent, replaces=False, differs=total(sizes.values()) if files else None)

    def _anew(self) -> Plan:
        """All documents, because the sent ones have other settings, or their file is lost."""
        sizes = self._sizes(everything=True)
        documents = self.ledger.added() + self.ledger.gone()  # all tokens may differ
        differs = Size(documents, total(sizes.values()).tokens) if documents else None
        return Plan(sizes, frozenset(), replaces=True, differs=differs)

    def _instead(self, before: Size, added: Size, *, others: bool) -> Plan:
        """All documents, because some sent ones were removed, or `others`: they were summed with another expert's MLPs.

        `before`: size of all sent ones. Other MLPs alone are no difference: the sums of the first layer are equal.
        """
        if gone := self.ledger.gone():
            self.events.say(
                f"{gone:,} sent documents were removed; one contribution over the rest replaces all earlier ones"
            )
        sizes = self._sizes(everything=True)
        left = total(sizes.values())
        documents = 2 * added.documents + before.documents - left.documents
        tokens = 2 * added.tokens + before.tokens - left.tokens
        is_same = others and not documents
        return Plan(sizes, frozenset(), replaces=True, differs=None if is_same else Size(documents, tokens))

    def _sizes(self, *, everything: bool) -> dict[str, Size]:
        self.events.enter(Stage.READING)
        with self.events.track("reading documents", self.data.size(), "B") as tracker:
            shards = self.data.shards(self.blank, self.ledger, everything=everything, tracker=tracker)
            return {shard.name: Size(shard.documents, shard.tokens) for shard in shards}

    def is_worth_sending(self, plan: Plan) -> bool:
        """Tell whether there is something to send, and enough for the policy; else prints the reason.

        Raises:
            MoergeError: the whole statistics split is too little.
        """
        if not plan.sizes and self.blank.split == "statistics" and (plan.replaces or plan.differs is None):
            todo = "check `text_field` or `chat`, and the shares"
            raise MoergeError("no document has a token that counts", where="`data`", todo=todo)
        if (shards := len(plan.sizes) + len(plan.sent) * self.grows) > MAX_SHARDS:
            todo = "name fewer files now, and the rest in a later run, as a further contribution"
            raise MoergeError(
                f"{shards:,} shards; the maximum of a contribution is {MAX_SHARDS:,}", where="`data`", todo=todo
            )
        if not plan.sizes and plan.replaces:
            self.ledger.forget()
        if not plan.sizes or not self._is_large_enough(plan):
            return False
        finishing = self.finishing
        if finishing.cost and (
            spent := self.ledger.overspent(finishing.cost, finishing.most, everything=plan.replaces)
        ):
            raise finishing.overspent(spent)
        return True

    def _is_large_enough(self, plan: Plan) -> bool:
        policy, least, split = self.settings.policy, enough(self.blank.hidden_size), self.blank.split
        if plan.differs is not None:
            why = policy.too_small(plan.differs.documents, plan.differs.tokens, least)
            if why is not None and plan.differs.documents:
                self.events.say(
                    f"{split}: waiting, because the difference from the sent contributions is too small: {why}"
                )
            if why is not None or not plan.replaces:
                return why is None
        whole = total(plan.sizes.values())
        why = policy.too_small(whole.documents, whole.tokens, least)
        if why is not None and split == "statistics":
            raise too_little(why)
        if why is not None:
            self.events.say(f"{split}: too little to send yet: {why}")
        return why is None


def _shards(file: Path) -> list[str]:
    with StatisticsFile(file) as opened:
        return opened.manifest.shards
