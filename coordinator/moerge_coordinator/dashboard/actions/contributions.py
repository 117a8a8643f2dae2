"""The withdrawal of a contribution."""

from moerge_coordinator.dashboard.forms import Action, Form, Given, said
from moerge_coordinator.dashboard.site import HOME, Visit


async def _ask_withdraw(visit: Visit) -> Form:
    digest = visit.path["digest"]
    facts = (
        "It is gone from the next version; versions that were solved with it stay as they are.",
        "Its owner's worker sends it again while its documents are in the data (moerge worker refuse stops that).",
    )
    return Form(f"Withdraw contribution {digest[:10]}", "Withdraw", f"{HOME}/contributions", facts, danger=True)


async def _withdraw(visit: Visit, given: Given) -> str:
    await visit.rest.withdraw_contribution(visit.path["digest"])
    return said("/contributions", "withdrawn")


ACTIONS = {
    "/contributions/{digest}/withdraw": Action(_ask_withdraw, _withdraw),
}
