"""The budget: numbers of compared merged bodies and of versions with outgoing data in the last 30 days."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from moerge_workers.leaving.history import History, Item
from moerge_workers.policy import Policy

PERIOD = timedelta(days=30)
BODY_REVEALS = (
    "What a further body could reveal:\n"
    "  - its comparison with the text: a refusal tells the coordinator one bit\n"
    "  - each body is a new question about the same text; the answers to many can together reveal the text\n"
    "  - a dishonest coordinator can craft a body whose sums count chosen tokens, or hold traces of single ones\n"
    "  - approve it only if you know why the body was merged, such as an added or removed expert"
)
TWIN_REVEALS = (
    "This body is nearly an earlier one: {}.\n"
    "  - a merge from other experts changes every matrix that they trained, so a forged body is likely\n"
    "  - the difference of the sums under both can be the text behind a single token; merged_share hides it\n"
    "  - approve it only if the operator's change explains it: the experts that changed didn't train this matrix"
)
VERSION_REVEALS = (
    "What a further version could reveal:\n"
    "  - its routers count your held-out tokens, layer by layer; a dishonest coordinator can choose these tokens\n"
    "  - its head, which only the coordinator can make, weighs them in the version's perplexity\n"
    "  - approve it only if you know why so many versions were solved"
)


def bodies(history: History) -> list[str]:
    """Merged bodies first compared in the last 30 days, refused or not."""
    return _recent(history, history.compared())


def versions(history: History) -> list[str]:
    """Digests of the evaluations first sent in the last 30 days."""
    first: dict[str, datetime] = {}
    for sending in history.sendings():
        if sending.item.kind == "evaluation":
            first.setdefault(sending.item.digest, sending.at)
    return _recent(history, first)


def summary(history: History) -> str:
    return f"{len(bodies(history))} merged bodies, {len(versions(history))} evaluations"


def reveals(history: History, policy: Policy, item: Item) -> str | None:
    """The risk of an item's body or version, if it exceeds the budget or is a twin; else None."""
    if item.kind in ("evaluation", "version-use"):
        first = history.movement(item) is None
        return VERSION_REVEALS if first and len(versions(history)) >= policy.versions_per_month else None
    first = item.kind == "body-use" and item.body not in history.compared()
    if first and (how := history.twin(item.body)) is not None:
        return TWIN_REVEALS.format(how)
    return BODY_REVEALS if first and len(bodies(history)) >= policy.bodies_per_month else None


def _recent(history: History, first: Mapping[str, datetime]) -> list[str]:
    since = history.clock() - PERIOD
    return [key for key, at in first.items() if at > since]
