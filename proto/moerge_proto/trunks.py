"""Trunks: every non-MLP parameter, merged over an ordered list of experts."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message

TrunkMethod = Literal["average", "weighted", "base", "ties", "dare", "regmean", "moerge"]
"""Names of the methods. `moerge.trunk.methods` declares what each takes and computes."""
Revision = Annotated[int, Field(ge=1, exclude_if=lambda value: value == 1)]
"""Revision of a method's formula. 1 is left out of the JSON, so that digests of earlier trunks stay."""


class TrunkOptions(Message):
    """Options of the methods. Those that a method doesn't take must be left out.

    `weights`: domain -> weight, 1 for those not named (weighted). `base`: the digest of a registered expert, whose
    trunk this is (base), or from which task vectors start (ties, dare). `retain`: share of a task vector's elements
    that is kept, `scale`: what their sum is multiplied by (ties, dare; MergeME appendix). `seed` (dare).
    `context_head` is of trunks that an earlier version merged; no method takes it any more.
    """

    weights: dict[Name, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    base: Digest | None = None
    retain: float = Field(default=0.8, gt=0, le=1)
    scale: float = Field(default=1 / 3, allow_inf_nan=False)
    seed: int = Field(default=0, ge=0, lt=2**53)
    context_head: bool = Field(default=False, exclude_if=lambda value: not value)


class NewTrunk(Message):
    """Asks for a merge of `experts` in this order; None means every ready expert but the base, in order of arrival.

    `round` names a round for trunk contributions instead of experts: those that have contributed are merged, once all
    have, or enough of them by the deadline. `method`: None means the recommended one if every expert to be merged has
    an active trunk contribution, or a round is named; else the paper's. Only a named method takes options.
    """

    method: TrunkMethod | None = None
    experts: list[Digest] | None = Field(default=None, min_length=1)
    options: TrunkOptions = TrunkOptions()
    round: Name | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "NewTrunk":
        if self.method is None and (given := sorted(self.options.model_dump(exclude_defaults=True))):
            raise ValueError(f"options.{given[0]}: no method is named; name the one that takes it")
        if self.round is not None and self.experts is not None:
            raise ValueError("round: it names the experts already; leave experts out")
        return self


class TrunkLineage(Message):
    """All inputs of a trunk. `contributions`: of a solved method, one of each expert, in order; else none."""

    method: TrunkMethod
    options: TrunkOptions
    experts: list[Digest]
    contributions: list[Digest]
    revision: Revision = 1


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
    revision: Revision = 1
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


class Contributors(Message):
    """Domains that have contributed to the routers under `trunk`, and domains merged into it that are `missing`.

    A domain that joined after the merge is never missing, nor is one whose expert was withdrawn.
    """

    trunk: Digest
    contributed: list[Name]
    missing: list[Name]
