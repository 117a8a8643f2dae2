"""A version's inputs, exported by one process, and the version that another makes of them in another folder."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge_proto.versions import Version
from support.federation import Federation, federation_of
from support.processes import moerge, run_command


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art under the seed's body, with a version."""
    with federation_of(tmp_path_factory.mktemp("rebuild"), "law", "art") as made:
        made.contribute(made.body())
        made.solve()
        yield made


@pytest.fixture
def version(federation: Federation) -> Version:
    """The version, whose owners allow redistribution."""
    for member in federation.members.values():
        member.allow()
    return federation.operator.version(1)


def exported(federation: Federation, out: Path) -> Path:
    moerge("coordinator", "inputs", federation.server.home, 1, "--out", out)
    return out


def test_law_3_another_operator_makes_the_same_bytes(federation: Federation, version: Version, tmp_path: Path) -> None:
    inputs = exported(federation, tmp_path / "inputs").rename(tmp_path / "elsewhere")
    assert inputs.stat().st_mode & 0o777 == 0o700
    made = tmp_path / "made"
    said = json.loads(moerge("version", "rebuild", 1, "--from", inputs, "--out", made, "--json"))
    assert {name: file["sha256"] for name, file in said["files"].items()} == {
        file.name: file.sha256 for file in version.files
    }
    assert (all(file["equal"] for file in said["files"].values()), said["key"]) == (True, version.key)
    moerge("verify", made, "--key", said["key"])


def test_an_unsigned_version_is_made_again_and_not_compared(
    federation: Federation, version: Version, tmp_path: Path
) -> None:
    inputs = exported(federation, tmp_path / "inputs")
    record = inputs / "versions" / "1.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"signature": None}))
    said = json.loads(moerge("version", "rebuild", 1, "--from", inputs, "--out", tmp_path / "made", "--json"))
    assert {name: file["sha256"] for name, file in said["files"].items()} == {
        file.name: file.sha256 for file in version.files
    }
    assert (said["key"], {file["equal"] for file in said["files"].values()}) == (None, {None})
    assert not (tmp_path / "made" / "model.sig").exists()
    assert "is not signed" in run_command("version", "rebuild", 1, "--from", inputs, "--key", "0" * 64).stderr


def test_a_changed_byte_of_an_input_is_named(federation: Federation, version: Version, tmp_path: Path) -> None:
    inputs = exported(federation, tmp_path / "inputs")
    name = f"contributions/{version.lineage.contributions[1]}"
    data = bytearray((inputs / name).read_bytes())
    data[-1] ^= 1
    (inputs / name).write_bytes(data)
    done = run_command("version", "rebuild", 1, "--from", inputs)
    assert (done.returncode, f"altered or absent inputs: {name}" in " ".join(done.stderr.split())) == (1, True)


def test_files_of_another_version_are_not_equal(federation: Federation, version: Version, tmp_path: Path) -> None:
    inputs = exported(federation, tmp_path / "inputs")
    record = inputs / "versions" / "1.json"
    facts = json.loads(record.read_text())
    facts["lineage"]["options"]["ridge_lambda"] = 1000.0
    record.write_text(json.dumps(facts))
    done = run_command("version", "rebuild", 1, "--from", inputs, "--json")
    equal = {name: file["equal"] for name, file in json.loads(done.stdout)["files"].items()}
    other = {"README.md", "moerge.json", "moerge-report.json", "model-router.safetensors"}
    assert (done.returncode, {name for name in equal if not equal[name]}) == (1, other)


def test_inputs_of_an_owner_who_does_not_allow_it_are_missing_and_named(
    federation: Federation, version: Version, tmp_path: Path
) -> None:
    federation.members["art"].allow(redistribute=False)
    inputs = tmp_path / "inputs"
    done = run_command("coordinator", "inputs", federation.server.home, 1, "--out", inputs)
    said = " ".join(done.stdout.split())
    assert (done.returncode, "of art: art-owner doesn't allow" in said, "of law" in said) == (1, True, False)
    law, art = version.lineage.experts
    assert {path.name for path in (inputs / "experts").iterdir()} == {law}
    kept = len(version.lineage.contributions + version.lineage.head.contributions) // 2
    assert len(list((inputs / "contributions").iterdir())) == kept
    done = run_command("version", "rebuild", 1, "--from", inputs)
    assert (done.returncode, f"expert {art[:12]} of art" in " ".join(done.stderr.split())) == (1, True)
