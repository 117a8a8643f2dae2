"""Router versions: immutable, numbered 1, 2, 3, …"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, WithJsonSchema, WrapValidator

from moerge_proto.bodies import HeadMethod
from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message, Whole
from moerge_proto.recipes import RECOMMENDED, RecommendedOptions, SolveOptions

CHAMPION = "champion"
"""The alias of the version that consumers use."""


def _completed(value: object, validate: Callable[[object], SolveOptions]) -> SolveOptions:
    """Options with the recommended values as defaults, which don't count as set."""
    given = dict(value) if isinstance(value, SolveOptions) else value
    if not isinstance(given, dict):
        return validate(given)
    options = validate({**RECOMMENDED.solve.model_dump(), **given})
    return SolveOptions.model_construct(set(given), **dict(options))


Completed = Annotated[
    SolveOptions,
    WrapValidator(_completed),
    PlainSerializer(lambda options: options.model_dump(exclude_unset=True), return_type=dict[str, Any]),
    WithJsonSchema(RecommendedOptions.model_json_schema()),
]
"""Solve options that are sent as given; the receiver completes them with the recommended values."""


class NewVersion(Message):
    """Asks for a version of `body` (None: the current one) with `experts` in this order.

    Attributes:
        body: its digest.
        experts: their digests; None: every ready expert that has contributed under the body, in order of arrival.
        partial: solve without the missing experts; otherwise None in `experts` is refused while one is missing.
        head: None: the seed's, tied as there, if every expert keeps it; `regmean` if every other expert has an active
            head contribution; otherwise `average`.
        options: of the solve; the recommended ones are the defaults.
        tied: leave the head out if it equals the embedding.
        chat_template: see `Lineage`.
        accept_loss: publish it, however high its loss on the public texts is.
    """

    body: Digest | None = None
    experts: list[Digest] | None = Field(default=None, min_length=1)
    partial: bool = False
    head: HeadMethod | None = None
    options: Completed = Field(default_factory=lambda: _completed({}, SolveOptions.model_validate))
    tied: bool = False
    chat_template: Name | None = None
    accept_loss: bool = False


class VersionFile(FileEntry):
    """A version's file.

    Attributes:
        size: in bytes.
        new: whether this version wrote it, or an earlier one.
        tensors: their number.
    """

    new: bool
    tensors: int = 0


class HeadLineage(Message):
    """All inputs of a version's head beside body and experts.

    Attributes:
        contributions: for `regmean`, digests of those of experts with an own head, in order.
        revision: of the method's formula. The JSON leaves out 1.
    """

    method: HeadMethod
    contributions: list[Digest] = Field(default_factory=list)
    revision: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)


class Lineage(Message):
    """All inputs of a version (law 3).

    Attributes:
        body: its digest.
        seed: under a seed's body, the digest of the seed's files: body, head, parts, config, tokenizer. The JSON omits
            None.
        experts: their digests, in slot order.
        domains: those of `experts`, in the same order.
        contributions: digests of the router contributions, sorted.
        tied: whether the head is left out, because it equals the embedding.
        left_out: domains of ready experts that had not contributed to a partial version.
        chat_template: the domain whose chat template, tokenizer and generation config the version has, or `base`; None:
            the seed's, or those of the first expert with the largest vocabulary. The JSON omits None.
    """

    body: Digest
    seed: Digest | None = Field(default=None, exclude_if=lambda value: value is None)
    head: HeadLineage
    experts: list[Digest]
    domains: list[str]
    contributions: list[Digest]
    options: SolveOptions
    tied: bool = False
    left_out: list[Name] = Field(default_factory=list)
    chat_template: Name | None = Field(default=None, exclude_if=lambda value: value is None)
    solver: str


class EngineLimit(Message):
    """An engine that doesn't run a version as transformers does; `happens` is the rest of a sentence about it."""

    engine: str
    happens: str
    remedy: str


class SolvedLayer(Message):
    """Diagnostics of one layer's solve.

    Attributes:
        ridge_lambda: added to the diagonal.
        condition: a lower estimate for A + lambda I.
        norms: of the columns before normalisation, per domain.
        cosines: between the columns, D x D.
    """

    ridge_lambda: float
    condition: float
    norms: list[float]
    cosines: list[list[float]]


class SolveReport(Message):
    """A version's routers, layer by layer; the file moerge-report.json."""

    domains: list[str]
    layers: list[SolvedLayer]


class PublicLoss(Message):
    """Mean losses on the library's public texts, in nats per token, measured before the publication.

    Attributes:
        last: of the last version of this seed, unless it has a domain that this version lacks.
        accepted: it is above the limit, and the operator accepted it, or the last version's.
    """

    version: float
    seed: float
    last: float | None = None
    accepted: bool = False


class Version(Message):
    """A version.

    Attributes:
        bytes_total: size of all its files.
        bytes_written: size of its new files.
        aliases: names that point to it.
        contains_withdrawn: digests of withdrawn experts in it.
        withheld: since when its files are not served, because of a withdrawn expert.
        retired: since when it has no files.
        key: the fingerprint of the key that signed it; None if nobody has.
        key_revoked: since when that key is revoked.
        release: the moerge release that published it.
        public_loss: None if it wasn't measured.
    """

    number: int
    lineage: Lineage
    files: list[VersionFile]
    bytes_total: int
    bytes_written: int
    note: str
    tags: list[str]
    aliases: list[str]
    contains_withdrawn: list[Digest]
    created: datetime
    withheld: datetime | None
    retired: datetime | None
    key: Digest | None = None
    key_revoked: datetime | None = None
    release: str = ""
    public_loss: PublicLoss | None = None


class SignedCard(Message):
    """A version's model card, and the content of `model.sig`, which covers it and all other files; None if unsigned.

    `provenance`: the content of `provenance.sigstore.json`, by the same key; None if there is none.
    """

    card: str
    signature: str | None
    provenance: str | None = None


class VersionChange(Message):
    """A new note or new tags of a version; None changes nothing."""

    note: str | None = Field(default=None, max_length=2000)
    tags: list[Name] | None = Field(default=None, max_length=100)


class Move(Message):
    """Points an alias to `version`; `note`: the reason.

    `override`: the reason to move champion even if a domain loses more than `promotion_max_fall`, or a task more than
    `promotion_max_errors`.
    """

    version: Whole = Field(ge=1, lt=2**63)
    note: str = Field(default="", max_length=2000)
    override: str = Field(default="", max_length=2000)


class Rollback(Message):
    """Undoes the last move of an alias. `version`: the one it points to now, so that a repeated call does nothing."""

    version: Whole = Field(ge=1, lt=2**63)
    note: str = Field(default="", max_length=2000)


class AliasMove(Message):
    """One entry of an alias' history. `version`: None if it was removed. `override`: why a refusal was overridden."""

    number: int
    alias: str
    kind: Literal["promote", "rollback", "remove"]
    version: int | None
    previous: int | None
    who: str
    note: str
    override: str | None
    created: datetime


class Alias(Message):
    """A movable name.

    `warnings`, after a promotion: domains and tasks without a score to compare, lost domains.
    """

    number: int
    name: str
    version: int
    moved: datetime
    warnings: list[str] = Field(default_factory=list)


class PromotionCheck(Message):
    """The verdict of the promotion rules on `champion` pointing to a version.

    `refusal`: why no override allows it, None if one may. `falls`: losses that need an override. `warnings`: domains
    and tasks without a score to compare.
    """

    refusal: str | None = None
    falls: list[str]
    warnings: list[str]
