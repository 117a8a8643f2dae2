"""The provenance of versions: its statement, owners' signatures in it, and its place beside a signed folder."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.client.signatures import folder_provenance, verify_folder
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.progress import LogProgress
from moerge_proto.digests import sha256_hex
from moerge_proto.provenance import Input, Origin, Provenance
from moerge_proto.signatures import SignedInput, fingerprint, in_groups, public_key_of
from moerge_proto.version_signatures import PROVENANCE_FILE, sign_version, signed_bundle, signed_statement

SILENT = LogProgress()
KEY, OWNER = generate_private_key(SECP256R1()), Ed25519PrivateKey.generate()
BODY, EXPERT, SUMS = "0" * 64, "1" * 64, "2" * 64


def inputs(owner: str = "firm") -> list[Input]:
    """A body, law's signed expert and contribution, and an unsigned expert of art; `owner`: as the provenance says."""
    signed: list[Input] = []
    for kind, digest in (("expert", EXPERT), ("router contribution", SUMS)):
        facts = {"kind": kind, "domain": "law", "body": BODY}
        by = SignedInput.model_validate({**facts, "owner": "firm", "digest": digest}).sign(OWNER)
        facts |= {"owner": owner, "public_key": public_key_of(OWNER), "signature": by}
        signed.append(Input.of(digest, Origin.model_validate(facts)))
    return [
        Input.of(BODY, Origin(kind="body")),
        *signed,
        Input.of("3" * 64, Origin(kind="expert", domain="art", owner="studio")),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A signed folder with the provenance of `provenance`."""
    (folder := tmp_path / "model").mkdir()
    for name in ("README.md", "config.json"):
        (folder / name).write_text(f"content of {name}")
    sign(folder, provenance(folder).statement())
    return folder


def sign(folder: Path, statement: bytes) -> None:
    (folder / "model.sig").write_text(sign_version(KEY, 3, "1.2.3", digests(folder), sha256_hex(statement)))
    (folder / PROVENANCE_FILE).write_text(signed_bundle(KEY, statement))


def digests(folder: Path) -> dict[str, str]:
    return {name: file_sha256(folder / name) for name in ("README.md", "config.json")}


def provenance(folder: Path, owner: str = "firm", **files: str) -> Provenance:
    parameters = {"body": "0" * 64, "head": "seed"}
    return Provenance.make({**digests(folder), **files}, parameters, "s", inputs(owner), "1.2.3", "c" * 40)


def test_the_statement_is_slsa_s_and_only_its_signature_differs(folder: Path) -> None:
    made = provenance(folder)
    first, second = (signed_bundle(KEY, made.statement()) for _ in range(2))
    assert first != second
    public_key = verify_folder(folder, None, SILENT).public_key
    [statement] = {signed_statement(bundle, public_key) for bundle in (first, second)}
    assert Provenance.of(statement) == made
    fields = json.loads(statement)
    assert (fields["_type"], fields["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert [item["name"] for item in fields["subject"]] == ["config.json"], "the card changes later"
    definition, details = fields["predicate"]["buildDefinition"], fields["predicate"]["runDetails"]
    assert definition["externalParameters"] == {"body": "0" * 64, "head": "seed"}
    assert [item["name"] for item in definition["resolvedDependencies"]] == [
        *("body", "expert of law", "router contribution of law", "expert of art")
    ]
    assert details["builder"]["version"] == {"moerge": "1.2.3"}
    assert details["builder"]["builderDependencies"] == [{"name": "moerge", "digest": {"gitCommit": "c" * 40}}]
    later = {**fields, "unknown": 1, "predicate": {**fields["predicate"], "unknown": 1}}
    assert Provenance.of(json.dumps(later).encode()) == made, "as SLSA asks of consumers"


def test_verify_prints_who_signed_what(folder: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(folder)], env={"COLUMNS": "150"})
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    assert rows == [["firm", "law", "expert, router contribution", ""], ["studio", "art", "", "expert"]]
    key = in_groups(fingerprint(public_key_of(OWNER)))
    assert f"owner firm: key {key}\nowner studio: nobody\n" in done.stdout
    done = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    assert [item["annotations"]["kind"] for item in json.loads(done.stdout)["inputs"]] == [
        *("body", "expert", "router contribution", "expert")
    ]


def test_a_key_without_a_signature_is_nobody_s(folder: Path) -> None:
    body, expert, *_ = inputs()
    claimed = expert.model_copy(update={"annotations": expert.annotations.model_copy(update={"signature": None})})
    made = Provenance.make(digests(folder), {}, "s", [body, claimed], "1.2.3", None)
    assert made.owner_keys == {"firm": {None}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"code": "0" * 64}, "is of other files: code"),
        ({"owner": "rival"}, "not by the owners' keys: expert of law, router contribution of law"),
    ],
)
def test_a_provenance_of_something_else_is_refused(folder: Path, change: dict[str, str], problem: str) -> None:
    sign(folder, provenance(folder, **change).statement())
    with pytest.raises(MoergeError, match=problem):
        folder_provenance(folder, verify_folder(folder, None, SILENT))


def test_another_statement_is_refused(folder: Path) -> None:
    """By another key, or of another kind."""
    statement, signed = provenance(folder).statement(), verify_folder(folder, None, SILENT)
    (folder / PROVENANCE_FILE).write_text(signed_bundle(generate_private_key(SECP256R1()), statement))
    with pytest.raises(MoergeError, match="another key"):
        folder_provenance(folder, signed)
    sign(folder, b"{}")
    with pytest.raises(MoergeError, match="not the provenance of a version"):
        folder_provenance(folder, verify_folder(folder, None, SILENT))
