"""The documents of a domain, from its files, for its expert's tokenizer."""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

from moerge.documents.chat_templates import date_notice
from moerge.documents.conversations import (
    Document,
    Turns,
    conversation,
    encode,
    plain,
    require_rows,
    require_template,
)
from moerge.documents.files import data_files, silent
from moerge.documents.reader import BadLines, placed
from moerge.documents.splits import Split, SplitRule
from moerge.documents.text import Text
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens
from moerge.progress import NoProgress, Progress, Tracker

BAD_SHARE = 0.01
"""Share of the documents that may be unreadable; they are skipped."""
FEW_DOCUMENTS = 20
"""With fewer documents, such as one plain text file, pieces of a context's size count as documents."""


class Corpus:
    """The documents of a domain in its files, with the rule of their splits.

    `read` tokenises all of them once. `documents` streams them, for an owner's text that may not be copied.

    Args:
        sources: paths, patterns, folders and fsspec URLs of documents.
        expert: with the tokenizer.
        text_field: field or column with a document's text.
        chat: field or column with a document's messages, read through the tokenizer's chat template; None reads texts.
        chat_turns: the turns of a conversation whose tokens count.
        bad_share: share of the documents that may be unreadable.
        settings: names of the caller's settings among `text_field`, `chat` and `bad_share`, for errors.
        where: names the sources in errors.
    """

    def __init__(
        self,
        sources: Sequence[str],
        expert: DenseFiles,
        rule: SplitRule | None = None,
        *,
        text_field: str = "text",
        chat: str | None = None,
        chat_turns: Turns = "all",
        bad_share: float = BAD_SHARE,
        settings: Collection[str] = (),
        say: Callable[[str], None] = silent,
        where: str = "`data`",
    ) -> None:
        self._sources, self._say, self._bad_share, self._where = list(sources), say, bad_share, where
        self._remedies, self._notice = settings, ""
        self._rule = rule or SplitRule()
        self.size()
        self._field = text_field if chat is None else chat
        self._expert, self._tokenizer = expert, expert.tokenizer
        self._read: Callable[[Any], Document] = plain
        if chat is not None:
            require_template(self._tokenizer)
            self._notice = date_notice(self._tokenizer)
            self._read = partial(conversation, tokenizer=self._tokenizer, turns=chat_turns)

    def under(self, rule: SplitRule) -> Self:
        """The same documents with another rule."""
        other = copy(self)
        other._rule = rule
        return other

    def size(self) -> int:
        return sum(file.size for file in data_files(*self._sources, where=self._where))

    def documents(self, tracker: Tracker | None = None) -> Iterator[tuple[bytes, Split, Document]]:
        """(digest, split, document) of all documents that aren't empty, in a fixed order."""
        for document in self._documents(tracker):
            digest, place = self._rule.named(document.text)
            yield digest, self._rule.split(place), document

    def first_texts(self) -> Iterator[str]:
        """The texts of the first documents, such as for a comparison of tokenizers."""
        return (document.text for document in islice(self._documents(None), FEW_DOCUMENTS))

    def encode(self, document: Document) -> Tokens:
        """A document's tokens; MoergeError if the expert's embedding has no row for one."""
        tokens = encode(self._tokenizer, document)
        require_rows(tokens.ids, self._expert, document.place or self._where)
        return tokens

    def read(
        self,
        title: str = "",
        progress: Progress | None = None,
        *,
        context: int | None = None,
        folder: Path | None = None,
    ) -> Text:
        """Tokenises all documents into a file in `folder`, by default the system's temporary one.

        A few documents are cut into pieces of `context`; None: they stay whole.
        """
        with (progress or NoProgress()).track(title, self.size(), "B") as tracker:
            return Text.of(self._named(tracker, context), self._rule, folder)

    def _named(self, tracker: Tracker, context: int | None) -> Iterator[tuple[str, Tokens]]:
        """Each document's text and tokens. A piece is named by its ids."""
        documents = self._documents(tracker)
        first = list(islice(documents, FEW_DOCUMENTS))
        for document in chain(first, documents):
            tokens = self.encode(document)
            if context is None or len(first) == FEW_DOCUMENTS:
                yield document.text, tokens
                continue
            for piece in tokens.pieces(context):
                yield " ".join(map(str, piece.ids)), piece

    def _documents(self, tracker: Tracker | None) -> Iterator[Document]:
        files = data_files(*self._sources, where=self._where, say=self._say)
        if self._notice:
            self._say(self._notice)
            self._notice = ""
        bad = BadLines(self._bad_share, self._say, self._remedies)
        for place, document in placed(files, self._field, self._read, bad, tracker):
            if document.text:
                yield replace(document, place=place)
        self._say = silent
