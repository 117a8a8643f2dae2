"""The withdrawal of a contribution."""

from moerge_coordinator.dashboard.forms import Action, Form, Given, said
from moerge_coordinator.dashboard.site import HOME, Visit

_EFFECT = {
    "router": "Later versions don't contain it. Versions that were solved with it stay as they are.",
    "trunk": "Trunks that were solved with it are retired. Merge a new one afterwards.",
}


def _kind(visit: Visit) -> str:
    return "trunk" if visit.query.get("kind") == "trunk" else "router"


def _ask_withdraw(visit: Visit) -> Form:
    digest, kind = visit.path["digest"], _kind(visit)
    facts = (
        _EFFECT[kind],
        "The owner's worker sends it again while its documents are in the data. moerge worker refuse stops that.",
    )
    back = f"{HOME}/contributions?kind={kind}"
    return Form(f"Withdraw {kind} contribution {digest[:10]}", "Withdraw", back, facts, danger=True)


def _withdraw(visit: Visit, given: Given) -> str:
    visit.rest.withdraw_contribution(visit.path["digest"])
    return f"{said('/contributions', 'withdrawn')}&kind={_kind(visit)}"


ACTIONS = {
    "/contributions/{digest}/withdraw": Action(_ask_withdraw, _withdraw),
}
