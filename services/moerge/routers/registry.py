"""Kinds of routers by name: the columns of a layer's router from its ridge solution. Importing them loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moerge_proto.recipes import Routers

if TYPE_CHECKING:
    from torch import Tensor

    Columns = Callable[[Tensor, Tensor, Sequence[float], Sequence[str]], Tensor]
    """The ridge solution and cross, [H, D] float64, and the columns' tokens and names -> [H, D] float64."""


@dataclass(frozen=True)
class RouterKind:
    """A kind of routers; `about` is a phrase for cards, forms and help texts."""

    name: Routers
    about: str
    columns: Columns


def _discriminants(solution: Tensor, cross: Tensor, tokens: Sequence[float], names: Sequence[str]) -> Tensor:
    from moerge.routers.discriminants import discriminants

    return discriminants(solution, cross, tokens, names)


def _ridge(solution: Tensor, cross: Tensor, tokens: Sequence[float], names: Sequence[str]) -> Tensor:
    from moerge.routers.ridge import unit_columns

    return unit_columns(solution, names)


ROUTERS: dict[Routers, RouterKind] = {
    kind.name: kind
    for kind in (
        RouterKind("discriminant", "linear discriminants", _discriminants),
        RouterKind("ridge", "ridge regression", _ridge),
    )
}
