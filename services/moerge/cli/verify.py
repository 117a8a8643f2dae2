"""`moerge verify …`"""

from pathlib import Path
from typing import Annotated

import typer

from moerge.client.signatures import verify_folder
from moerge.progress import progress
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.signatures import in_groups

Key = Annotated[
    str | None, typer.Option(help="Fingerprint of the operator's version key, or the file of its public key.")
]


def verify(
    folder: Annotated[Path, typer.Argument(help="A pulled version, or a copy of one.")],
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Verify a version's files against its signature, model.sig, without a coordinator.

    Refuses altered, missing and additional files. Without --key, compare the printed fingerprint with the operator's.

    Example: moerge verify my-model --key version-key.pub
    """
    signed = verify_folder(folder, key, progress())
    if as_json:
        facts = {"version": signed.number, "release": signed.release, "key": signed.fingerprint}
        show_json({**facts, "compared": key is not None, "files": dict(signed.files)})
        return
    by = in_groups(signed.fingerprint)
    echo(f"{folder}: version {signed.number}, {len(signed.files)} files as signed by key {by}")
    if key is None:
        echo("No key was given: compare the fingerprint with the operator's, over another channel.", err=True)
