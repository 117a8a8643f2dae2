"""The budget: numbers of merged bodies and versions with outgoing data in the last 30 days."""

from collections.abc import Callable
from datetime import datetime, timedelta

from moerge_workers.leaving.history import History, Item, Sending
from moerge_workers.policy import Policy

PERIOD = timedelta(days=30)
BODY_REVEALS = (
    "What a further body could reveal:\n"
    "  - each body is a new question about the same text; the answers to many can together reveal the text\n"
    "  - a dishonest coordinator can craft a body whose sums count chosen tokens, or hold traces of single ones\n"
    "  - approve it only if you know why the body was merged, such as an added or removed expert"
)
VERSION_REVEALS = (
    "What a further version could reveal:\n"
    "  - its routers count your held-out tokens, layer by layer; a dishonest coordinator can choose these tokens\n"
    "  - its head, which only the coordinator can make, weighs them in the version's perplexity\n"
    "  - approve it only if you know why so many versions were solved"
)


def bodies(history: History) -> list[str]:
    """Merged bodies with their first outgoing data in the last 30 days, withdrawn or not."""
    return [body for body in _recent(history, lambda sending: sending.item.body) if not history.is_seed(body)]


def versions(history: History) -> list[str]:
    """Digests of the evaluations first sent in the last 30 days."""
    return _recent(history, lambda sending: sending.item.digest if sending.item.kind == "evaluation" else "")


def summary(history: History) -> str:
    return f"{len(bodies(history))} merged bodies, {len(versions(history))} evaluations"


def reveals(history: History, policy: Policy, item: Item) -> str | None:
    """The risk of an item's body or version, if it exceeds the budget; else None."""
    if item.kind in ("evaluation", "version-use"):
        first = history.movement(item) is None
        return VERSION_REVEALS if first and len(versions(history)) >= policy.versions_per_month else None
    if not item.body or history.is_seed(item.body):  # nobody but the owner chose it
        return None
    first = all(sending.item.body != item.body for sending in history.sendings())
    return BODY_REVEALS if first and len(bodies(history)) >= policy.bodies_per_month else None


def _recent(history: History, name: Callable[[Sending], str]) -> list[str]:
    first: dict[str, datetime] = {}
    for sending in history.sendings():
        if key := name(sending):
            first.setdefault(key, sending.at)
    since = history.clock() - PERIOD
    return [key for key, at in first.items() if at > since]
