"""The withdrawal of a contribution."""

from typing import Any

from moerge.statistics.kinds import CONTRIBUTIONS, ROUTER, ContributionKind
from moerge_coordinator.dashboard.forms import Action, Form, Given, said
from moerge_coordinator.dashboard.site import HOME, Visit


def _kind(visit: Visit) -> ContributionKind[Any]:
    return CONTRIBUTIONS.get(visit.query.get("kind", ""), ROUTER)


def _ask_withdraw(visit: Visit) -> Form:
    digest, kind = visit.path["digest"], _kind(visit)
    facts = (
        kind.withdrawal,
        "The owner's worker sends it again while its documents are in the data. moerge worker refuse stops that.",
    )
    back = f"{HOME}/contributions?kind={kind.name}"
    return Form(f"Withdraw {kind.name} contribution {digest[:10]}", "Withdraw", back, facts, danger=True)


def _withdraw(visit: Visit, given: Given) -> str:
    visit.rest.withdraw_contribution(visit.path["digest"])
    return f"{said('/contributions', 'withdrawn')}&kind={_kind(visit).name}"


ACTIONS = {
    "/contributions/{digest}/withdraw": Action(_ask_withdraw, _withdraw),
}
