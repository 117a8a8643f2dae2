"""`moerge verify …`"""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from moerge.cli.common import show, token_given
from moerge.client.client import Client
from moerge.client.grants import part_line, require_up_to_date
from moerge.client.signatures import folder_provenance, owner_lines, verify_folder
from moerge.errors import MoergeError
from moerge.progress import progress
from moerge.settings import read_text
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.provenance import Input, Provenance
from moerge_proto.signatures import in_groups
from moerge_proto.version_keys import VersionKey
from moerge_proto.version_signatures import TOOLS

_GIT = "Git runs commands of a .git folder: remove one that isn't yours."

Key = Annotated[
    str | None, typer.Option(help="Fingerprint of the operator's version key, or the file of its public key.")
]


def verify(
    folder: Annotated[Path, typer.Argument(help="A pulled version, or a copy of one.")],
    key: Key = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="File with the JSON of `moerge version keys`: follows rotations, refuses revoked keys."),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Also ask the coordinator whether you may still use the version.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator, for --online.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option("--token", envvar="MOERGE_TOKEN", callback=token_given, help="Bearer token, for --online."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a version's files against its signature, model.sig, without a coordinator.

    Refuses altered, missing and additional files, and what isn't a regular file. Names the folders of git and other
    tools, which no signature covers. Without --key, compare the printed fingerprint with the operator's. Also verifies
    provenance.sigstore.json, and prints which owner signed which inputs of the version. Without --keys it can't know of
    revocations. --online refuses a folder that is out of date, because a grant has ended, the version is retired or its
    key is revoked; a server may run it before its start.

    Example: moerge verify my-model --key version-key.pub
    """
    unsigned = [name for name in TOOLS if (folder / name).exists()]
    signed = verify_folder(folder, key, progress(), [] if keys is None else _read(keys))
    provenance = folder_provenance(folder, signed)
    if online:
        if coordinator is None or secret is None:
            raise MoergeError("needs a coordinator and a token", where="--online", todo="set --coordinator and --token")
        with Client(coordinator, secret) as client:
            require_up_to_date(client, folder, signed)
    if as_json:
        part = {} if signed.part is None else {"part": signed.part}
        facts = {"version": signed.number, **part, "release": signed.release, "key": signed.fingerprint}
        inputs = [item.model_dump(mode="json") for item in provenance.inputs]
        show_json(
            {**facts, "compared": key is not None, "files": dict(signed.files), "unsigned": unsigned, "inputs": inputs}
        )
        return
    by = in_groups(signed.fingerprint)
    echo(f"{folder}: version {signed.name}, {len(signed.files)} files as signed by key {by}")
    if signed.part is not None:
        echo(part_line(folder))
    if unsigned:
        echo(f"Not signed, so not verified: {', '.join(unsigned)}. {_GIT}", err=True)
    columns = ["owner", "domain", "signed by the owner", "not signed"]
    show("Inputs of the version", columns, _rows(provenance))
    for line in owner_lines(provenance):
        echo(line)
    if key is None:
        echo("No key was given: compare the fingerprint with the operator's, over another channel.", err=True)


def _rows(provenance: Provenance) -> list[list[str]]:
    """The inputs of each owner and domain."""
    owned = dict[tuple[str, str], list[Input]]()
    for item in provenance.inputs:
        if (origin := item.annotations).owner is not None:
            owned.setdefault((origin.owner, origin.domain or ""), []).append(item)
    return [
        [
            *who,
            ", ".join(item.annotations.kind for item in items if item.is_signed),
            ", ".join(item.annotations.kind for item in items if not item.is_signed),
        ]
        for who, items in owned.items()
    ]


def _read(path: Path) -> list[VersionKey]:
    try:
        return TypeAdapter(list[VersionKey]).validate_json(read_text(path))
    except ValidationError as error:
        todo = "write it with: moerge version keys --json"
        raise MoergeError("expected a list of version keys as JSON", where=str(path), todo=todo) from error
