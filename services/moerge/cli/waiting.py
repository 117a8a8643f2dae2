"""The waiting of `moerge version solve --wait`."""

import time

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.terminal import echo

_LONGEST_PAUSE = 5.0


def wait_for_contributions(client: Client, minimum: int | None = None, hours: float | None = None) -> bool:
    """Waits until no domain is missing, and at least `minimum` have contributed; prints the missing ones.

    Returns:
        True: after `hours` some are still missing, but at least the `minimum` have contributed.

    Raises:
        MoergeError: after `hours` too few have contributed.
    """
    shown, pause, begin = "", 0.1, time.monotonic()
    while True:
        now = client.contributors()
        if not now.missing and len(now.contributed) >= (minimum or 0):
            return False
        if hours is not None and time.monotonic() - begin >= 3600 * hours:
            break
        line = _line(client, now.missing)
        if line != shown:
            echo(line, err=True)
        shown = line
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    if minimum is not None and len(now.contributed) >= minimum:
        return True
    problem = f"after {hours:g} hours {len(now.contributed)} domains have contributed; missing: {_named(now.missing)}"
    raise MoergeError(problem, where="`minimum`", todo="wait again, or give the number of domains that is enough")


def _line(client: Client, missing: list[str]) -> str:
    if not missing:
        return "Waiting for more domains."
    why = {item.domain: f" ({item.obstacle.words})" for item in client.progress() if item.obstacle is not None}
    return f"Waiting for the contributions of {', '.join(domain + why.get(domain, '') for domain in missing)}."


def _named(missing: list[str]) -> str:
    return ", ".join(missing) or "none that has joined"
