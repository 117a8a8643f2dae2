"""The revocation of an owner's key and tokens."""

from moerge_coordinator.dashboard.forms import Action, Form, Given, said
from moerge_coordinator.dashboard.site import HOME, Visit


async def _ask_revoke(visit: Visit) -> Form:
    name = visit.path["name"]
    facts = ("Its key and tokens are worth nothing at once. What it contributed stays until it is withdrawn.",)
    return Form(f"Revoke the key and tokens of {name}", "Revoke", f"{HOME}/owners", facts, danger=True)


async def _revoke(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", f"/v1/owners/{visit.path['name']}/revoke")
    return said("/owners", "revoked")


ACTIONS = {
    "/owners/{name}/revoke": Action(_ask_revoke, _revoke),
}
