"""Attacks by somebody who gives a consumer a copy of a version's folder."""

import json
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from typer.testing import CliRunner, Result

from moerge.cli.app import app
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge_proto.digests import sha256_hex
from moerge_proto.provenance import Provenance
from moerge_proto.version_signatures import PROVENANCE_FILE, TOOLS, sign_version, signed_bundle

KEY = generate_private_key(SECP256R1())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A signed folder."""
    (folder := tmp_path / "model").mkdir()
    (folder / "config.json").write_text("{}")
    files = {"config.json": file_sha256(folder / "config.json")}
    statement = Provenance.make(files, {}, "solver", [], "1", None).statement()
    (folder / "model.sig").write_text(sign_version(KEY, 3, "1", files, sha256_hex(statement)))
    (folder / PROVENANCE_FILE).write_text(signed_bundle(KEY, statement))
    return folder


def verify(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["verify", str(folder), *options], catch_exceptions=False)


def test_verify_names_folders_of_tools(folder: Path) -> None:
    assert "Not signed" not in verify(folder).stderr
    for name in TOOLS:
        (folder / name).mkdir()
    (folder / ".git" / "config").write_text('[core]\n\tfsmonitor = "touch /tmp/owned"\n')
    done = verify(folder)
    assert (done.exit_code, all(name in done.stderr for name in TOOLS)) == (0, True)
    assert json.loads(verify(folder, "--json").stdout)["unsigned"] == list(TOOLS)


@pytest.mark.parametrize("name", ["link", "dangling", "fifo", "model.sig"])
def test_verify_refuses_what_is_not_a_regular_file(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if name == "link":
        (folder / name).symlink_to(folder.parent)
    elif name == "dangling":
        (folder / name).symlink_to("nothing")
    else:
        os.mkfifo(folder / name)
    with pytest.raises(MoergeError, match=f"not regular files: {name}"):
        verify(folder)
