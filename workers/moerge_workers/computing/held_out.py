"""Held-out documents: counted within the policy's limits, and scored by a model."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from moerge.models.tokens import Tokens
from moerge.progress import Tracker
from moerge.scoring.perplexity import Window, windows
from moerge.scoring.streamed import StreamedModel
from moerge_proto.evaluations import Scored
from moerge_workers.data.documents import Data
from moerge_workers.outgoing.ledger import Ledger
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

_BLOCK_TOKENS = 2**17  # in micro-batches of their own


class NotNowError(Exception):
    """A version can't be evaluated now; the message has the reason."""


@dataclass(frozen=True)
class Counted:
    """The documents to score.

    Attributes:
        documents: their number.
        tokens: number of scored tokens.
        digest: of the documents, in order.
        earlier: whether documents added since the last evaluation are left out.
    """

    documents: int
    tokens: int
    digest: str
    earlier: bool


@dataclass(frozen=True)
class HeldOut:
    """The owner's held-out documents; `ledger` has the last evaluation's."""

    settings: Settings
    data: Data
    events: Events
    ledger: Ledger

    def counted(self) -> Counted:
        """The documents that the policy allows to score: enough, and no or enough differences from the last evaluation.

        Raises:
            NotNowError: too few documents.
        """
        result, least = self._count(earlier=False), self.settings.policy.min_documents
        gone = self.ledger.gone()
        changed = gone + self.ledger.added()
        if self.ledger.files() and 0 < changed < least:
            if gone:
                raise NotNowError(
                    f"{changed:,} held-out documents were added or removed since the last evaluation, too few for a "
                    f"difference; the policy's min_documents is {least:,}"
                )
            result = self._count(earlier=True)
        if result.documents < least:
            raise NotNowError(f"{result.documents:,} held-out documents; the policy's min_documents is {least:,}")
        return result

    def score(self, model: StreamedModel, title: str, counted: Counted) -> Scored:
        """A model's summed negative log-likelihood of the documents; NotNowError: they changed since the count."""
        nll, tokens, mark = 0.0, 0, hashlib.sha256()
        documents = _marked(self._documents(earlier=counted.earlier), mark.update)
        with self.events.track(title, counted.tokens, "tokens") as tracker:
            for done in model.scores(_blocks(documents, self.settings.statistics.context), tracker):
                nll, tokens = nll + done.nll, tokens + done.tokens
        if mark.hexdigest() != counted.digest:
            raise NotNowError("the data changed during the evaluation")
        return Scored(nll=nll, tokens=tokens)

    def _count(self, *, earlier: bool) -> Counted:
        mark, documents, tokens = hashlib.sha256(), 0, 0
        with self.events.track("reading held-out documents", self.data.size(), "B") as tracker:
            for read in _marked(self._documents(earlier=earlier, tracker=tracker), mark.update):
                documents += 1
                tokens += read[1:].count
        return Counted(documents, tokens, mark.hexdigest(), earlier)

    def _documents(self, *, earlier: bool, tracker: Tracker | None = None) -> Iterator[tuple[bytes, Tokens]]:
        """(mac, tokens) of each document with a token to score; `earlier`: only of documents sent before."""
        most = self.settings.statistics.tokens_per_document
        self.ledger.begin()
        for mac, split, document in self.data.documents(tracker):
            if split == "held-out" and not (self.ledger.see(mac) and earlier):
                tokens = self.data.encode(document).first(most)
                if tokens[1:].count:
                    yield mac, tokens


def _marked(documents: Iterable[tuple[bytes, Tokens]], note: Callable[[bytes], None]) -> Iterator[Tokens]:
    """The documents' tokens; `note` receives each document's identity."""
    for mac, tokens in documents:
        note(mac + len(tokens).to_bytes(8, "big"))
        yield tokens


def _blocks(documents: Iterable[Tokens], context: int) -> Iterator[list[Window]]:
    """Windows that advance by half a context, a few documents at a time, without windows that score no token."""
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
