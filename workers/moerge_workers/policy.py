"""The owner's rules about outgoing data, which no coordinator and no option can widen: tables of worker.toml."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from moerge.statistics.membership import FEW_DOCUMENTS
from moerge_proto.digests import Name
from moerge_proto.masks import LEAST_OWNERS, KeeperKey
from moerge_proto.statistics_file import MAX_SUMMED

Kind = Literal["expert", "head", "router", "evaluation", "task"]
"""Kinds of outgoing data: weights of an expert's parts, contributions of each kind, evaluation sums,
results on tasks."""


class Policy(BaseModel):
    """The table [policy] of worker.toml.

    Attributes:
        mode: `auto` sends what the policy allows; `ask` shows each file first, and sends it once the owner approves.
        domains: domains to contribute for; by default the worker's own.
        min_documents: fewest documents of a contribution, and of its difference from earlier ones.
        min_tokens: fewest tokens of both; by default a shard, 64 H for a hidden size H.
        tokens_per_document: most counted tokens of a document, which options can only lower; by default all.
        versions_per_month: evaluations sent in 30 days; more need the owner's approval.
        expert_weights: the expert's parts may leave: MLPs, and last norm and head unless they are the seed's.
        head_contributions: the gram of the head's input is computed and may leave.
        router_contributions: router sums are computed and may leave. Without them only evaluations leave.
        evaluation_sums: sums of scores on held-out documents are computed and may leave.
        task_results: results on tasks may leave, by `moerge worker evaluate`.
        redistribute: owners of a version's other experts may have the expert's MLPs, to evaluate the version. Operators
            may export the expert and its contributions, to make a version again elsewhere.
        progress: reports to the coordinator, in mode `ask` too. `obstacles`: the reason for sending nothing, as one
            word of a fixed list; `true`: also the progress; `false`: none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["auto", "ask"] = "auto"
    domains: list[Name] | None = None
    min_documents: int = Field(default=FEW_DOCUMENTS, ge=1)
    min_tokens: int | None = Field(default=None, ge=1)
    tokens_per_document: int | None = Field(default=None, ge=1)
    versions_per_month: int = Field(default=10, ge=0)
    expert_weights: bool = True
    head_contributions: bool = True
    router_contributions: bool = True
    evaluation_sums: bool = False
    task_results: bool = False
    redistribute: bool = False
    progress: bool | Literal["obstacles"] = "obstacles"

    def allows(self, kind: str) -> bool:
        """Tell whether anything of that kind may leave."""
        switches: dict[str, bool] = {
            "expert": self.expert_weights,
            "head": self.head_contributions,
            "router": self.router_contributions,
            "evaluation": self.evaluation_sums,
            "task": self.task_results,
        }
        return switches.get(kind, False)

    def least_tokens(self, shard_tokens: int) -> int:
        """The least tokens of sums that may leave. A shard has `shard_tokens`."""
        return shard_tokens if self.min_tokens is None else self.min_tokens

    def too_small(self, documents: int, tokens: int, shard_tokens: int) -> str | None:
        """The reason to hold back sums over that many; None if they may leave. A shard has `shard_tokens`."""
        least = self.least_tokens(shard_tokens)
        if documents < self.min_documents:
            return f"{documents:,} documents; the policy's min_documents is {self.min_documents:,}"
        return f"{tokens:,} tokens; the policy's min_tokens is {least:,}" if tokens < least else None


class PrivacyBudget(BaseModel):
    """The table [privacy] of worker.toml. With it router contributions have noise.

    Attributes:
        epsilon: the bound of all contributions together, for each document, for ever.
        delta: the probability that goes with it.
        contributions: most contributions that a document may be in, as under several bodies; they share the budget.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(gt=0, le=100, allow_inf_nan=False)
    delta: float = Field(default=1e-6, gt=0, le=0.01)
    contributions: int = Field(default=1, ge=1, le=1000)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g} for each document"


class Masks(BaseModel):
    """The table [masks] of worker.toml: who must agree before a coordinator sees a sum with this owner's statistics.

    Attributes:
        keepers: their public keys, from `moerge keeper init`. The coordinator needs the answers of all of them.
        owners: fewest owners of a sum.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keepers: list[KeeperKey] = Field(min_length=1, max_length=10)
    owners: int = Field(default=LEAST_OWNERS, ge=LEAST_OWNERS, le=MAX_SUMMED)

    @field_validator("keepers")
    @classmethod
    def _sorted(cls, value: list[str]) -> list[str]:
        return sorted(set(value))
