"""The budget: under how many trunks, and of how many versions, something left in the last 30 days."""

from collections.abc import Callable
from datetime import datetime, timedelta

from moerge_workers.leaving.history import History, Item, Sending
from moerge_workers.policy import Policy

PERIOD = timedelta(days=30)
TRUNK_REVEALS = (
    "What a further trunk could tell:\n"
    "  - each trunk is a new question about the same text; the answers to many trunks, together, can give it away\n"
    "  - a coordinator that lies can make a trunk whose sums count chosen tokens, or hold the trace of a single one\n"
    "  - say yes only if you know why the trunk was merged, such as an expert that joined or was removed"
)
VERSION_REVEALS = (
    "What a further version could tell:\n"
    "  - its routers count your held-out tokens, layer by layer; a coordinator that lies can choose what they count\n"
    "  - say yes only if you know why so many versions were solved"
)


def trunks(history: History) -> list[str]:
    """Trunks under which something first left in the last 30 days; one that was withdrawn since counts too."""
    return _recent(history, lambda sending: sending.item.trunk)


def versions(history: History) -> list[str]:
    """Evaluations that first left in the last 30 days, by their digests."""
    return _recent(history, lambda sending: sending.item.digest if sending.item.kind == "evaluation" else "")


def told(history: History) -> str:
    """The counts of the budget, in words."""
    return f"{len(trunks(history))} trunks, {len(versions(history))} evaluations"


def reveals(history: History, policy: Policy, item: Item) -> str | None:
    """The danger of an item's trunk or version, if that is beyond the budget; None if it is not."""
    if item.kind in ("evaluation", "version-use"):
        first = history.movement(item) is None
        return VERSION_REVEALS if first and len(versions(history)) >= policy.versions_per_month else None
    first = bool(item.trunk) and all(sending.item.trunk != item.trunk for sending in history.sendings())
    return TRUNK_REVEALS if first and len(trunks(history)) >= policy.trunks_per_month else None


def _recent(history: History, name: Callable[[Sending], str]) -> list[str]:
    first: dict[str, datetime] = {}
    for sending in history.sendings():
        if key := name(sending):
            first.setdefault(key, sending.at)
    since = history.clock() - PERIOD
    return [key for key, at in first.items() if at > since]
