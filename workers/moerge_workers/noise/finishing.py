"""Router contributions with noise, within the owner's budget."""

from pathlib import Path

from moerge.errors import MoergeError
from moerge.models.families.family import Family
from moerge.models.keeping import Keeping
from moerge.noise.accountant import epsilon_of, rho_of
from moerge.noise.finisher import NoiseFinisher
from moerge.statistics.describe import UNCOVERED
from moerge_proto.statistics_file import Privacy
from moerge_workers.computing.finishing import Finishing
from moerge_workers.noise.covered import require_covered
from moerge_workers.outgoing.ledger import left_exact, spending, spent_file
from moerge_workers.policy import PrivacyBudget
from moerge_workers.settings import Settings


class Noise(NoiseFinisher, Finishing):
    """Noise in every router contribution; nothing else leaves but the expert's weights.

    `cost` is the rho of a contribution, `most` that of the budget, with room for rounding.
    """

    name = "privacy"
    alone = True

    def __init__(self, budget: PrivacyBudget) -> None:
        self._budget, whole, epsilon = budget, rho_of(budget.epsilon, budget.delta), budget.epsilon
        if budget.contributions > 1:
            epsilon = epsilon_of(whole / budget.contributions, budget.delta)
        super().__init__(Privacy(epsilon=epsilon, delta=budget.delta))
        self.cost, self.most = rho_of(epsilon, budget.delta), whole * (1 + 1e-9)

    def spent(self, home: Path) -> Path:
        if left_exact(home):
            raise MoergeError(
                "sums of this home's documents were sent without noise, so a budget can't bound what is known",
                where="[privacy]",
                todo="use other documents and another home",
            )
        return spent_file(home)

    def overspent(self, documents: int) -> MoergeError:
        return MoergeError(
            f"{documents:,} documents have spent their privacy budget, {self._budget}",
            where="[privacy]",
            todo="give new documents only, or accept a larger epsilon: sums that left can't be taken back",
        )

    def require_alone(
        self, settings: Settings, family: Family, found: Keeping, *, was_fitted: bool = False, had_head: bool = False
    ) -> None:
        require_covered(settings, family, found, was_fitted=was_fitted, had_head=had_head)

    def report(self, settings: Settings) -> str:
        every, spent = spending(spent_file(settings.home), self.cost, self.most)
        return f"{self._budget}; {spent:,} of {every:,} documents with noise have spent it; {UNCOVERED}"
