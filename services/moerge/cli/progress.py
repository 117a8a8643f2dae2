"""`moerge progress`"""

from datetime import timedelta

from moerge.cli.common import Coordinator, Secret, show_list
from moerge.client.client import Client
from moerge.terminal import AsJson
from moerge_proto.progress import DomainProgress


def show_progress(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Show the progress of each domain's worker, if its owner's policy allows it; owners see only their own.

    Example: moerge progress
    """
    columns = ["domain", "owner", "stage", "shards", "tokens/s", "time left", "obstacle", "last heard"]
    with Client(coordinator, secret) as client:
        show_list("Progress", columns, client.progress(), _line, as_json=as_json)


def _line(row: DomainProgress) -> list[str]:
    return [
        row.domain,
        row.owner,
        row.stage.value,
        f"{row.shards_done:,} of {row.shards_total:,}",
        f"{row.tokens_per_second:,}" if row.tokens_per_second else "",
        "" if row.seconds_left is None else str(timedelta(seconds=row.seconds_left)),
        "" if row.obstacle is None else row.obstacle.words,
        f"{row.heard:%Y-%m-%d %H:%M:%S} UTC",
    ]
