"""`moerge version sign`, and the commands of the keys that sign versions."""

from pathlib import Path
from typing import Annotated

import typer

from moerge.cli.common import Coordinator, Secret, Yes, confirm, minute, show, the_one
from moerge.client.client import Client
from moerge.client.version_key import read_version_key, rotate, unsigned
from moerge.progress import progress
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.signatures import in_groups
from moerge_proto.version_keys import VersionKey
from moerge_proto.version_signatures import fingerprint, public_pem

PrivateKey = Annotated[
    Path, typer.Option("--key", help="File of the private key, PEM. It is read on this machine only.")
]


def sign(
    version: Annotated[str, typer.Argument(help="The version's number, or a part's name.")],
    key: PrivateKey,
    coordinator: Coordinator,
    secret: Secret,
    rebuilt: Annotated[
        Path | None, typer.Option("--from", help="Folder by `moerge version rebuild`; refuses other files.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Sign a version with a key that the coordinator doesn't have, or again after a rotation or with later scores.

    Shows the card and the digests that the signature covers, asks, and uploads only the signature. Refuses other files
    than were signed before. The signed card has the scores of now.

    Example: moerge version sign 3 --key version-key.pem --from made
    """
    private = read_version_key(key)
    with Client(coordinator, secret) as client:
        facts = unsigned(client, client.version(version))
        if rebuilt is not None:
            facts.require_rebuilt(rebuilt, progress())
        echo(facts.card)
        rows = [list(item) for item in facts.files.items()]
        show(f"Version {version}, published by release {facts.release}", ["file", "SHA-256"], rows)
        if facts.earlier is not None:
            echo(f"Signed before by key {in_groups(facts.earlier)}", err=True)
        by = in_groups(fingerprint(public_pem(private)))
        compared = "were not compared with others" if rebuilt is None else f"are those of {rebuilt}"
        confirm(f"Key {by} signs these files, which {compared}.", yes=yes)
        client.sign_version(version, facts.sign(private))
    echo(f"version {version} is signed by key {by}")


def list_keys(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List the keys that sign or signed versions, oldest first. `moerge verify --keys` reads the JSON.

    Example: moerge version keys --json
    """
    with Client(coordinator, secret) as client:
        keys = list(client.version_keys())
    if as_json:
        show_json(keys)
        return
    for row in keys:
        echo(f"{in_groups(row.fingerprint)}\n  {_state(row, keys[-1])}")


def _state(row: VersionKey, last: VersionKey) -> str:
    since = f"since {minute(row.created)}"
    if row.rotation is not None:
        since += f", rotated from {in_groups(fingerprint(row.rotation.old_key))}"
    if row.revoked is not None:
        return f"{since}, revoked {minute(row.revoked)}"
    return f"{since}, {'active' if row is last else 'rotated; its signatures stay valid'}"


def rotate_key(key: PrivateKey, coordinator: Coordinator, secret: Secret) -> None:
    """Replace the key that signs versions, in its file and at the coordinator. If the command is killed, run it again.

    The old key signs the rotation, so pulls follow it. Earlier signatures stay valid. After a theft, revoke the key.

    Example: moerge version rotate-key --key version-key.pem
    """
    with Client(coordinator, secret) as client:
        old, new = rotate(client, key)
    echo(f"The key of versions was: {in_groups(old)}\nIt is now: {in_groups(new)}")
    echo("Tell consumers the new fingerprint, and copy the key to all coordinators that share the database.", err=True)


def revoke_key(
    name: Annotated[str, typer.Argument(metavar="FINGERPRINT", help="The key's fingerprint, or its first digits.")],
    coordinator: Coordinator,
    secret: Secret,
    yes: Yes = False,
) -> None:
    """Revoke a key of versions: pulls refuse the versions that it signed, and no rotation leads on from it.

    If it is the active one, versions are published unsigned until the coordinator starts with another key.

    Example: moerge version revoke-key 3f2a91c0
    """
    with Client(coordinator, secret) as client:
        digits = "".join(name.split()).lower()
        found = the_one("key", digits, (row.fingerprint for row in client.version_keys()))
        confirm(f"Key {in_groups(found)} is revoked immediately and permanently.", yes=yes)
        client.revoke_version_key(found)
    echo(f"{in_groups(found)}: revoked. Sign its versions again with another key: moerge version sign")
