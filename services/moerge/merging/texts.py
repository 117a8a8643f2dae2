"""The texts of a domain in a merge on one machine: documents for its statistics, and scored windows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from moerge.documents.corpus import Corpus
from moerge.documents.shards import cut
from moerge.documents.splits import Split, split_digest, split_of, text_digest
from moerge.models.tokens import Tokens
from moerge.progress import Progress, Tracker
from moerge.scoring.perplexity import Window, windows
from moerge_proto.statistics_file import StatisticsSettings

FEW_DOCUMENTS = 20
"""With fewer documents, such as one plain text file, pieces of a window's size count as documents."""


@dataclass(frozen=True)
class Texts:
    """A domain's documents. A digest of each decides its split, so equal documents are in one split.

    Attributes:
        corpus: the documents.
        settings: of their features.
        held_out_share: of all documents.
        in_pieces: whether documents are cut into pieces of a window first.
    """

    corpus: Corpus
    settings: StatisticsSettings
    held_out_share: float
    in_pieces: bool = False

    def __iter__(self) -> Iterator[Tokens]:
        """The documents for statistics."""
        return self.of("statistics")

    def of(self, split: Split, tracker: Tracker | None = None) -> Iterator[Tokens]:
        """The documents of a split."""
        return (tokens() for _, tokens in self.named(split, tracker))

    def named(self, split: Split, tracker: Tracker | None = None) -> Iterator[tuple[bytes, Callable[[], Tokens]]]:
        """The digest of each document of a split, and a function for its tokens."""
        for text, tokens in self._documents(tracker):
            if split_of(split_digest(text), 0, self.held_out_share) == split:
                yield text_digest(text), tokens

    def _documents(self, tracker: Tracker | None) -> Iterator[tuple[str, Callable[[], Tokens]]]:
        for document in self.corpus.documents(tracker):
            if not self.in_pieces:
                yield document.text, partial(self.corpus.encode, document)
                continue
            for piece in self.corpus.encode(document).pieces(self.settings.context):
                yield " ".join(map(str, piece.ids)), partial(_same, piece)


def _same(tokens: Tokens) -> Tokens:
    return tokens


@dataclass(frozen=True)
class Survey:
    """The size of a domain's texts.

    Attributes:
        domain: its label.
        texts: the documents for its statistics.
        documents, tokens: of the statistics; tokens that count.
        scored: windows of held-out documents.
    """

    domain: str
    texts: Texts
    documents: int
    tokens: int
    scored: list[Window]


def survey(domain: str, texts: Texts, most: int, progress: Progress) -> Survey:
    """Reads a domain's texts; windows have about `most` tokens. Few documents are cut into pieces first."""
    if sum(1 for _ in islice(texts.corpus.documents(), FEW_DOCUMENTS)) < FEW_DOCUMENTS:
        texts = replace(texts, in_pieces=True)
    documents = tokens = 0
    with progress.track(f"reading texts of {domain}", texts.corpus.size(), "B") as tracker:
        for each in texts.of("statistics", tracker):
            if rows := cut(each, texts.settings):
                documents += 1
                tokens += sum(row.count for row in rows)
    return Survey(domain, texts, documents, tokens, _scored(texts, most) if most else [])


def _scored(texts: Texts, most: int) -> list[Window]:
    context = texts.settings.context
    found: list[Window] = []
    tokens = 0
    for document in texts.of("held-out"):
        for window in windows([document], context, max(1, context // 2)):
            if tokens >= most:
                return found
            found.append(window)
            tokens += window.scored
    return found
