"""The pool: short public texts of many kinds that come with the library."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from transformers import PreTrainedTokenizerBase

from moerge.documents.conversations import encode, plain
from moerge.errors import ContributionError
from moerge.models.tokens import Tokens
from moerge_proto.digests import Digest
from moerge_proto.statistics_file import POOL, Privacy, TextBefore

_FILE = Path(__file__).with_name("pool.txt")
_BETWEEN = "\n%\n"
_WORD = 8  # bytes of a digest that choose a text


@cache
def pool_texts() -> tuple[str, ...]:
    """The texts of the pool, in the order of its file, which `moerge_proto.statistics_file.POOL` names."""
    return tuple(_FILE.read_text(encoding="utf-8").removesuffix("\n").split(_BETWEEN))


def encoded_pool(tokenizer: PreTrainedTokenizerBase, most: int | None = None) -> list[Tokens]:
    """Each text of the pool, or its `most` first tokens."""
    return [encode(tokenizer, plain(text))[:most] for text in pool_texts()]


def require_public(privacy: Privacy | None) -> None:
    """Requires that whitenings are of the library's pool; ContributionError if the settings name another one."""
    if privacy is not None:
        _require(privacy.public, "settings.privacy.public")


def require_pool(before: TextBefore | None) -> None:
    """Requires the library's pool, because a pool of someone's choice would ask an owner's text again.

    Raises:
        ContributionError: it names another one.
    """
    if before is not None:
        _require(before.pool, "settings.before.pool")


def _require(found: Digest, where: str) -> None:
    if found != POOL:
        what = f"expected the pool of this moerge, {POOL}, found {found}"
        raise ContributionError(what, where=where, todo="leave it out, and use the same release")


@dataclass(frozen=True)
class Pool:
    """The pool for a tokenizer, with the key that chooses the text before a piece.

    Attributes:
        ids: of each text, its first tokens.
    """

    settings: TextBefore
    ids: Sequence[Sequence[int]]
    key: bytes

    @classmethod
    def of(cls, settings: TextBefore | None, tokenizer: PreTrainedTokenizerBase, key: bytes) -> Self | None:
        """The pool that the settings name; None: they name none."""
        require_pool(settings)
        if settings is None:
            return None
        return cls(settings, [text.ids for text in encoded_pool(tokenizer, settings.tokens)], key)

    def behind(self, piece: Tokens) -> Tokens:
        """The piece behind its text.

        An HMAC of the piece chooses it, so that neither its neighbours nor the order of documents matter.
        """
        digest = hmac.digest(self.key, b"before" + piece.packed, "sha256")
        place = int.from_bytes(digest[:_WORD], "little") % len(self.ids)
        return piece.behind(self.ids[place][: len(piece)])
