"""The owner's policy about outgoing data. No coordinator and no option can widen it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moerge.statistics.membership import FEW_DOCUMENTS
from moerge_proto.digests import Name

Kind = Literal["expert", "body", "head", "router", "evaluation", "benchmark"]
"""Kinds of outgoing data: weights of an expert or its parts, contributions of each kind, evaluation sums, results of
benchmarks."""
BodyKind = Literal["seed", "merged"]
"""Kinds of bodies: a seed's own, compared with the owner's copy; or merged from experts, and checked by bounds."""


def body_kind(method: str) -> BodyKind:
    return "seed" if method == "seed" else "merged"


class Policy(BaseModel):
    """The table [policy] of worker.toml.

    Attributes:
        mode: `auto` sends what the policy allows; `ask` shows each file first, and sends it once the owner approves.
        domains: domains to contribute for; None: the worker's own.
        bodies: kinds of bodies under which data may leave. The limits of strays, perplexities and bodies per month are
            for merged ones.
        max_stray: limit of a body's distance from the expert, see `moerge.trunk.stray`.
        min_documents: fewest documents of a contribution, and of its difference from earlier ones.
        min_tokens: likewise; None: a shard, 64 H.
        merged_share: share of the documents that count under a merged body. A MAC under the owner's key chooses
            others under each, so that the difference of two sums shows no single document.
        max_perplexity_ratio: limit of the perplexity of body, own MLPs and head, divided by the expert's, on a sample.
        bodies_per_month: new bodies in 30 days under which data may leave; more need the owner's approval.
        versions_per_month: evaluations sent in 30 days; likewise.
        expert_weights: may leave: the whole expert, or under a seed's body only its parts.
        head_contributions: the gram of the head's input is computed and may leave.
        evaluation_sums: are computed and may leave.
        benchmark_results: may leave, by `moerge worker benchmark`.
        redistribute: owners of a version's other experts may have the expert's MLPs, to evaluate the version. Operators
            may export the expert and its contributions, to make a version again elsewhere.
        progress: reports to the coordinator, in mode `ask` too. `obstacles`: the reason for sending nothing, as one
            word of a fixed list; True: also the progress; False: none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["auto", "ask"] = "auto"
    domains: list[Name] | None = None
    bodies: list[BodyKind] = Field(default=["seed"], min_length=1)
    max_stray: float = Field(default=0.6, gt=0)
    min_documents: int = Field(default=FEW_DOCUMENTS, ge=1)
    min_tokens: int | None = Field(default=None, ge=1)
    tokens_per_document: int | None = Field(default=None, ge=1)
    merged_share: float = Field(default=0.5, gt=0, le=1)
    max_perplexity_ratio: float = Field(default=2.5, gt=1)
    bodies_per_month: int = Field(default=3, ge=0)
    versions_per_month: int = Field(default=10, ge=0)
    expert_weights: bool = True
    body_contributions: bool = True
    head_contributions: bool = True
    router_contributions: bool = True
    evaluation_sums: bool = False
    benchmark_results: bool = False
    redistribute: bool = False
    progress: bool | Literal["obstacles"] = "obstacles"

    def allows(self, kind: str) -> bool:
        """Tell whether anything of that kind may leave."""
        switches: dict[str, bool] = {
            "expert": self.expert_weights,
            "body": self.body_contributions,
            "head": self.head_contributions,
            "router": self.router_contributions,
            "evaluation": self.evaluation_sums,
            "benchmark": self.benchmark_results,
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
