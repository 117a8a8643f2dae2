"""Evaluations: sums of a version's scores on an owner's held-out documents, and the paper's table from them."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from moerge_proto.contributions import Short
from moerge_proto.digests import Digest, Name, digest_of
from moerge_proto.messages import Message
from moerge_proto.normalised import average, normalised, perplexity

_MOST = 2**53 - 1  # canonical JSON holds no larger integer
_MOST_NATS = 300  # per token; e^300 and quotients of such numbers are finite
Count = Annotated[int, Field(ge=0, le=_MOST)]
Amount = Annotated[int, Field(ge=1, le=_MOST)]


class Scored(Message):
    """Summed negative log-likelihood in nats, over `tokens` predicted tokens."""

    nll: float = Field(ge=0, allow_inf_nan=False)
    tokens: Amount

    @model_validator(mode="after")
    def _is_a_perplexity(self) -> Self:
        if self.nll > _MOST_NATS * self.tokens:
            raise ValueError(f"nll is more than {_MOST_NATS} nats per token")
        return self

    @property
    def perplexity(self) -> float:
        return perplexity(self.nll, self.tokens)


class NewEvaluation(Message):
    """An owner's sums for version `number`, over held-out documents in windows of `context` that advance by `stride`.

    `expert`: the owner's dense expert of `domain` in the version. `oracle`: the version with every token routed to it.
    All three scores cover the same tokens. `routed`, L x D, counts per layer the tokens by their first-choice expert,
    in slot order, at the position that predicted them. Each layer's counts add up to the tokens.
    """

    number: int = Field(ge=1, le=2**31 - 1)
    domain: Name
    expert: Digest
    documents: Amount
    context: int = Field(ge=2, le=2**31 - 1)
    stride: int = Field(ge=1)
    dense: Scored
    version: Scored
    oracle: Scored
    routed: list[list[Count]] = Field(min_length=1, max_length=10_000)
    software: dict[Short, Short] = Field(default_factory=dict, max_length=100)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        tokens = self.version.tokens
        if self.stride >= self.context:
            raise ValueError(f"stride is {self.stride}; it must be below context, {self.context}")
        for name, other in (("dense", self.dense), ("oracle", self.oracle)):
            if other.tokens != tokens:
                raise ValueError(f"{name} covers {other.tokens} tokens, version {tokens}; expected the same number")
        if self.documents > tokens:
            raise ValueError(f"{self.documents} documents can't have {tokens} predicted tokens")
        for layer, counts in enumerate(self.routed):
            if sum(counts) != tokens:
                raise ValueError(f"routed counts {sum(counts)} tokens in layer {layer}; expected {tokens}")
        return self

    @property
    def digest(self) -> str:
        return digest_of(self.model_dump(mode="json"))


class Evaluation(Message):
    """An accepted evaluation; `active` is false after a later one of the same domain and version."""

    number: int
    digest: Digest
    version: int
    owner: str
    active: bool
    created: datetime
    sums: NewEvaluation


class DomainScore(Message):
    """A domain's row of the table: perplexities of its dense expert, the version and its oracle, on its held-out text.

    `normalised`: 100 * dense / version, `normalised_oracle`: 100 * dense / oracle. `shares`, L x D: each expert's share
    of the tokens, by first choice.
    """

    domain: str
    owner: str
    documents: int
    tokens: int
    dense: float
    version: float
    oracle: float
    normalised: float
    normalised_oracle: float
    shares: list[list[float]]
    created: datetime


class VersionTable(Message):
    """The paper's table of one version (DUME section 3.1). An owner sees only its own domains' `scores`.

    `domains` and each layer's `shares` are in slot order. `seeds`: the domains whose expert is the seed, which
    averages leave out. `average`: over the others; None while some of these are `missing`.
    """

    version: int
    domains: list[str]
    seeds: list[str] = Field(default_factory=list)
    scores: list[DomainScore]
    average: float | None
    missing: list[str]

    @property
    def averaged(self) -> list[str]:
        """The domains of averages, in slot order."""
        return [domain for domain in self.domains if domain not in self.seeds]

    @classmethod
    def of(
        cls, version: int, domains: Sequence[str], evaluations: Iterable[Evaluation], seeds: Collection[str] = ()
    ) -> Self:
        """The table from the active evaluations."""
        scores = {evaluation.sums.domain: _score(evaluation) for evaluation in evaluations if evaluation.active}
        names = [domain for domain in domains if domain not in seeds]
        return cls(
            version=version,
            domains=list(domains),
            seeds=[domain for domain in domains if domain in seeds],
            scores=[scores[domain] for domain in domains if domain in scores],
            average=average(scores[domain].normalised if domain in scores else None for domain in names),
            missing=[domain for domain in names if domain not in scores],
        )


def _score(row: Evaluation) -> DomainScore:
    sums, tokens = row.sums, row.sums.version.tokens
    return DomainScore(
        domain=sums.domain,
        owner=row.owner,
        documents=sums.documents,
        tokens=tokens,
        dense=sums.dense.perplexity,
        version=sums.version.perplexity,
        oracle=sums.oracle.perplexity,
        normalised=normalised(sums.dense.nll, sums.version.nll, tokens),
        normalised_oracle=normalised(sums.dense.nll, sums.oracle.nll, tokens),
        shares=[[count / tokens for count in layer] for layer in sums.routed],
        created=row.created,
    )
