"""Actions on experts: withdraw, purge."""

from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, said
from moerge_coordinator.dashboard.site import HOME, Visit


def _ask_withdraw(visit: Visit) -> Form:
    expert = visit.rest.expert(visit.path["digest"])
    return Form(
        heading=f"Withdraw the expert of {expert.domain}",
        button="Withdraw",
        back=f"{HOME}/experts",
        facts=(
            "Later versions don't contain its MLPs and router column.",
            "A trunk that contains it is retired and merged again without it. Every owner then contributes again.",
        ),
        fields=(
            Field(
                "serve",
                "Versions that contain it",
                options=(("yes", "stay available"), ("no", "are withheld from now on")),
            ),
        ),
        danger=True,
    )


def _withdraw(visit: Visit, given: Given) -> str:
    visit.rest.withdraw_expert(visit.path["digest"], serve=given.get("serve") != "no")
    return said("/experts", "withdrawn")


def _ask_purge(visit: Visit) -> Form:
    expert = visit.rest.expert(visit.path["digest"])
    retire = (
        Field("retire", "Versions that contain it", options=(("no", "keep their files"), ("yes", "are retired"))),
    )
    return Form(
        heading=f"Purge the files of the expert of {expert.domain}",
        button="Purge",
        back=f"{HOME}/experts",
        facts=("Its files are deleted permanently, except those that a version still needs.",),
        fields=retire if visit.operates else (),
        danger=True,
    )


def _purge(visit: Visit, given: Given) -> str:
    visit.rest.purge_expert(visit.path["digest"], retire=given.get("retire") == "yes")
    return said("/experts", "purged")


ACTIONS = {
    "/experts/{digest}/withdraw": Action(_ask_withdraw, _withdraw),
    "/experts/{digest}/purge": Action(_ask_purge, _purge),
}
