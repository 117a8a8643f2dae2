"""Owners' keys: what is signed, by whom, and how one key takes another's place."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from moerge_coordinator.domain import owner_keys, owners
from moerge_coordinator.problems import RefusedError
from moerge_proto.contributions import NewContribution, signed_contribution
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import Rotation, fingerprint, public_key_of
from support.rows import Clock, add_body, add_contribution, add_expert
from support.statistics import honest_sums, manifest_of

DIGEST = "1" * 64
MANIFEST = manifest_of(honest_sums(8, 40, 1, 8, seed=0), 1)
SIGNED = signed_contribution(MANIFEST.model_copy(update={"owner": "firm"}), DIGEST)


@pytest.fixture
def key(session: Session) -> Ed25519PrivateKey:
    """The key of `firm`, whose domain is law."""
    key = Ed25519PrivateKey.generate()
    owners.add(session, "firm", ["law"])
    owner_keys.add_key(session, "firm", public_key_of(key), "public_key")
    return key


def active(session: Session, owner: str) -> list[str]:
    return [row.public_key for row in owner_keys.keys_of(session, owner) if row.revoked is None]


def signed(session: Session, owner: str, signature: str | None) -> str | None:
    manifest = MANIFEST.model_copy(update={"owner": owner})
    return owner_keys.require_signed(session, manifest, NewContribution(sha256=DIGEST, signature=signature))


def refusal(session: Session, owner: str, signature: str | None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        signed(session, owner, signature)
    assert (caught.value.kind, caught.value.where) == (ProblemType.FORBIDDEN, "signature")
    return caught.value


def test_signature_must_match_owner_key_and_contribution(session: Session, key: Ed25519PrivateKey) -> None:
    assert signed(session, "firm", SIGNED.sign(key)) == fingerprint(public_key_of(key))
    assert "it is missing" in refusal(session, "firm", None).what
    for other in (
        SIGNED.sign(Ed25519PrivateKey.generate()),
        SIGNED.model_copy(update={"owner": "another"}).sign(key),
        SIGNED.model_copy(update={"domain": "art"}).sign(key),
        SIGNED.model_copy(update={"kind": "head contribution"}).sign(key),
        SIGNED.model_copy(update={"body": "0" * 64}).sign(key),
        SIGNED.model_copy(update={"digest": "0" * 64}).sign(key),
        key.sign(bytes.fromhex(DIGEST)).hex(),
    ):
        assert "it is not key" in refusal(session, "firm", other).what


def test_an_owner_without_a_key_signs_nothing(session: Session, key: Ed25519PrivateKey) -> None:
    owners.add(session, "plain", ["art"])
    assert signed(session, "plain", None) is None
    assert "moerge owner approve" in refusal(session, "plain", SIGNED.sign(key)).todo


def test_rotated_key_and_revoked_owner_signatures_are_refused(
    session: Session, key: Ed25519PrivateKey, clock: Clock
) -> None:
    new = Ed25519PrivateKey.generate()
    clock.later(days=1)
    owner_keys.rotate(session, Rotation.make(key, new, "firm"))
    assert signed(session, "firm", SIGNED.sign(new)) == fingerprint(public_key_of(new))
    assert "was revoked on 2030-01-02 00:00" in refusal(session, "firm", SIGNED.sign(key)).what
    owner_keys.revoke_keys(session, "firm")
    for signature in (None, SIGNED.sign(new)):
        assert "ask the operator for the reason" in refusal(session, "firm", signature).todo


def test_rotation_requires_both_signatures_and_the_active_key(session: Session, key: Ed25519PrivateKey) -> None:
    new, stranger = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    owners.add(session, "other", ["art"])
    owner_keys.add_key(session, "other", public_key_of(stranger), "public_key")
    rotation = Rotation.make(key, new, "firm")
    old, renewed = rotation.old_signature, rotation.new_signature
    for wrong, kind, where in (
        (rotation.model_copy(update={"new_signature": old}), ProblemType.INVALID_REQUEST, "new_signature"),
        (rotation.model_copy(update={"old_signature": renewed}), ProblemType.INVALID_REQUEST, "old_signature"),
        (Rotation.make(new, Ed25519PrivateKey.generate(), "firm"), ProblemType.CONFLICT, "old_key"),
        (Rotation.make(key, stranger, "firm"), ProblemType.CONFLICT, "new_key"),
    ):
        with pytest.raises(RefusedError) as caught:
            owner_keys.rotate(session, wrong)
        assert (caught.value.kind, caught.value.where) == (kind, where)
        assert active(session, "firm") == [public_key_of(key)]
    for _ in range(2):  # the second changes nothing
        owner_keys.rotate(session, rotation)
        assert active(session, "firm") == [public_key_of(new)]
    with pytest.raises(RefusedError, match="keys can't be reused"):
        owner_keys.rotate(session, Rotation.make(new, key, "firm"))


def test_signatures_are_listed_in_contribution_order(session: Session, key: Ed25519PrivateKey) -> None:
    """The signature stays checkable after its key was revoked; what nobody signed says so."""
    law, art = add_expert(session, "law"), add_expert(session, "art")
    body, name = add_body(session), fingerprint(public_key_of(key))
    parts = [add_contribution(session, item, body) for item in (law, art)]
    facts = SIGNED.model_copy(update={"digest": parts[0].digest, "body": body.digest})
    parts[0].signature, parts[0].fingerprint = facts.sign(key), name
    session.flush()
    owner_keys.revoke_keys(session, "firm")
    for order in (parts, parts[::-1]):
        rows = list(owner_keys.signatures(session, [item.digest for item in order]))
        assert [item.digest for item in rows] == [item.digest for item in order]
        result = {item.domain: (item.public_key, item.is_genuine()) for item in rows}
        assert result == {"law": (public_key_of(key), True), "art": (None, False)}
