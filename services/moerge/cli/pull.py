"""`moerge pull …`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.common import Coordinator, Secret
from moerge.cli.verify import Key
from moerge.cli.versions import WhichPart, resolve_any
from moerge.client.client import Client
from moerge.client.grants import part_line
from moerge.client.pull import pull as pull_version
from moerge.client.signatures import expected_fingerprint, folder_provenance, owner_lines, read_signature
from moerge.errors import MoergeError
from moerge.progress import progress
from moerge.terminal import echo
from moerge_proto.signatures import in_groups


def pull(
    version: WhichPart,
    folder: Annotated[Path, typer.Argument(help="A new folder, or the folder of an earlier pull.")],
    coordinator: Coordinator,
    secret: Secret,
    key: Key = None,
    accept_owner: Annotated[
        list[str] | None, typer.Option(help="Owner whose key may differ from the earlier pull's; repeat.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the earlier version, in FOLDER-VERSION; not experts whose grant ended.")
    ] = False,
    older: Annotated[bool, typer.Option("--older", help="Accept an alias of an earlier version.")] = False,
) -> None:
    """Download a version into FOLDER, in the format of transformers. Existing files are reused.

    Checks every file, the model card too, against the version's signature, before FOLDER appears. The first pull
    into FOLDER pins the version key, which --key names before, and the keys of the owners. Follows rotations that the
    pinned version key has signed. Refuses unsigned versions, revoked keys, other files for a number that was pulled
    before, other keys of known owners without --accept-owner, and an alias of an earlier version than FOLDER's without
    --older. An interrupted pull leaves FOLDER unchanged; the next one resumes.

    If owners grant a reader some of the version's experts, the pull fetches the part of it with these. Files of experts
    whose grant has ended leave FOLDER.

    Example: moerge pull champion my-model
    """
    earlier = read_signature(folder)
    pinned = None if earlier is None else earlier.fingerprint
    if key is not None:
        pinned = expected_fingerprint(key)
    with Client(coordinator, secret) as client:
        which = resolve_any(client, version)
        is_alias = isinstance(which, int) and not version.isdecimal()
        if earlier is not None and is_alias and int(which) < earlier.number and not older:
            what = f"{version} is version {which}; the folder has version {earlier.number}, a later one"
            todo = f"set `older` if the operator says that {version} was rolled back"
            raise MoergeError(what, where=str(folder), todo=todo)
        fetched = pull_version(
            client,
            client.version(which),
            folder,
            progress(),
            key,
            accept_owner or (),
            keep=keep,
            tell=lambda line: echo(line, err=True),
        )
    signed = read_signature(folder)
    by = "" if signed is None else f", signed by key {in_groups(signed.fingerprint)}"
    echo(f"{folder}: version {which if signed is None else signed.name}, {decimal(fetched)} fetched{by}")
    if signed is not None and signed.part is not None:
        echo(f"  {part_line(folder)}")
    for line in [] if signed is None else owner_lines(folder_provenance(folder, signed)):
        echo(f"  {line}")
    if signed is not None and pinned is not None and pinned != signed.fingerprint:
        echo(f"The key was rotated from {in_groups(pinned)}, which has signed the rotation.", err=True)
