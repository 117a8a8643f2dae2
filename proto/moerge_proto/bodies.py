"""Bodies: embedding, attention, norms but the last; routers depend on them. Heads: last norm, language model head."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message

BodyMethod = Literal["seed", "average", "weighted", "ties", "dare", "regmean"]
"""`seed`: a registered model's own, unchanged; the others merge experts. `moerge.trunk.methods` has their formulas."""
HeadMethod = Literal["seed", "average", "regmean"]
"""`seed`: the seed's own head; `average`: the experts' mean; `regmean`: solved from the experts' head contributions."""


class BodyOptions(Message):
    """Options of the methods. Leave out options that the method doesn't take.

    `weights`: domain -> weight, default 1 (weighted). `base`: the digest of a registered expert, the origin of
    task vectors (ties, dare). `retain`: the share of a task vector's elements that is kept; `scale`: the factor of
    their sum (ties, dare; MergeME appendix). `random_seed` (dare).
    """

    weights: dict[Name, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    base: Digest | None = None
    retain: float = Field(default=0.8, gt=0, le=1)
    scale: float = Field(default=1 / 3, allow_inf_nan=False)
    random_seed: int = Field(default=0, ge=0, lt=2**53)


class NewBody(Message):
    """Asks for a merge of `experts` in this order; None means every ready expert except the base, in order of arrival.
    The method `seed` takes none: it makes the registered seed's body the current one.

    `round`: for body contributions, instead of experts. The merge starts when all have contributed, or at the deadline
    if enough have, and takes these experts. `method`: None means the recommended one if every expert has an active
    body contribution, or a round is named; otherwise the paper's. Options need a named method.
    """

    method: BodyMethod | None = None
    experts: list[Digest] | None = Field(default=None, min_length=1)
    options: BodyOptions = BodyOptions()
    round: Name | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "NewBody":
        if self.method is None and (given := sorted(self.options.model_dump(exclude_defaults=True))):
            raise ValueError(f"options.{given[0]}: expected a method too; name one that takes this option")
        if self.round is not None and self.experts is not None:
            raise ValueError("round: the round determines the experts; leave experts out")
        return self


class BodyLineage(Message):
    """All inputs of a body. `contributions`: for a solved method, one per expert, in order; otherwise none. A seed's
    body has neither experts nor contributions.

    `revision`: of the method's formula. The JSON, whose digest names the body, leaves out 1.
    """

    method: BodyMethod
    options: BodyOptions
    experts: list[Digest]
    contributions: list[Digest]
    revision: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)


class Body(Message):
    """A body in the dense family's own tensor names, so that a worker can add its own MLPs to it. A seed's has the
    seed's head, parts and tokenizer beside it, in files of their own. `source`: the seed's name, for people.
    `license`: the seed's, an SPDX identifier.

    `config`: the settings of config.json that features depend on. `exponents`: fractional bits of gram and cross, per
    layer. `contributions`: the solved body contributions, in the experts' order. `retired`: since when it contains a
    withdrawn input; if current, it stays so until the remerge.
    """

    digest: Digest
    method: str
    options: BodyOptions
    experts: list[Digest]
    contributions: list[Digest]
    revision: int
    family: str
    hidden_size: int
    layers: int
    config: dict[str, JsonValue]
    exponents: list[int]
    tensors: int
    files: list[FileEntry]
    source: str | None
    license: str
    current: bool
    created: datetime
    retired: datetime | None

    @property
    def contains(self) -> list[str]:
        """The experts whose parameters it contains, including the base."""
        base = self.options.base
        return self.experts if base is None or base in self.experts else [base, *self.experts]


class Contributors(Message):
    """Domains that have contributed to the routers under `body`, and domains merged into it that are `missing`; under a
    seed's body, those with ready parts for it.

    One that joined after a merge, or whose expert was withdrawn, is never missing.
    """

    body: Digest
    contributed: list[Name]
    missing: list[Name]
