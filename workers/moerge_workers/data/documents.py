"""An owner's data: documents, split by their digest under the owner's key, and cut into shards."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from moerge.documents.conversations import Document
from moerge.documents.corpus import Corpus
from moerge.documents.pool import Pool
from moerge.documents.shards import Shard, plan
from moerge.documents.splits import SplitRule, document_mac
from moerge.files import atomic_file
from moerge.models.dense_files import DenseFiles
from moerge.progress import Tracker
from moerge_proto.statistics_file import Manifest
from moerge_workers.outgoing.ledger import Ledger
from moerge_workers.settings import Settings


def read_key(home: Path) -> bytes:
    """The key of shard names, made on first use with mode 0600. Without it a name reveals nothing of the text."""
    path = home / "key"
    if not path.is_file():
        with atomic_file(path, private=True) as file:
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


class Data(Corpus):
    """The documents of the settings, for the expert's tokenizer; read again by each call. `key`: default the home's."""

    def __init__(
        self, settings: Settings, expert: DenseFiles, say: Callable[[str], None], key: bytes | None = None
    ) -> None:
        self._settings = settings
        self._key = read_key(settings.home) if key is None else key
        super().__init__(
            settings.data,
            expert,
            SplitRule(settings.held_out_share, settings.tuning_share, self._key),
            text_field=settings.text_field,
            chat=settings.chat,
            chat_turns=settings.chat_turns,
            bad_share=settings.bad_share,
            settings=("text_field", "chat", "bad_share"),
            say=say,
        )

    def shards(
        self,
        blank: Manifest,
        ledger: Ledger,
        *,
        everything: bool,
        again: bool = False,
        tracker: Tracker | None = None,
    ) -> Iterator[Shard]:
        """The shards of the documents that the ledger wants (see its `begin`); it sees the manifest's whole split."""
        split, settings = blank.split, blank.settings
        key = self._key if split == "statistics" else document_mac(self._key, split)
        pool = Pool.of(settings.before, self._tokenizer, key)

        def wanted() -> Iterator[Document]:
            ledger.begin(everything=everything, again=again)
            for mac, part, document in self.documents(tracker):
                if part == split and ledger.see(mac):
                    yield document

        return plan(wanted(), self.encode, settings, blank.hidden_size, key, pool)
