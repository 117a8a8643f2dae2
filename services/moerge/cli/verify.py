"""`moerge verify …`"""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from moerge.cli.common import show
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
    as_json: AsJson = False,
) -> None:
    """Verify a version's files against its signature, model.sig, without a coordinator.

    Refuses altered, missing and additional files, and what isn't a regular file. Names the folders of git and other
    tools, which no signature covers. Without --key, compare the printed fingerprint with the operator's. Also verifies
    provenance.sigstore.json, and prints which owner signed which inputs of the version. Without --keys it can't know of
    revocations.

    Example: moerge verify my-model --key version-key.pub
    """
    unsigned = [name for name in TOOLS if (folder / name).exists()]
    signed = verify_folder(folder, key, progress(), [] if keys is None else _read(keys))
    provenance = folder_provenance(folder, signed)
    if as_json:
        facts = {"version": signed.number, "release": signed.release, "key": signed.fingerprint}
        inputs = [item.model_dump(mode="json") for item in provenance.inputs]
        show_json(
            {**facts, "compared": key is not None, "files": dict(signed.files), "unsigned": unsigned, "inputs": inputs}
        )
        return
    by = in_groups(signed.fingerprint)
    echo(f"{folder}: version {signed.number}, {len(signed.files)} files as signed by key {by}")
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
