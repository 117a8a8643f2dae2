"""Actions on experts and contributions: withdraw, purge."""

from typing import Any

from moerge.statistics.kinds import CONTRIBUTIONS, ROUTER, ContributionKind
from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, said
from moerge_coordinator.dashboard.site import HOME, Visit


def _ask_withdraw(visit: Visit) -> Form:
    expert = visit.rest.expert(visit.path["digest"])
    facts = ("Later versions have no MLPs, head or router column of it.",)
    options = ("yes", "stay available"), ("no", "are withheld from now on")
    fields = (Field("serve", "Versions that contain it", options=options),)
    heading = f"Withdraw the expert of {expert.domain}"
    return Form(heading, "Withdraw", f"{HOME}/experts", facts, fields, danger=True)


def _withdraw(visit: Visit, given: Given) -> str:
    visit.rest.withdraw_expert(visit.path["digest"], serve=given.get("serve") != "no")
    return said("/experts", "withdrawn")


def _ask_purge(visit: Visit) -> Form:
    expert = visit.rest.expert(visit.path["digest"])
    facts = ("Its files are deleted permanently, except those that a version still needs.",)
    options = ("no", "keep their files"), ("yes", "are retired")
    fields = (Field("retire", "Versions that contain it", options=options),) if visit.operates else ()
    heading = f"Purge the files of the expert of {expert.domain}"
    return Form(heading, "Purge", f"{HOME}/experts", facts, fields, danger=True)


def _purge(visit: Visit, given: Given) -> str:
    visit.rest.purge_expert(visit.path["digest"], retire=given.get("retire") == "yes")
    return said("/experts", "purged")


def _kind(visit: Visit) -> ContributionKind[Any]:
    return CONTRIBUTIONS.get(visit.query.get("kind", ""), ROUTER)


def _ask_withdraw_contribution(visit: Visit) -> Form:
    kind = _kind(visit)
    again = "The owner's worker sends it again while its documents are in the data. moerge worker refuse stops that."
    heading = f"Withdraw {kind.name} contribution {visit.path['digest'][:10]}"
    back = f"{HOME}/contributions?kind={kind.name}"
    return Form(heading, "Withdraw", back, (kind.withdrawal, again), danger=True)


def _withdraw_contribution(visit: Visit, given: Given) -> str:
    visit.rest.withdraw_contribution(visit.path["digest"])
    return f"{said('/contributions', 'withdrawn')}&kind={_kind(visit).name}"


ACTIONS = {
    "/experts/{digest}/withdraw": Action(_ask_withdraw, _withdraw),
    "/experts/{digest}/purge": Action(_ask_purge, _purge),
    "/contributions/{digest}/withdraw": Action(_ask_withdraw_contribution, _withdraw_contribution),
}
