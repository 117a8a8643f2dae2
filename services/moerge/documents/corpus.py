"""The documents of a domain, from its files, for its expert's tokenizer."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from moerge.documents.conversations import Document, Turns, conversation, encode, plain, require_template
from moerge.documents.files import data_files, silent
from moerge.documents.reader import BadLines, documents
from moerge.errors import MoergeError
from moerge.models.adapters import tokenizer_folder
from moerge.models.tokens import Tokens
from moerge.progress import Tracker

BAD_SHARE = 0.01
"""Share of the documents that may be unreadable; they are skipped."""


class Corpus:
    """Documents, read from the files at every use.

    Args:
        sources: paths, patterns, folders and fsspec URLs of documents.
        expert: folder with the tokenizer.
        text_field: field or column with a document's text.
        chat: field or column with a document's messages, read through the tokenizer's chat template; None reads texts.
        chat_turns: the turns of a conversation whose tokens count.
        bad_share: share of the documents that may be unreadable.
        say: gets a line about skipped documents.
        option: option of the sources, for errors.

    Raises:
        MoergeError: there are no such files, no tokenizer, or a chat template is missing.
    """

    def __init__(
        self,
        sources: Sequence[str],
        expert: Path,
        *,
        text_field: str = "text",
        chat: str | None = None,
        chat_turns: Turns = "all",
        bad_share: float = BAD_SHARE,
        say: Callable[[str], None] = silent,
        option: str = "--data",
    ) -> None:
        self._sources, self._say, self._bad_share, self._option = list(sources), say, bad_share, option
        self._field = text_field if chat is None else chat
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                tokenizer_folder(expert), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            todo = "save the expert's tokenizer in its folder (tokenizer.save_pretrained)"
            raise MoergeError("the tokenizer can't be read", where=str(expert), todo=todo) from error
        self._read: Callable[[Any], Document] = plain
        if chat is not None:
            require_template(self._tokenizer)
            self._read = partial(conversation, tokenizer=self._tokenizer, turns=chat_turns)
        self.size()

    def size(self) -> int:
        """Bytes of all files, as stored."""
        return sum(file.size for file in data_files(*self._sources, option=self._option))

    def documents(self, tracker: Tracker | None = None) -> Iterator[Document]:
        """All documents that aren't empty, in a fixed order; unreadable ones are reported in the first full pass."""
        files = data_files(*self._sources, option=self._option, say=self._say)
        bad = BadLines(self._bad_share, self._say)
        yield from (each for each in documents(files, self._field, self._read, bad, tracker) if each.text)
        self._say = silent

    def encode(self, document: Document) -> Tokens:
        """A document's tokens."""
        return encode(self._tokenizer, document)
