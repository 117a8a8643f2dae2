"""Evaluations: measured scores of a version, on owners' held-out documents and on tasks, and the paper's table."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag, TypeAdapter, model_validator

from moerge_proto.contributions import Short
from moerge_proto.digests import Digest, Name, digest_of
from moerge_proto.messages import Message, Whole
from moerge_proto.normalised import average, normalised, perplexity

MAX_SCORES = 1000
"""Scores of one report, or results of one file."""
_MOST = 2**53 - 1  # canonical JSON holds no larger integer
_MOST_NATS = 300  # per token; e^300 and quotients of such numbers are finite
_MOST_NUMBER = 2**31 - 1
_MOST_VALUE = 1e15
TaskName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}$")]
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+@,-]{0,99}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.:+/-]{0,99}$")]
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


class Perplexity(Message):
    """An owner's sums of a version over held-out documents of a domain, in windows of `context`, advanced by `stride`.

    Attributes:
        expert: the digest of the owner's dense expert of `domain` in the version.
        dense: of this expert. The three sums cover the same tokens.
        oracle: of the version with every token routed to this expert.
        routed: L x D, counts per layer the tokens by their first-choice expert, in slot order, at the position that
            predicted them. Each layer's counts add up to the tokens.
    """

    kind: Literal["perplexity"] = "perplexity"
    domain: Name
    expert: Digest
    documents: Amount
    context: int = Field(ge=2, le=_MOST_NUMBER)
    stride: int = Field(ge=1)
    dense: Scored
    version: Scored
    oracle: Scored
    routed: list[list[Count]] = Field(min_length=1, max_length=10_000)
    software: dict[Short, Short] = Field(default_factory=dict, max_length=100)
    higher_is_better: ClassVar[bool] = True
    standard_error: ClassVar[float | None] = None

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
    def name(self) -> str:
        return self.domain

    @property
    def value(self) -> float:
        """Normalised: 100 * the dense expert's perplexity / the version's."""
        return normalised(self.dense.nll, self.version.nll, self.version.tokens)

    @property
    def conditions(self) -> tuple[object, ...]:
        """The common properties of comparable scores."""
        return self.kind, self.domain


class TaskResult(Message):
    """A model's `value` of one `metric` on one task.

    Attributes:
        standard_error: of the value; None if the harness gives none.
        questions: the number that was scored.
        task_version: of the task's definition; None if it has none.
        limit: the requested maximum of questions; None for all.
        data: SHA-256 of the file with the questions; None if the harness read them elsewhere.
        harness: the program and its version, such as "lm_eval 0.4.13".
    """

    kind: Literal["task"] = "task"
    task: TaskName
    metric: MetricName
    value: float = Field(ge=-_MOST_VALUE, le=_MOST_VALUE, allow_inf_nan=False)
    higher_is_better: bool = True
    standard_error: float | None = Field(default=None, ge=0, le=_MOST_VALUE, allow_inf_nan=False)
    questions: Whole = Field(ge=1, le=_MOST_NUMBER)
    task_version: Label | None = None
    limit: Whole | None = Field(default=None, ge=1, le=_MOST_NUMBER)
    seed: Whole = Field(ge=0, le=_MOST_NUMBER)
    data: Digest | None = None
    harness: Label

    @property
    def name(self) -> str:
        return f"{self.task} ({self.metric})"

    @property
    def conditions(self) -> tuple[object, ...]:
        """The common properties of comparable scores."""
        return tuple(self.model_dump(exclude={"value", "standard_error"}).values())


S = TypeVar("S", Perplexity, TaskResult, Perplexity | TaskResult)


def _each_once(scores: list[S]) -> list[S]:
    for name, count in Counter(score.name for score in scores).items():
        if count > 1:
            raise ValueError(f"{count} scores of {name}; expected one")
    return scores


Results = Annotated[list[TaskResult], Field(min_length=1, max_length=MAX_SCORES), AfterValidator(_each_once)]
"""The content of a file of results: of one model, with one result of each task and metric."""
RESULTS: TypeAdapter[list[TaskResult]] = TypeAdapter(Results)


def _kind(score: object) -> object:
    """The `kind` of a message or its JSON, which may omit it."""
    if isinstance(score, Mapping):
        return score.get("kind", "task" if "task" in score else "perplexity")
    return getattr(score, "kind", None)


_ANY = Annotated[Perplexity, Tag("perplexity")] | Annotated[TaskResult, Tag("task")]
_OTHER = "expected a score of the kind perplexity or task"
Score = Annotated[_ANY, Discriminator(_kind, custom_error_type="kind", custom_error_message=_OTHER)]


class NewEvaluation(Message):
    """Scores of version `number`: an owner's perplexities, or results on tasks by an operator or an owner."""

    number: int = Field(ge=1, le=_MOST_NUMBER)
    scores: Annotated[list[Score], Field(min_length=1, max_length=MAX_SCORES), AfterValidator(_each_once)]

    @property
    def digest(self) -> str:
        return digest_of(self.model_dump(mode="json"))


class Evaluation(Message):
    """An accepted score of a version. `digest`: of its report. `owner`: who reported it; None: an operator.

    `active` is false after a later one of the same reporter and domain, or task and metric.
    """

    number: int
    digest: Digest
    version: int
    owner: str | None
    active: bool
    created: datetime
    score: Score

    @property
    def reporter(self) -> str:
        return self.owner or "operator"


class DomainScore(Message):
    """A domain's row of the table: perplexities on its held-out text.

    Attributes:
        documents: their number, as that of tokens.
        dense: perplexity of its dense expert.
        version: perplexity of the version.
        oracle: perplexity of the version with every token routed to the domain's expert.
        normalised: 100 * dense / version.
        normalised_oracle: 100 * dense / oracle.
        shares: L x D, each expert's share of the tokens, by first choice.
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

    Attributes:
        domains: in slot order, as each layer's `shares`.
        seeds: the domains whose expert is the seed, which averages leave out.
        average: of `normalised` over the other domains; None while some of these are `missing`.
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
        """The table from active evaluations; those on tasks don't count."""
        scores = {row.score.name: _score(row, row.score) for row in evaluations if isinstance(row.score, Perplexity)}
        names = [domain for domain in domains if domain not in seeds]
        return cls(
            version=version,
            domains=list(domains),
            seeds=[domain for domain in domains if domain in seeds],
            scores=[scores[domain] for domain in domains if domain in scores],
            average=average(scores[domain].normalised if domain in scores else None for domain in names),
            missing=[domain for domain in names if domain not in scores],
        )


def _score(row: Evaluation, sums: Perplexity) -> DomainScore:
    tokens = sums.version.tokens
    return DomainScore(
        domain=sums.domain,
        owner=row.reporter,
        documents=sums.documents,
        tokens=tokens,
        dense=sums.dense.perplexity,
        version=sums.version.perplexity,
        oracle=sums.oracle.perplexity,
        normalised=sums.value,
        normalised_oracle=normalised(sums.dense.nll, sums.oracle.nll, tokens),
        shares=[[count / tokens for count in layer] for layer in sums.routed],
        created=row.created,
    )
