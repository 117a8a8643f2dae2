"""`moerge version rebuild`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moerge.build import build
from moerge.cli.common import show
from moerge.cli.verify import Key
from moerge.client.signatures import expected_fingerprint, parsed, require_key
from moerge.errors import MoergeError
from moerge.progress import progress
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.digests import sha256_hex
from moerge_proto.signatures import in_groups
from moerge_proto.version_files import CARD_FILE
from moerge_proto.version_signatures import SignedVersion

if TYPE_CHECKING:
    from moerge.versions.inputs import ExportedVersion


def rebuild(
    version: Annotated[int, typer.Argument(help="The version's number.")],
    inputs: Annotated[Path, typer.Option("--from", help="Folder by `moerge coordinator inputs`.")],
    out: Annotated[Path | None, typer.Option(help="New folder for the version. Default: only compare.")] = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Make a version again from its inputs, without a coordinator, and compare every file with the signed digest.

    Needs the release that published the version and its build of the solver; names others. Exits with 1 unless all
    files are equal; a card that was signed with later facts isn't compared. Without --key, compare the printed
    fingerprint with the operator's. Of an unsigned version prints the digests, for `moerge version sign --from`.

    Example: moerge version rebuild 3 --from inputs --key version-key.pub
    """
    from moerge.routers.ridge import SOLVER
    from moerge.versions.inputs import InputsFolder
    from moerge.versions.rebuilding import rebuilt_files

    folder = InputsFolder(inputs)
    exported = folder.exported(version)
    signed = _signed(exported, str(folder.record(version)), key)
    for what, then, here in (
        ("published by release", exported.release, build().version),
        ("solved by", exported.lineage.solver, SOLVER),
    ):
        if then != here:
            echo(f"Version {version} was {what} {then}; here: {here}. Files may differ.", err=True)
    made = rebuilt_files(folder, exported, out, progress())
    files = {} if signed is None else signed.files
    equal = {name: made.get(name) == files.get(name) for name in sorted(files.keys() | made.keys())}
    if exported.card is not None and files.get(CARD_FILE) == sha256_hex(exported.card.encode()):
        del equal[CARD_FILE]
    if as_json:
        by = None if signed is None else signed.fingerprint
        facts = {"version": version, "key": by, "compared": key is not None}
        states = {
            name: {"sha256": made.get(name), "equal": None if signed is None else state}
            for name, state in equal.items()
        }
        show_json({**facts, "files": states})
    elif signed is None:
        show(f"Version {version}, made again", ["file", "SHA-256"], [list(item) for item in made.items()])
        echo("The version is not signed, so the files can't be compared.")
    else:
        rows = [[name, made.get(name, "not made"), "equal" if state else "not equal"] for name, state in equal.items()]
        show(f"Version {version}, made again", ["file", "SHA-256", ""], rows)
        by = in_groups(signed.fingerprint)
        echo(f"{sum(equal.values())} of {len(equal)} files are equal to those signed by key {by}")
    if signed is not None and not all(equal.values()):
        raise typer.Exit(1)


def _signed(exported: "ExportedVersion", where: str, key: str | None) -> SignedVersion | None:
    """The version's signature, by the expected key; None if it is unsigned and no key is given."""
    if exported.signature is None and key is None:
        return None
    signed = parsed(exported.signature, where)
    if signed.number != exported.number:
        what = f"has the signature of version {signed.number}"
        raise MoergeError(what, where=where, todo="export the inputs again")
    if key is not None:
        require_key(signed, expected_fingerprint(key), "given one")
    return signed
