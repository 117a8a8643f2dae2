"""Public texts: the pool, short texts of many kinds that come with the library, or texts that an operator names."""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from transformers import PreTrainedTokenizerBase

from moerge.documents.conversations import encode, plain
from moerge.documents.reader import read_texts
from moerge.errors import ContributionError
from moerge.models.tokens import Tokens
from moerge_proto.digests import Digest, digest_of
from moerge_proto.statistics_file import POOL, Privacy, TextBefore

_FILE = Path(__file__).with_name("pool.txt")
_BETWEEN = "\n%\n"
_PUBLIC = "settings.privacy.public"
_WORD = 8  # bytes of a digest that choose a text
MOST_PUBLIC_BYTES = 2**20
"""Of a public text in UTF-8."""


@cache
def pool_texts() -> tuple[str, ...]:
    """The texts of the pool, in the order of its file, which `moerge_proto.statistics_file.POOL` names."""
    return tuple(_FILE.read_text(encoding="utf-8").removesuffix("\n").split(_BETWEEN))


def encoded_pool(tokenizer: PreTrainedTokenizerBase, most: int | None = None) -> list[Tokens]:
    """Each text of the pool, or its `most` first tokens."""
    return [text[:most] for text in PublicDocuments().encoded(tokenizer)]


@dataclass(frozen=True)
class PublicDocuments:
    """Texts from which whitenings follow, by default the pool; the digest doesn't depend on their order."""

    digest: Digest = POOL
    texts: Sequence[str] = field(default_factory=pool_texts)

    @classmethod
    def read(cls, source: str, where: str) -> Self:
        """The distinct documents of a file, in the field `text`; `where` names the source.

        Raises:
            MoergeError: it can't be read, has no text, or more than MOST_PUBLIC_BYTES.
        """
        return cls.of(read_texts([source], "text", MOST_PUBLIC_BYTES, where))

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """The distinct ones of texts."""
        distinct = sorted(set(texts))
        return cls(digest_of([*distinct]), distinct)

    def encoded(self, tokenizer: PreTrainedTokenizerBase) -> list[Tokens]:
        return [encode(tokenizer, plain(text)) for text in self.texts]

    def require(self, privacy: Privacy | None) -> None:
        """Requires that whitenings are of this text.

        Raises:
            ContributionError: the settings name another one.
        """
        if privacy is not None:
            _require(privacy.public, [self.digest], _PUBLIC, "give the text that they name")


def require_public(privacy: Privacy | None, named: Digest | None) -> None:
    """Requires the pool, or the public text of this digest; ContributionError if the settings name another one."""
    if privacy is not None:
        todo = (
            "set `public` in [privacy] to the text that the operator names, or leave it out; or ask the operator to "
            "name yours in public_text of coordinator.toml"
        )
        _require(privacy.public, [POOL, *([named] if named else [])], _PUBLIC, todo)


def require_pool(before: TextBefore | None) -> None:
    """Requires the library's pool, because a pool of someone's choice would ask an owner's text again.

    Raises:
        ContributionError: it names another one.
    """
    if before is not None:
        _require(before.pool, [POOL], "settings.before.pool", "leave it out, and use the same release")


def _require(found: Digest, known: Sequence[Digest], where: str, todo: str) -> None:
    if found not in known:
        names = [f"the pool of this moerge, {POOL}" if item == POOL else f"the text {item}" for item in known]
        raise ContributionError(f"expected {', or '.join(names)}, found {found}", where=where, todo=todo)


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

    def behind(self, piece: Tokens) -> list[Tokens]:
        """The piece behind each of its texts, which are two different ones if there are two.

        An HMAC of the piece chooses them, so that neither its neighbours nor the order of documents matter.
        """
        digest = hmac.digest(self.key, b"before" + piece.packed, "sha256")
        one, other = (int.from_bytes(digest[start : start + _WORD], "little") for start in (0, _WORD))
        first = one % len(self.ids)
        chosen = [first, (first + 1 + other % (len(self.ids) - 1)) % len(self.ids)]
        return [piece.behind(self.ids[place][: len(piece)]) for place in chosen[: self.settings.views]]
