"""The owner's privacy budget: what noise costs each document, and what it may cost."""

from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field

from moerge.noise.accountant import epsilon_of, rho_of
from moerge_proto.statistics_file import Privacy


class PrivacyBudget(BaseModel):
    """The table [privacy] of worker.toml. With it router contributions have noise.

    Attributes:
        epsilon, delta: the bound of all contributions together, for each document, for ever.
        contributions: most contributions that a document may be in, as under several bodies; they share the budget.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(gt=0, le=100, allow_inf_nan=False)
    delta: float = Field(default=1e-6, gt=0, le=0.01)
    contributions: int = Field(default=1, ge=1, le=1000)

    @cached_property
    def each(self) -> Privacy:
        """The noise of one contribution."""
        epsilon = self.epsilon
        if self.contributions > 1:
            epsilon = epsilon_of(rho_of(epsilon, self.delta) / self.contributions, self.delta)
        return Privacy(epsilon=epsilon, delta=self.delta)

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
