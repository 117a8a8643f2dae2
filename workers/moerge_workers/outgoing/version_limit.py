"""The budget: the number of evaluations that left in the last 30 days."""

from datetime import datetime, timedelta

from moerge_workers.outgoing.history import History, Item
from moerge_workers.policy import Policy

PERIOD = timedelta(days=30)
VERSION_REVEALS = (
    "What a further version could reveal:\n"
    "  - its routers count your held-out tokens, layer by layer; a dishonest coordinator can choose these tokens\n"
    "  - its head, which only the coordinator can make, weighs them in the version's perplexity\n"
    "  - approve it only if you know why so many versions were solved"
)


def versions(history: History) -> list[str]:
    """Digests of the evaluations first sent in the last 30 days."""
    first: dict[str, datetime] = {}
    for sending in history.sendings():
        if sending.item.kind == "evaluation":
            first.setdefault(sending.item.digest, sending.at)
    since = history.clock() - PERIOD
    return [digest for digest, at in first.items() if at > since]


def summary(history: History) -> str:
    return f"{len(versions(history))} evaluations"


def reveals(history: History, policy: Policy, item: Item) -> str | None:
    """The risk of an evaluation or of its version's use, if it exceeds the budget; else None."""
    is_new = item.kind in ("evaluation", "version-use") and history.movement(item) is None
    return VERSION_REVEALS if is_new and len(versions(history)) >= policy.versions_per_month else None
