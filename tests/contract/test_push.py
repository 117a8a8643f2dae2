"""Pushes to a stand-in of the hub, by the real library over HTTP."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from huggingface_hub import constants
from typer.testing import CliRunner, Result

from moerge.cli.push import app
from moerge.client.signatures import verify_folder
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.progress import LogProgress
from moerge.versions.hub_results import write_hub_results
from moerge_proto.digests import sha256_hex
from moerge_proto.provenance import Provenance
from moerge_proto.version_signatures import fingerprint, public_pem, sign_version, signed_bundle
from support.benchmarks import reported
from support.hub import TOKEN, Hub, hub_server

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the library's way to upload
KEY = generate_private_key(SECP256R1())
BY = fingerprint(public_pem(KEY))
CARD = """---
license: {license}
base_model: [lab/seed, lab/law]
base_model_relation: merge
---

# A card
"""
NAME = "org/experts"


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with hub_server() as made:
        yield made


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """An empty hub, which the library in this process uses, with a token for it."""
    server.repositories.clear()
    server.stored.clear()
    server.calls.clear()
    server.fail_after = None
    monkeypatch.setattr(constants, "ENDPOINT", server.url)  # as HF_ENDPOINT, before the library's import
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return server


def signed(
    folder: Path, number: int = 3, license: str = "apache-2.0", more: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """A version's folder, signed; `more`: stem of a safetensors file -> its content."""
    folder.mkdir()
    (folder / "README.md").write_text(CARD.format(license=license))
    contents = {"config.json": "{}", "model-body.safetensors": "body", "model-router.safetensors": f"router {number}"}
    contents |= {f"{name}.safetensors": text for name, text in more.items()}
    for name, text in contents.items():
        (folder / name).write_text(text)
    files = {path.name: file_sha256(path) for path in folder.iterdir()}
    statement = Provenance.make(files, {}, "solver", [], "1", None).statement()
    (folder / "model.sig").write_text(sign_version(KEY, number, "1", files, sha256_hex(statement)))
    (folder / "provenance.sigstore.json").write_text(signed_bundle(KEY, statement))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return signed(tmp_path / "model", more={"model-expert-00000": "law", "model-expert-00001": "art"})


def push(folder: Path, *options: str, name: str = NAME) -> Result:
    """A push in this process; its MoergeError is raised."""
    return CliRunner().invoke(app, [str(folder), name, *options], catch_exceptions=False)


def downloaded(hub: Hub, folder: Path) -> Path:
    """The files that a consumer of the repository gets."""
    for name, data in hub.repositories[NAME].files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_a_draft_is_verified_pushed_and_verified_again(server: Hub, hub: Hub, folder: Path, tmp_path: Path) -> None:
    """By the command itself, as a user runs it."""
    assert write_hub_results([reported("gsm8k", metric="exact_match,strict-match", limit=None)], folder) == ["gsm8k"]
    command = [sys.executable, "-m", "moerge", "push", str(folder), NAME, "--key", BY]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    made = hub.repositories[NAME]
    assert (made.private, made.commits) == (True, ["initial commit", "Version 3"])
    assert f"{NAME}: version 3, 9 files" in done.stdout
    assert f"private, commit {made.sha[:12]}: {hub.url}/{NAME}" in done.stdout
    copy = downloaded(hub, tmp_path / "copy")
    assert verify_folder(copy, BY, LogProgress()).number == 3
    names = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert {".eval_results/gsm8k.yaml", "model.sig", "provenance.sigstore.json"} <= names
    assert hub.calls[0] == "POST /api/validate-yaml", "before anything is made"


def test_a_later_version_replaces_the_draft_and_sends_only_its_own_files(
    hub: Hub, folder: Path, tmp_path: Path
) -> None:
    push(folder)
    sent, before = hub.uploads, set(hub.repositories[NAME].files)
    later = signed(tmp_path / "later", 4, more={"model-expert-00000": "law"})
    assert "public" in push(later, "--public").stdout
    made = hub.repositories[NAME]
    assert (made.private, made.commits[1:]) == (False, ["Version 3", "Version 4"])
    assert before - made.files.keys() == {"model-expert-00001.safetensors"}
    assert hub.uploads - sent == 1, "the routers; large storage has the rest"
    assert verify_folder(downloaded(hub, tmp_path / "copy"), BY, LogProgress()).number == 4
    with pytest.raises(MoergeError, match=f"{NAME}: is public already"):
        push(folder)
    assert made.commits[-1] == "Version 4"


def test_an_interrupted_upload_shows_nothing_and_is_resumed(hub: Hub, folder: Path) -> None:
    hub.fail_after = 2
    with pytest.raises(MoergeError, match="finished uploads are not sent again"):
        push(folder)
    assert hub.repositories[NAME].files.keys() == {".gitattributes"}
    assert len(hub.stored) == hub.fail_after
    hub.fail_after = None
    hub.calls.clear()
    push(folder)
    assert hub.uploads == 2, "of four large files"
    assert len(hub.repositories[NAME].files) == 9


def test_a_dry_run_checks_folder_and_card_and_makes_nothing(hub: Hub, folder: Path, tmp_path: Path) -> None:
    said = push(folder, "--dry-run").stdout
    assert "model-expert-00001.safetensors  3 bytes\n" in said
    assert "nothing was uploaded" in said
    assert hub.calls == ["POST /api/validate-yaml"]
    with pytest.raises(MoergeError, match=r"the hub refuses the model card: .*must be one of the licences"):
        push(signed(tmp_path / "unlicensed", license="my own"))
    assert hub.calls == ["POST /api/validate-yaml"] * 2


def test_files_that_no_version_has_are_refused_by_name(hub: Hub, folder: Path, tmp_path: Path) -> None:
    (folder / "modeling.py").write_text("")
    with pytest.raises(MoergeError, match=r"files are not the signed ones: modeling\.py"):
        push(folder)
    (folder / "modeling.py").unlink()
    for name, text in (("gsm8k", "- dataset:\n"), ("private", "law: 1\n")):
        (folder / ".eval_results").mkdir(exist_ok=True)
        (result := folder / ".eval_results" / f"{name}.yaml").write_text(text)
        with pytest.raises(MoergeError, match=rf"not results of the hub's benchmarks .*{name}\.yaml"):
            push(folder)
        result.unlink()
    with pytest.raises(MoergeError, match=r"has files that no version has: evil\.safetensors"):
        push(signed(tmp_path / "signed-code", more={"evil": "by the operator"}))
    with pytest.raises(MoergeError, match="not by the given one"):
        push(folder, "--key", "0" * 64)
    assert hub.calls == []
    push(folder)
    hub.repositories[NAME].files["handler.py"] = b"by another program"
    with pytest.raises(MoergeError, match=r"has files that no version has: handler\.py"):
        push(folder)


@pytest.mark.parametrize("case", ["name", "token", "owner", "away"])
def test_errors_say_what_to_do(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    name, expected = {
        "name": ("experts", "name it as org/name"),
        "token": (NAME, "hf auth login"),
        "owner": ("others/experts", "don't have the rights.*(\n.*)*a token that may write"),
        "away": (NAME, "can't be reached.*(\n.*)*check the network and HF_ENDPOINT"),
    }[case]
    if case == "token":
        monkeypatch.setenv("HF_TOKEN", "hf_another")
    if case == "away":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        assert "has not checked the card" in push(folder, "--dry-run").stderr
    with pytest.raises(MoergeError, match=expected):
        push(folder, name=name)
    assert hub.repositories == {}
