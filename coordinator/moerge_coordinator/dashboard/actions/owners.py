"""Actions on owners: approve, revoke."""

from starlette.responses import Response

from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, invalid, said
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.signatures import JoinRequest, fingerprint, in_groups

_REPLACE = Field(
    "replace",
    "Key that the owner has",
    options=(("no", "keep it"), ("yes", "revoke it, and take the new one")),
    on_refusal=True,
)


def _ask_approve(visit: Visit) -> Form:
    facts = ("The owner runs moerge worker init, which prints a join request and the fingerprint of its key.",)
    spoken = "as the owner told you, by phone or in person: not from the message with the request"
    fields = (
        Field("request", "Join request", lines=True, hint="the line that begins with moerge-join-1."),
        Field("fingerprint", "Fingerprint", required=True, hint=spoken),
        _REPLACE,
    )
    return Form("Approve an owner", "Approve", f"{HOME}/owners", facts, fields)


def _approve(visit: Visit, given: Given) -> Response:
    try:
        join = JoinRequest.of_line(given.get("request", ""))
    except ValueError as error:
        raise invalid("request", str(error), "ask the owner for the complete line again") from error
    expected = fingerprint(join.public_key)
    if "".join(given.get("fingerprint", "").split()).lower() != expected:
        what = f"the request of {join.owner} has a key with another fingerprint: {in_groups(expected)}"
        raise invalid("fingerprint", what, "compare fingerprints with the owner before you approve")
    approved = visit.rest.approve(join, replace=given.get("replace") == "yes")
    return visit.show("approved.html", owner=approved.owner.name, token=approved.token.secret)


def _ask_revoke(visit: Visit) -> Form:
    name = visit.path["name"]
    facts = ("The key and all tokens become invalid immediately. Its contributions and experts stay.",)
    return Form(f"Revoke the key and tokens of {name}", "Revoke", f"{HOME}/owners", facts, danger=True)


def _revoke(visit: Visit, given: Given) -> str:
    visit.rest.revoke_owner(visit.path["name"])
    return said("/owners", "revoked")


ACTIONS = {
    "/owners/approve": Action(_ask_approve, _approve),
    "/owners/{name}/revoke": Action(_ask_revoke, _revoke),
}
