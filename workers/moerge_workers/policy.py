"""The owner's policy about outgoing data. No coordinator, and no option of a command, can widen it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from moerge_proto.digests import Name

Kind = Literal["expert", "trunk", "router", "evaluation"]
"""Kinds of outgoing data: an expert's weights, trunk contributions, router contributions, evaluation sums."""


class Policy(BaseModel):
    """The table [policy] of worker.toml.

    Attributes:
        mode: `auto` sends what the policy allows; `ask` shows each file first, and sends it once the owner approves.
        domains: that may be contributed for; None: the one that the worker is told.
        max_stray: of a trunk's tensors from the expert's own, see `moerge.trunk.stray`.
        min_documents: that a contribution is over, and its difference from what was sent before.
        min_tokens: likewise; None: a shard's worth, 64 H.
        tokens_per_document: at most so many of each count; None: all.
        max_perplexity_ratio: of trunk with own MLPs, to the expert's, on a sample of the text; more is refused.
        trunks_per_month: new trunks in 30 days under which something may leave; the owner is asked about more.
        versions_per_month: evaluations in 30 days that may leave; likewise.
        expert_weights: whether they may leave, of fitted experts too.
        trunk_contributions: whether they may leave, if they are asked for.
        router_contributions: whether they may leave.
        evaluation_sums: whether they may leave, and are made.
        redistribute: whether owners of a version's other experts may have the expert's MLPs, to evaluate the version.
        progress: told to the coordinator, in mode `ask` too: `obstacles`, why nothing is sent for now, in one word of a
            fixed list; True, also how far the worker is; False, nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["auto", "ask"] = "auto"
    domains: list[Name] | None = None
    max_stray: float = Field(default=0.6, gt=0)
    min_documents: int = Field(default=100, ge=1)
    min_tokens: int | None = Field(default=None, ge=1)
    tokens_per_document: int | None = Field(default=None, ge=1)
    max_perplexity_ratio: float = Field(default=2.5, gt=1)
    trunks_per_month: int = Field(default=3, ge=0)
    versions_per_month: int = Field(default=10, ge=0)
    expert_weights: bool = True
    trunk_contributions: bool = True
    router_contributions: bool = True
    evaluation_sums: bool = False
    redistribute: bool = False
    progress: bool | Literal["obstacles"] = "obstacles"

    def allows(self, kind: str) -> bool:
        """Whether anything of that kind may leave."""
        switches: dict[str, bool] = {
            "expert": self.expert_weights,
            "trunk": self.trunk_contributions,
            "router": self.router_contributions,
            "evaluation": self.evaluation_sums,
        }
        return switches.get(kind, False)

    def too_small(self, documents: int, tokens: int, shard_tokens: int) -> str | None:
        """Why sums over so much may not leave; None if they may. A shard holds `shard_tokens`."""
        least = shard_tokens if self.min_tokens is None else self.min_tokens
        if documents < self.min_documents:
            return f"{documents:,} documents; the policy's min_documents is {self.min_documents:,}"
        return f"{tokens:,} tokens; the policy's min_tokens is {least:,}" if tokens < least else None
