"""`moerge body …`"""

from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import Coordinator, Secret, minute, show, show_list, the_one
from moerge.client.client import Client
from moerge.terminal import AsJson, show_json
from moerge_proto.bodies import Body

_DIGITS = 64
Digest = Annotated[
    str | None, typer.Argument(help="The body's digest, or its first digits, or 'current'. None: a list of all.")
]


def show_bodies(coordinator: Coordinator, secret: Secret, digest: Digest = None, as_json: AsJson = False) -> None:
    """List the bodies of registered seeds, or show one, its seed, and the versions on it.

    Example: moerge body current
    """
    with Client(coordinator, secret) as client:
        if digest is None:
            columns = ["digest", "seed", "family", "made", ""]
            show_list("Bodies", columns, client.bodies(), _line, as_json=as_json)
        else:
            _show_one(client, digest, as_json=as_json)


def _line(row: Body) -> list[str]:
    return [row.digest, row.source or "", row.family, minute(row.created), "current" if row.current else ""]


def _show_one(client: Client, digest: str, *, as_json: bool) -> None:
    whole = digest == "current" or len(digest) == _DIGITS
    row = client.body(digest if whole else the_one("body", digest, (item.digest for item in client.bodies())))
    if as_json:
        show_json(row)
        return
    versions = [str(version.number) for version in client.versions() if version.lineage.body == row.digest]
    lines = {
        "digest": row.digest,
        "seed": row.source or "",
        "licence": row.license,
        "family": f"{row.family}, {row.layers} layers, hidden size {row.hidden_size}",
        "tensors": f"{row.tensors}, {decimal(sum(file.size for file in row.files))}",
        "fractional bits": f"{min(row.exponents)} to {max(row.exponents)}",
        "versions on it": ", ".join(versions) or "none",
        "registered": minute(row.created) + (", the current one" if row.current else ""),
    }
    show("Body", ["", ""], [list(line) for line in lines.items()])
