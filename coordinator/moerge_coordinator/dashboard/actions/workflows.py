"""The retry of a workflow."""

from moerge_coordinator.dashboard.forms import Action, Form, Given, said
from moerge_coordinator.dashboard.site import HOME, Visit


def _ask_retry(visit: Visit) -> Form:
    facts = visit.path["id"], "The workflow starts again with the same inputs, and reuses its finished steps."
    return Form("Retry the workflow", "Retry", f"{HOME}/workflows", facts)


def _retry(visit: Visit, given: Given) -> str:
    visit.rest.retry_workflow(visit.path["id"])
    return said("/workflows", "started")


ACTIONS = {"/workflows/{id}/retry": Action(_ask_retry, _retry)}
