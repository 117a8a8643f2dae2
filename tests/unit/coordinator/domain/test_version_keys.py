"""Keys that sign versions: one for all coordinators of a database, rotated, revoked, or elsewhere."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy.orm import Session

from moerge.blobs.local import LocalBlobs
from moerge.client.version_key import read_version_key, write_public_key
from moerge.errors import MoergeError
from moerge.versions.file_plan import written
from moerge_coordinator.domain import cards, version_keys
from moerge_coordinator.domain.provenance import provenance_of
from moerge_coordinator.evaluations.scores import card_scores, evaluate
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import VersionRow
from moerge_coordinator.storage.version_key import KEY_FILE, PUBLIC_FILE
from moerge_proto.digests import sha256_hex
from moerge_proto.owners import Identity, Role
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import in_groups
from moerge_proto.version_keys import KeyRotation, NewSignature
from moerge_proto.version_signatures import (
    SignedVersion,
    fingerprint,
    public_pem,
    sign_version,
    signed_bundle,
    signed_statement,
)
from moerge_proto.versions import VersionFile
from support.evaluations import evaluation
from support.rows import add_body, add_contribution, add_expert, add_version

SCORES = [card_scores]
CARD = b"---\nlicense: mit\n---\n\n# Model\n\nText.\n\n## Scores\n\nNone.\n\n## Use\n"


def name(key: EllipticCurvePrivateKey) -> str:
    return fingerprint(public_pem(key))


def home_of(folder: Path, key: EllipticCurvePrivateKey | None = None, *, public: bool = False) -> Path:
    """A home with a key's file, or only with its public one."""
    folder.mkdir()
    if key is not None and public:
        write_public_key(folder / PUBLIC_FILE, public_pem(key))
    elif key is not None:
        (folder / KEY_FILE).write_bytes(pem(key))
    return folder


def pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture
def key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


@pytest.fixture
def home(session: Session, key: EllipticCurvePrivateKey, tmp_path: Path) -> Path:
    """The first home of a database, with its key."""
    version_keys.agree(session, home := home_of(tmp_path / "home", key))
    return home


def rotated(session: Session, old: EllipticCurvePrivateKey) -> EllipticCurvePrivateKey:
    version_keys.rotate(session, KeyRotation.make(old, new := generate_private_key(SECP256R1())))
    return new


def active(session: Session) -> str | None:
    row = version_keys.active(session)
    return None if row is None else row.fingerprint


