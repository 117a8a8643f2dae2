"""Aliases, notes, retired and partial versions, and pulls."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerge.client.pull import pull
from moerge.errors import CoordinatorError
from moerge.progress import LogProgress
from moerge.versions.compare import compare
from moerge_proto.bodies import Body
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import Version, VersionChange
from support.federation import Federation, eventually, federation_of
from support.processes import ended, run_command, start_worker

BIASES: dict[str, Any] = {"family": "qwen3", "attention_bias": True}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Versions 1 to 3 differ by lambda. Two engines do not support their biases."""
    with federation_of(tmp_path_factory.mktemp("aliases"), "law", "art", **BIASES) as federation:
        federation.contribute(federation.body())
        for ridge_lambda in (1.0, 2.0, 3.0):
            solve(federation, ridge_lambda)
        yield federation


def solve(federation: Federation, ridge_lambda: float) -> Version:
    return federation.solve(options=SolveOptions(ridge_lambda=ridge_lambda))


def test_engines_that_do_not_run_a_version_are_named(federation: Federation) -> None:
    limits = federation.operator.engine_limits(1)
    assert [limit.engine for limit in limits] == ["vLLM", "llama.cpp"]
    shown, card = federation.moerge("version", "show", 1), federation.operator.version_card(1)
    for limit in limits:
        assert f"{limit.engine} {limit.happens}. To avoid it: {limit.remedy}." in shown
        assert f"**{limit.engine}** {limit.happens}" in card
    assert json.loads(federation.moerge("version", "show", 1, "--json"))["engines"] == [
        limit.model_dump() for limit in limits
    ]


def test_the_command_line_promotes_rolls_back_and_compares(federation: Federation) -> None:
    federation.moerge("version", "promote", 1)
    federation.moerge("version", "promote", 2, "--note", "sharper")
    assert "aliases: champion" in federation.moerge("version", "show", 2).lower()
    assert "lambda" in federation.moerge("version", "compare", 1, "champion")
    assert federation.moerge("version", "rollback") == "champion is version 1"
    assert "sharper" in federation.moerge("version", "history")
    assert {move.who for move in federation.operator.alias_history("champion")} == {"operator, token 1"}


def test_only_notes_and_tags_of_a_version_change(federation: Federation) -> None:
    before = federation.operator.version(2)
    changed = federation.operator.change_version(2, VersionChange(note="for the audit", tags=["b", "a"]))
    assert (changed.note, changed.tags) == ("for the audit", ["a", "b"])
    assert changed.model_copy(update={"note": before.note, "tags": before.tags}) == before
    assert federation.operator.change_version(2, VersionChange(tags=[])).note == "for the audit"


def test_a_retired_version_has_no_files(federation: Federation) -> None:
    version = solve(federation, 40.0)
    federation.operator.retire_version(version.number)
    assert not federation.version(version.number).exists()
    routers = next(file.sha256 for file in version.files if file.name == "model-router.safetensors")
    assert not (federation.server.home / "blobs" / routers[:2] / routers).exists()
    with pytest.raises(CoordinatorError, match="is retired"):
        federation.operator.engine_limits(version.number)
    assert "Retired" in federation.moerge("version", "show", version.number)
    again = solve(federation, 40.0)
    assert again.number > version.number
    assert {f.name: f.sha256 for f in again.files} == {f.name: f.sha256 for f in version.files}


def without_law(federation: Federation, number: int) -> Body:
    """Another seed's body, under which only art has contributed."""
    body = federation.reseed(number)
    federation.contribute(body, "art")
    return body


def test_a_solve_waits_for_missing_contributions(federation: Federation, tmp_path: Path) -> None:
    environment, solve = federation.server.environment(), ("version", "solve")
    body = without_law(federation, 1)
    done = run_command(*solve, **environment)
    assert (done.returncode, "a ready expert have not contributed: law\n" in done.stderr) == (1, True)
    assert "--wait" in done.stderr
    waiting = start_worker([*solve, "--wait"], environment, tmp_path / "waiting")
    eventually(lambda: "Waiting for the contributions of law.\n" in (tmp_path / "waiting").read_text())
    federation.contribute(body, "law")
    assert ended(waiting, 120) == 0
    assert "law, art. Missing: none. Head: average, because" in (tmp_path / "waiting").read_text()


