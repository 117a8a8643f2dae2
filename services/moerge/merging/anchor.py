"""The anchor: the seed as one more expert of a version, for text of no owner's domain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from moerge.documents.pool import encoded_pool
from moerge.documents.shards import cut
from moerge.errors import MoergeError
from moerge.merging.settings import VersionSettings
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge_proto.options import ANCHOR
from moerge_proto.statistics_file import StatisticsSettings


@dataclass(frozen=True)
class PoolText:
    """The pool's texts as the text of a domain; a fit takes all of them."""

    documents: Sequence[Tokens]

    @classmethod
    def of(cls, seed: DenseExpert) -> Self:
        return cls(encoded_pool(seed.tokenizer))

    def __iter__(self) -> Iterator[Tokens]:
        return iter(self.documents)

    def sample(self, settings: StatisticsSettings, tokens: int, least_documents: int) -> list[list[Tokens]]:
        return [cut(document, settings) for document in self.documents]


def new_anchor(settings: VersionSettings, *, first: bool) -> list[DenseExpert]:
    """The anchor of a first version that has one, or nothing."""
    return [anchor_of(settings.base)] if settings.recipe.anchor and first else []


def anchor_of(base: DenseExpert | None) -> DenseExpert:
    """The base model as the expert `general`; an error without one."""
    if base is None:
        raise MoergeError("the anchor is the seed model, which is missing", where="`base`", todo="name it")
    return replace(base, domain=ANCHOR)
