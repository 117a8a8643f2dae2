"""The lines of docs/operators/trust.md that publish a version on the hub, typed against a stand-in of it."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from moerge.files import file_sha256
from moerge_proto.digests import sha256_hex
from moerge_proto.provenance import Provenance
from moerge_proto.version_signatures import public_pem, sign_version, signed_bundle
from support.hub import TOKEN, Hub, hub_server
from support.transcripts import blocks, typed

KEY, NAME = generate_private_key(SECP256R1()), "org/name"
CARD = "---\nlicense: apache-2.0\nbase_model: [lab/seed, lab/law]\nbase_model_relation: merge\n---\n\n# A card\n"
[LINES] = [typed(block) for block in blocks("docs/operators/trust.md") if block.section == "Publish on the hub"]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the lines are typed."""
    (tmp_path / "version-key.pub").write_text(public_pem(KEY))
    return tmp_path


def pulled(folder: Path, number: int, *experts: str) -> None:
    """A version's folder, signed."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    names = ["README.md", "config.json", *(f"model-{name}.safetensors" for name in ("body", "router", *experts))]
    for name in names:
        text = CARD if name == "README.md" else f"{name} {number if 'router' in name else ''}"
        (folder / name).write_text(text)
    files = {name: file_sha256(folder / name) for name in names}
    statement = Provenance.make(files, {}, "solver", [], "1", None).statement()
    (folder / "model.sig").write_text(sign_version(KEY, number, "1", files, sha256_hex(statement)))
    (folder / "provenance.sigstore.json").write_text(signed_bundle(KEY, statement))


def run(line: str, hub: Hub, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    given |= {"HF_HOME": str(folder / "hf"), "PATH": path}
    return subprocess.run(  # noqa: S603
        ["/bin/bash", "-c", line],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **given},
        check=False,
    )


def typed_all(hub: Hub, folder: Path) -> Path:
    """The consumer's copy, verified, after all lines."""
    for line in [*LINES, "moerge verify copy --key version-key.pub"]:
        done = run(line, hub, folder)
        assert done.returncode == 0, f"{shlex.quote(line)}\n{done.stdout}\n{done.stderr}"
    return folder / "copy"


def test_a_version_is_verified_and_published_as_a_private_draft(hub: Hub, folder: Path) -> None:
    pulled(folder / "my-model", 3, "expert-00000", "expert-00001")
    copy = typed_all(hub, folder)
    assert hub.repositories[NAME].private
    names = {path.name for path in (folder / "my-model").iterdir()}
    assert {path.name for path in copy.iterdir()} >= names
    sent = hub.uploads
    pulled(folder / "my-model", 4, "expert-00000")
    assert run(LINES[0], hub, folder).returncode == 0
    assert names - hub.repositories[NAME].files.keys() == {"model-expert-00001.safetensors"}
    assert hub.uploads - sent == 1, "the routers; large storage has the rest"


def test_a_folder_that_is_not_as_signed_is_not_published(hub: Hub, folder: Path) -> None:
    pulled(folder / "my-model", 3)
    (folder / "my-model" / "modeling.py").touch()
    done = run(LINES[0], hub, folder)
    assert done.returncode == 1
    assert "files are not the signed ones: modeling.py" in done.stderr
    assert hub.repositories == {}
    assert hub.calls == []
