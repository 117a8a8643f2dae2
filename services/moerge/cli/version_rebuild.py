"""`moerge version rebuild`."""

from pathlib import Path
from typing import Annotated

import typer

from moerge.build import build
from moerge.cli.common import show
from moerge.cli.verify import Key
from moerge.client.signatures import expected_fingerprint, parsed, require_key
from moerge.errors import MoergeError
from moerge.progress import progress
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.signatures import in_groups


def rebuild(
    version: Annotated[int, typer.Argument(help="The version's number.")],
    inputs: Annotated[Path, typer.Option("--from", help="Folder by `moerge coordinator inputs`.")],
    out: Annotated[Path | None, typer.Option(help="New folder for the version. Default: only compare.")] = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Make a version again from its inputs, without a coordinator, and compare every file with the signed digest.

    Needs the release that published the version and its build of the solver; names others. Exits with 1 unless all
    files are equal. Without --key, compare the printed fingerprint with the operator's.

    Example: moerge version rebuild 3 --from inputs --key version-key.pub
    """
    from moerge.routers.ridge import SOLVER
    from moerge.versions.inputs import InputsFolder
    from moerge.versions.rebuilding import rebuilt_files

    folder = InputsFolder(inputs)
    exported = folder.exported(version)
    signed = parsed(exported.signature, str(folder.record(version)))
    if signed.number != version:
        what = f"has the signature of version {signed.number}"
        raise MoergeError(what, where=str(folder.record(version)), todo="export the inputs again")
    if key is not None:
        require_key(signed, expected_fingerprint(key), "given one")
    for what, then, here in (
        ("published by release", signed.release, build().version),
        ("solved by", exported.lineage.solver, SOLVER),
    ):
        if then != here:
            echo(f"Version {version} was {what} {then}; here: {here}. Files may differ.", err=True)
    made = rebuilt_files(folder, exported, out, progress())
    names = sorted(signed.files.keys() | made.keys())
    equal = {name: made.get(name) == signed.files.get(name) for name in names}
    if as_json:
        facts = {"version": version, "key": signed.fingerprint, "compared": key is not None}
        show_json({**facts, "files": {name: {"sha256": made.get(name), "equal": equal[name]} for name in names}})
    else:
        rows = [[name, made.get(name, "not made"), "equal" if equal[name] else "not equal"] for name in names]
        show(f"Version {version}, made again", ["file", "SHA-256", ""], rows)
        by = in_groups(signed.fingerprint)
        echo(f"{sum(equal.values())} of {len(names)} files are equal to those signed by key {by}")
    if not all(equal.values()):
        raise typer.Exit(1)