def test_a_first_home_makes_its_key_once(session: Session, tmp_path: Path) -> None:
    home = home_of(tmp_path / "home")
    for _ in range(2):
        version_keys.agree(session, home)
    made = read_version_key(home / KEY_FILE)
    assert active(session) == name(made)
    assert (home / PUBLIC_FILE).read_text() == public_pem(made)
    assert (home / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert version_keys.signing_key(session, home) is not None


def test_homes_of_one_database_have_one_key(
    session: Session, home: Path, key: EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    version_keys.agree(session, home_of(tmp_path / "same", key))
    version_keys.agree(session, away := home_of(tmp_path / "public", key, public=True))
    assert version_keys.signing_key(session, away) is None
    other = generate_private_key(SECP256R1())
    for folder, here in (
        (home_of(tmp_path / "other", other), in_groups(name(other))),
        (home_of(tmp_path / "other public", other, public=True), in_groups(name(other))),
        (home_of(tmp_path / "none"), "none"),
    ):
        with pytest.raises(MoergeError, match=f"is {in_groups(name(key))}; this home has {here}") as caught:
            version_keys.agree(session, folder)
        assert KEY_FILE in caught.value.todo
    assert not (tmp_path / "none" / KEY_FILE).exists()
    assert active(session) == name(key)


def test_after_a_rotation_only_homes_with_a_public_key_follow(
    session: Session, home: Path, key: EllipticCurvePrivateKey, tmp_path: Path
) -> None:
    away = home_of(tmp_path / "away", key, public=True)
    new = rotated(session, key)
    assert version_keys.signing_key(session, home) is None
    version_keys.agree(session, away)
    assert (away / PUBLIC_FILE).read_text() == public_pem(new)
    with pytest.raises(MoergeError, match=f"{in_groups(name(new))}; this home has {in_groups(name(key))}"):
        version_keys.agree(session, home)


def test_a_rotation_is_by_the_active_key_and_repeatable(
    session: Session, home: Path, key: EllipticCurvePrivateKey
) -> None:
    new, other = (generate_private_key(SECP256R1()) for _ in range(2))
    asked = KeyRotation.make(key, new)
    forged = asked.model_copy(update={"old_signature": KeyRotation.make(other, new).old_signature})
    with pytest.raises(RefusedError, match="not that key's signature"):
        version_keys.rotate(session, forged)
    for _ in range(2):
        version_keys.rotate(session, asked)
    assert [row.fingerprint for row in version_keys.keys(session)] == [name(key), name(new)]
    for old, to in ((key, other), (other, generate_private_key(SECP256R1()))):
        with pytest.raises(RefusedError, match="not the active key"):
            version_keys.rotate(session, KeyRotation.make(old, to))
    with pytest.raises(RefusedError, match="in use before"):
        version_keys.rotate(session, KeyRotation.make(new, key))


def test_a_revoked_key_signs_nothing_and_another_takes_its_place(
    session: Session, home: Path, key: EllipticCurvePrivateKey
) -> None:
    since = version_keys.revoke(session, name(key)).revoked
    assert version_keys.revoke(session, name(key)).revoked == since
    assert version_keys.signing_key(session, home) is None
    with pytest.raises(RefusedError, match="not the active key"):
        rotated(session, key)
    with pytest.raises(MoergeError, match=f"{in_groups(name(key))} was revoked"):
        version_keys.agree(session, home)
    for file in (KEY_FILE, PUBLIC_FILE):
        (home / file).unlink()
    version_keys.agree(session, home)
    assert active(session) == name(read_version_key(home / KEY_FILE)) != name(key)
    with pytest.raises(RefusedError, match="no version key"):
        version_keys.revoke(session, "0" * 64)


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "blobs")


@pytest.fixture
def version(session: Session, blobs: LocalBlobs) -> VersionRow:
    """An unsigned version with a card."""
    law = add_expert(session, "law")
    add_contribution(session, law, add_body(session))
    row = add_version(session)
    entry = blobs.put("README.md", lambda out: written(CARD, out))
    row.files = [*row.files, VersionFile(**entry.model_dump(), new=True)]
    row.signature = row.provenance = row.key = None
    return row


def files_of(session: Session, row: VersionRow) -> dict[str, str]:
    """Its files with the present card."""
    card = cards.version_card(session, row, CARD.decode(), None, SCORES)
    return {file.name: file.sha256 for file in row.files} | {"README.md": sha256_hex(card.encode())}


def signature_of(session: Session, row: VersionRow, key: EllipticCurvePrivateKey) -> NewSignature:
    statement = provenance_of(session, row).statement()
    signature = sign_version(key, 1, "0", files_of(session, row), sha256_hex(statement))
    return NewSignature(signature=signature, provenance=signed_bundle(key, statement))


def test_a_signature_made_elsewhere_is_stored_with_its_card(
    session: Session, home: Path, key: EllipticCurvePrivateKey, version: VersionRow, blobs: LocalBlobs
) -> None:
    assert cards.signed_card(session, blobs, version, None, None, SCORES).signature is None
    version_keys.sign(session, blobs, version, signature_of(session, version, key), SCORES)
    assert version.key == name(key)
    for signer in (None, key):  # which covers another card than the published one, so it isn't signed anew
        served = cards.signed_card(session, blobs, version, None, signer, SCORES)
        assert SignedVersion.of(served.signature or "").files["README.md"] == sha256_hex(served.card.encode())
        assert "Version 1, published on" in served.card


def test_an_owner_gets_no_signed_card_with_results_of_another(
    session: Session, home: Path, key: EllipticCurvePrivateKey, version: VersionRow, blobs: LocalBlobs
) -> None:
    law = Identity(role=Role.OWNER, owner="law-owner", domains=["law"])
    evaluate(session, law, 1, evaluation(1))
    version_keys.sign(session, blobs, version, signature_of(session, version, key), SCORES)
    served = [cards.signed_card(session, blobs, version, owner, None, SCORES).card for owner in (None, "law-owner")]
    assert "arc_easy" in served[0] == served[1]
    with pytest.raises(RefusedError, match="scores of other owners"):
        cards.signed_card(session, blobs, version, "art-owner", None, SCORES)


def test_a_signature_of_anything_else_is_refused(
    session: Session, home: Path, key: EllipticCurvePrivateKey, version: VersionRow, blobs: LocalBlobs
) -> None:
    files, other = files_of(session, version), generate_private_key(SECP256R1())
    new = signature_of(session, version, key)
    stated = sha256_hex(signed_statement(new.provenance, public_pem(key)))
    good = new.signature
    moved, payload = json.loads(good), json.loads(sign_version(key, 2, "0", files, stated))["dsseEnvelope"]["payload"]
    moved["dsseEnvelope"]["payload"] = payload
    for signature, kind, what in (
        (sign_version(other, 1, "0", files, stated), ProblemType.FORBIDDEN, f"by key {in_groups(name(other))}"),
        (sign_version(key, 2, "0", files, stated), ProblemType.CONFLICT, "of version 2 by"),
        (sign_version(key, 1, "9", files, stated), ProblemType.CONFLICT, "by release 9"),
        (sign_version(key, 1, "0", files | {"README.md": "0" * 64}, stated), ProblemType.CONFLICT, "README.md"),
        (
            sign_version(key, 1, "0", files | {"model-router.safetensors": "0" * 64}, stated),
            ProblemType.CONFLICT,
            "router",
        ),
        (sign_version(key, 1, "0", files | {"modeling.py": "0" * 64}, stated), ProblemType.CONFLICT, r"modeling\.py"),
        (json.dumps(moved), ProblemType.INVALID_REQUEST, "it was changed"),
        ("{}", ProblemType.INVALID_REQUEST, "not the signature of a version"),
    ):
        with pytest.raises(RefusedError, match=what) as caught:
            version_keys.sign(session, blobs, version, new.model_copy(update={"signature": signature}), SCORES)
        assert (caught.value.kind, caught.value.where) == (kind, "signature")
    rotated(session, key)
    with pytest.raises(RefusedError, match="not by the active key"):
        version_keys.sign(session, blobs, version, new, SCORES)
    assert version.signature is None
