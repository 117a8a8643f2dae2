"""Every head method by name."""

from collections.abc import Mapping
from typing import NamedTuple

from moerge_proto.bodies import HeadMethod


class HeadKind(NamedTuple):
    """A way to make a head. `solved`: from head contributions. Raise `revision` with a changed formula."""

    name: HeadMethod
    about: str
    solved: bool = False
    revision: int = 1


HEADS: Mapping[str, HeadKind] = {
    kind.name: kind
    for kind in (
        HeadKind("seed", "the seed's own, unchanged"),
        HeadKind("average", "mean of the experts (DUME)"),
        HeadKind("regmean", "least squares on owners' grams", solved=True),
    )
}
