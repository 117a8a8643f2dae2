"""Trunks: every non-MLP parameter, merged over an ordered list of experts."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message

TrunkMethod = Literal["average", "weighted", "base", "ties", "dare", "regmean", "moerge"]
"""average (DUME); weighted; base: one model's own; ties, dare (MergeME); regmean: least squares on owners' grams;
moerge: the same for MLPs that owners fit to it, with a context head."""
SOLVED: tuple[TrunkMethod, ...] = ("regmean", "moerge")
"""Those that are solved from owners' trunk contributions."""


class TrunkOptions(Message):
    """What some methods take besides the experts. What a method doesn't use must be left out.

    `weights`: domain -> weight, 1 for those not named (weighted). `base`: the digest of a registered expert, whose
    trunk this is (base), or from which task vectors start (ties, dare). `retain`: share of a task vector's elements
    that is kept, `scale`: what their sum is multiplied by (ties, dare; MergeME appendix). `seed` (dare).
    `context_head` adds a context head (regmean, moerge).
    """

    weights: dict[Name, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    base: Digest | None = None
    retain: float = Field(default=0.8, gt=0, le=1)
    scale: float = Field(default=1 / 3, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, lt=2**53)
    context_head: bool = Field(default=False, exclude_if=lambda value: not value)


_USED: dict[str, set[str]] = {
    "average": set(),
    "weighted": {"weights"},
    "base": {"base"},
    "ties": {"base", "retain", "scale"},
    "dare": {"base", "retain", "scale", "seed"},
    **{method: {"context_head"} for method in SOLVED},
}
_NEEDED = ("weights", "base")


class NewTrunk(Message):
    """Asks for a merge of `experts` in this order; None means every ready expert but the base, in order of arrival.

    `round` names a round for trunk contributions instead of experts: those that have contributed are merged, once all
    have, or enough of them by the deadline.
    """

    method: TrunkMethod = "average"
    experts: list[Digest] | None = Field(default=None, min_length=1)
    options: TrunkOptions = TrunkOptions()
    round: Name | None = None

    @model_validator(mode="after")
    def _options_of_the_method(self) -> "NewTrunk":
        given = self.options.model_dump(exclude_defaults=True).keys()
        if superfluous := sorted(given - _USED[self.method]):
            raise ValueError(f"options.{superfluous[0]}: the method {self.method!r} doesn't take it")
        if missing := [name for name in _NEEDED if name in _USED[self.method] and name not in given]:
            raise ValueError(f"options.{missing[0]}: the method {self.method!r} needs it")
        if self.round is not None and (self.experts is not None or self.method not in SOLVED):
            raise ValueError("round: it goes with the methods 'regmean' and 'moerge', and without experts")
        return self


class TrunkLineage(Message):
    """All that a trunk is a function of. Contributions stand in the experts' order (regmean, moerge), or there are
    none."""

    method: TrunkMethod
    options: TrunkOptions
    experts: list[Digest]
    contributions: list[Digest]


class Trunk(Message):
    """A trunk in the dense family's own tensor names, so that a worker can add its own MLPs to it.

    `exponents` holds, per layer, the number of fractional bits with which gram and cross are sent. `contributions`
    are the trunk contributions that it was solved from, in the experts' order. `retired` says since when it contains
    something withdrawn; then the current one stays current only until the remerge is done.
    """

    digest: Digest
    method: str
    options: TrunkOptions
    experts: list[Digest]
    contributions: list[Digest]
    family: str
    hidden_size: int
    layers: int
    exponents: list[int]
    tensors: int
    files: list[FileEntry]
    current: bool
    created: datetime
    retired: datetime | None

    @property
    def contains(self) -> list[str]:
        """The experts whose parameters it contains, the base among them."""
        base = self.options.base
        return self.experts if base is None or base in self.experts else [base, *self.experts]