def test_after_its_hours_a_wait_ends_with_the_minimum_or_names_the_missing(federation: Federation) -> None:
    environment, wait = federation.server.environment(), ("version", "solve", "--wait", "--hours", 0.0001)
    without_law(federation, 2)
    for more in ((), ("--minimum", 2)):
        done = run_command(*wait, *more, **environment)
        said = "after 0.0001 hours 1 domains have contributed; missing: law"
        assert (done.returncode, said in " ".join(done.stderr.split())) == (1, True), done.stderr
    number = int(run_command(*wait, "--minimum", 1, **environment).stdout)
    lineage = federation.operator.version(number).lineage
    assert (lineage.domains, lineage.left_out) == (["art"], ["law"])
    card = (federation.version(number) / "README.md").read_text()
    assert "Left out, because they had not contributed: law." in card
    refused = run_command("version", "solve", "--minimum", 1, **environment)
    assert (refused.returncode, "add --wait" in refused.stderr) == (1, True)


def test_a_promotion_that_removes_a_domain_is_confirmed(federation: Federation) -> None:
    environment = federation.server.environment()
    without_law(federation, 3)
    done = run_command("version", "solve", "--partial", **environment)
    partial = int(done.stdout)
    assert f"In version {partial}: art. Missing: law. Head: average, because" in done.stderr
    federation.operator.promote("shop", 1)
    promote = ("version", "promote", partial, "--alias", "shop")
    for done in (run_command(*promote, **environment), run_command(*promote, typed="n\n", **environment)):
        warning = f"Version {partial} lacks domains that shop, now version 1, has: law. Consumers lose them."
        assert (done.returncode, warning in done.stderr) == (1, True), done.stderr
        assert federation.operator.alias("shop").version == 1
    done = run_command(*promote, "--yes", **environment)
    assert (done.returncode, done.stdout) == (0, f"shop is version {partial}\n")
    assert f"Warning: version {partial} lacks domains of version 1: law\n" in done.stderr


# --- pulling


def content(folder: Path) -> dict[str, bytes]:
    """The files but the model card, which a pull completes, and the signature, which covers it."""
    later = {"README.md", "model.sig"}
    assert later <= {path.name for path in folder.iterdir()}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in later}


def test_a_pull_fetches_only_what_changed(federation: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    federation.operator.promote("followed", 1)
    assert "version 1" in federation.moerge("pull", "followed", folder)
    assert content(folder) == content(federation.server.home / "versions" / "1")
    before = (folder / "model-body.safetensors").stat().st_ino
    federation.operator.promote("followed", 2)
    fetched = pull(federation.operator, federation.operator.version(2), folder, LogProgress())
    card = federation.server.home / "versions" / "2" / "README.md"
    assert fetched == compare(*map(federation.operator.version, (1, 2))).fetch - card.stat().st_size
    assert content(folder) == content(federation.server.home / "versions" / "2")
    assert (folder / "model-body.safetensors").stat().st_ino == before
    assert pull(federation.operator, federation.operator.version(2), folder, LogProgress()) == 0
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"]


def test_a_pull_of_an_unknown_alias_is_refused(federation: Federation, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no alias 'chmapion'"):
        federation.moerge("pull", "chmapion", tmp_path / "model")


KILLED_AT = """
import sys, os, signal
from pathlib import Path
from moerge.client.client import Client
from moerge.progress import LogProgress
from moerge.client.pull import pull
url, token, number, folder, at = sys.argv[1:]
count = 0
def hook(event, args):
    global count
    if event in ("os.rename", "os.link", "os.remove", "os.mkdir", "shutil.rmtree") and ".part" in str(args):
        count += 1
        if count == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
with Client(url, token) as client:
    pull(client, client.version(int(number)), Path(folder), LogProgress())
"""


def test_a_pull_killed_anywhere_leaves_a_complete_folder(federation: Federation, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    versions = [content(federation.server.home / "versions" / str(number)) for number in (1, 2)]
    pull(federation.operator, federation.operator.version(1), folder, LogProgress())
    killed = 0
    for at in range(1, 100):
        arguments = [federation.server.url, federation.server.operator_token, "2", str(folder), str(at)]
        done = run_command(*arguments, script=KILLED_AT)
        assert content(folder) in versions
        if done.returncode == 0:
            break
        killed += 1
    assert killed >= 5
    assert content(folder) == versions[1]
    assert json.loads((folder / "config.json").read_text())


def test_a_pull_continues_a_half_file_unless_it_is_damaged(federation: Federation, tmp_path: Path) -> None:
    folder, name = tmp_path / "model", "model-body.safetensors"
    whole = (federation.server.home / "versions" / "1" / name).read_bytes()
    half = tmp_path / ".model.part" / f".{name}.part"
    half.parent.mkdir()
    half.write_bytes(whole[:-100])
    inode = half.stat().st_ino
    pull(federation.operator, federation.operator.version(1), folder, LogProgress())
    assert ((folder / name).read_bytes(), (folder / name).stat().st_ino) == (whole, inode)
    shutil.rmtree(folder)
    half.parent.mkdir()
    half.write_bytes(b"x" * 1000)
    pull(federation.operator, federation.operator.version(1), folder, LogProgress())
    assert (folder / name).read_bytes() == whole
