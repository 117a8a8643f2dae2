"""The owner's privacy budget: what noise costs each document, and what it may cost."""

from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from moerge.statistics.accountant import epsilon_of, rho_of
from moerge_proto.statistics_file import Privacy, Sums

if TYPE_CHECKING:
    from moerge.documents.pool import PublicDocuments


class PrivacyBudget(BaseModel):
    """The table [privacy] of worker.toml. With it router contributions have noise.

    Attributes:
        epsilon, delta: the bound of all contributions together, for each document (`unit`), for ever (`per`).
        contributions: most contributions that a document may be in, as under several bodies; they share the budget.
        sums: `grams`, or `means` for few documents; `moerge worker check` compares them.
        public: a file of public texts from which the whitening follows; None: the pool.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(gt=0, le=100, allow_inf_nan=False)
    delta: float = Field(default=1e-6, gt=0, le=0.01)
    unit: Literal["document"] = "document"
    per: Literal["life"] = "life"
    contributions: int = Field(default=1, ge=1, le=1000)
    sums: Sums = "grams"
    public: str | None = None

    @cached_property
    def text(self) -> "PublicDocuments":
        """The public text, read once; MoergeError: it can't be read, or is too long."""
        from moerge.documents.pool import PublicDocuments  # imports transformers, which `--help` doesn't need

        return PublicDocuments() if self.public is None else PublicDocuments.read(self.public, "[privacy] `public`")

    @cached_property
    def each(self) -> Privacy:
        """The noise of one contribution."""
        epsilon = self.epsilon
        if self.contributions > 1:
            epsilon = epsilon_of(rho_of(epsilon, self.delta) / self.contributions, self.delta)
        return Privacy(epsilon=epsilon, delta=self.delta, sums=self.sums, public=self.text.digest)

    @property
    def cost(self) -> float:
        """The rho of one contribution."""
        return rho_of(self.each.epsilon, self.delta)

    @property
    def most(self) -> float:
        """The rho of all, with room for rounding."""
        return rho_of(self.epsilon, self.delta) * (1 + 1e-9)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g}, delta {self.delta:g} for each document"
