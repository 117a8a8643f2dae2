"""An owner's data: documents, split by their digest under the owner's key, and cut into shards."""

import hmac
from collections.abc import Callable, Iterator

from moerge.documents.conversations import Document
from moerge.documents.corpus import Corpus
from moerge.documents.shards import Shard, plan
from moerge.documents.splits import Split, split_of
from moerge.models.tokens import Tokens
from moerge.progress import Tracker
from moerge_workers.data.shard_key import read_key
from moerge_workers.leaving.ledger import Ledger
from moerge_workers.settings import Settings


def document_mac(key: bytes, text: str) -> bytes:
    """HMAC-SHA-256 of a document's text. It never leaves; it determines the split and identifies sent documents."""
    return hmac.digest(key, text.encode(), "sha256")


class Data:
    """The documents of the settings, read again for each call. `key`: default the home's.

    Raises:
        MoergeError: files, tokenizer or a required chat template are missing.
    """

    def __init__(self, settings: Settings, say: Callable[[str], None], key: bytes | None = None) -> None:
        self._settings = settings
        self._corpus = Corpus(
            settings.data,
            settings.expert,
            text_field=settings.text_field,
            chat=settings.chat,
            chat_turns=settings.chat_turns,
            bad_share=settings.bad_share,
            say=say,
        )
        self._key = read_key(settings.home) if key is None else key

    def size(self) -> int:
        """Bytes of all files, as stored."""
        return self._corpus.size()

    def encode(self, document: Document) -> Tokens:
        """A document's tokens."""
        return self._corpus.encode(document)

    def documents(self, tracker: Tracker | None = None) -> Iterator[tuple[bytes, Split, Document]]:
        """(mac, split, document) of all non-empty documents, in a fixed order."""
        for document in self._corpus.documents(tracker):
            mac = document_mac(self._key, document.text)
            yield mac, split_of(mac, self._settings.tuning_share, self._settings.held_out_share), document

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
        """The shards of the documents that the ledger wants (see its `begin`); it sees the whole split."""
        key = self._key if split == "statistics" else document_mac(self._key, split)

        def wanted() -> Iterator[Document]:
            ledger.begin(everything=everything, again=again)
            for mac, own, document in self.documents(tracker):
                if own == split and ledger.see(mac):
                    yield document

        return plan(wanted(), self.encode, self._settings.statistics, hidden_size, key)
