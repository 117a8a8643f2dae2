"""`moerge progress`"""

from datetime import timedelta

from moerge.cli.common import Coordinator, Secret, show
from moerge.client.client import Client


def show_progress(coordinator: Coordinator, secret: Secret) -> None:
    """Shows how far each domain's worker is, if its owner lets that leave; an owner sees its own.

    Example: moerge progress
    """
    with Client(coordinator, secret) as client:
        rows = [
            [
                row.domain,
                row.owner,
                row.stage.value,
                f"{row.shards_done:,} of {row.shards_total:,}",
                f"{row.tokens_per_second:,}" if row.tokens_per_second else "",
                "" if row.seconds_left is None else str(timedelta(seconds=row.seconds_left)),
                "" if row.obstacle is None else row.obstacle.words,
                f"{row.heard:%Y-%m-%d %H:%M:%S} UTC",
            ]
            for row in client.progress()
        ]
    show(
        "Progress",
        ["domain", "owner", "stage", "shards", "tokens/s", "time left", "obstacle", "last heard"],
        rows,
    )
