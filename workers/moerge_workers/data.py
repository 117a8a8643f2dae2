"""An owner's data: documents, split by their digest under the owner's key, and cut into shards."""

import hmac
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from transformers import AutoTokenizer

from moerge.documents.conversations import Document, conversation, encode, plain, require_template
from moerge.documents.files import data_files, silent
from moerge.documents.reader import BadLines, documents
from moerge.documents.shards import Shard, plan
from moerge.errors import MoergeError
from moerge.models.tokens import Tokens
from moerge.progress import Tracker
from moerge_workers.identity import read_key
from moerge_workers.ledger import Ledger
from moerge_workers.settings import Settings

Split = Literal["statistics", "tuning", "held-out"]


def document_mac(key: bytes, text: str) -> bytes:
    """HMAC-SHA-256 of a document's text. It stays at home: it decides the split, and tells which were sent."""
    return hmac.digest(key, text.encode(), "sha256")


def split_of(mac: bytes, tuning_share: float, held_out_share: float) -> Split:
    """A document's split: a function of its text and the owner's key alone.

    Held-out documents are taken from the lower end of [0, 1), tuning ones from the upper, so a share that grows keeps
    what it had, and changes nothing of the other.
    """
    place = (int.from_bytes(mac[:8], "big") >> 11) / 2**53
    if place < held_out_share:
        return "held-out"
    return "tuning" if place >= 1 - tuning_share else "statistics"


class Data:
    """The documents that the settings name; read anew whenever they are asked for.

    Raises:
        MoergeError: there are no such files, no tokenizer, or no chat template where one is needed.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings, self._say = settings, say
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(settings.expert, local_files_only=True)
        except (OSError, ValueError) as error:
            todo = "save the expert's tokenizer beside its weights (tokenizer.save_pretrained)"
            raise MoergeError("no tokenizer can be read", where=str(settings.expert), todo=todo) from error
        self._key = read_key(settings.home)
        if settings.chat is not None:
            require_template(self._tokenizer)
        self.size()

    def size(self) -> int:
        """Bytes of all files, as stored."""
        return sum(file.size for file in data_files(*self._settings.data))

    def encode(self, document: Document) -> Tokens:
        """A document's tokens."""
        return encode(self._tokenizer, document)

    def documents(self, tracker: Tracker | None = None) -> Iterator[tuple[bytes, Split, Document]]:
        """(mac, split, document) of all that isn't empty, in a fixed order; what can't be read is told once."""
        settings = self._settings
        files = data_files(*settings.data, say=self._say)
        bad = BadLines(settings.bad_share, self._say)
        self._say = silent
        read: Callable[[Any], Document] = plain
        if settings.chat is not None:
            read = partial(conversation, tokenizer=self._tokenizer, turns=settings.chat_turns)
        field = settings.text_field if settings.chat is None else settings.chat
        for document in documents(files, field, read, bad, tracker):
            if document.text:
                mac = document_mac(self._key, document.text)
                yield mac, split_of(mac, settings.tuning_share, settings.held_out_share), document

    def shards(
        self,
        split: Split,
        ledger: Ledger,
        hidden_size: int,
        *,
        everything: bool,
        again: bool = False,
        tracker: Tracker | None = None,
    ) -> Iterator[Shard]:
        """The shards of a split's documents that the ledger wants (see its `begin`), which sees all of the split."""
        key = self._key if split == "statistics" else document_mac(self._key, split)

        def wanted() -> Iterator[Document]:
            ledger.begin(everything=everything, again=again)
            for mac, own, document in self.documents(tracker):
                if own == split and ledger.see(mac):
                    yield document

        return plan(wanted(), self.encode, self._settings.statistics, hidden_size, key)
