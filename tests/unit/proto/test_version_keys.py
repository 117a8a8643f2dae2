"""Rotations of the keys that sign versions: signed by both, and followed from a pinned key."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from pydantic import ValidationError

from moerge_proto.version_keys import KeyRotation, VersionKey, successors
from moerge_proto.version_signatures import fingerprint, public_pem

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ONE, TWO, THREE, EVIL = (generate_private_key(SECP256R1()) for _ in range(4))


def name(key: EllipticCurvePrivateKey) -> str:
    return fingerprint(public_pem(key))


def listed(*keys: EllipticCurvePrivateKey, revoked: EllipticCurvePrivateKey | None = None) -> list[VersionKey]:
    """Keys, each of which was rotated to the next."""
    rotations = [None, *(KeyRotation.make(old, new) for old, new in pairwise(keys))]
    return [
        VersionKey(
            number=number,
            public_key=public_pem(key),
            fingerprint=name(key),
            rotation=rotation,
            created=NOW,
            revoked=NOW if key is revoked else None,
        )
        for number, (key, rotation) in enumerate(zip(keys, rotations, strict=True), start=1)
    ]


def test_a_rotation_is_signed_by_both_keys_and_survives_the_network() -> None:
    rotation = KeyRotation.make(ONE, TWO)
    assert KeyRotation.model_validate_json(rotation.model_dump_json()) == rotation
    assert rotation.forged() is None
    for which, other in (("old", KeyRotation.make(EVIL, TWO)), ("new", KeyRotation.make(ONE, EVIL))):
        field = f"{which}_signature"
        assert rotation.model_copy(update={field: getattr(other, field)}).forged() == field
    assert rotation.model_copy(update={"new_key": public_pem(EVIL)}).forged() == "old_signature"
    assert rotation.model_copy(update={"old_signature": b"no DER"}).forged() == "old_signature"


def test_a_key_of_another_kind_is_refused() -> None:
    asked = KeyRotation.make(ONE, TWO).model_dump(mode="json")
    for key in (public_pem(generate_private_key(SECP384R1())), public_pem(ONE).strip(), "", "x" * 2000):
        with pytest.raises(ValidationError):
            KeyRotation.model_validate(asked | {"new_key": key})


def test_signed_rotations_lead_forward_only() -> None:
    keys = listed(ONE, TWO, THREE)
    names = [name(key) for key in (ONE, TWO, THREE)]
    assert [successors(keys, key) for key in names] == [names, names[1:], names[2:]]
    assert successors(keys, name(EVIL)) == [name(EVIL)]
    assert successors([], name(ONE)) == [name(ONE)]


def test_forged_rotations_and_those_of_revoked_keys_are_not_followed() -> None:
    one, two = listed(ONE, TWO)
    own = KeyRotation.make(EVIL, TWO).model_copy(update={"old_key": public_pem(ONE)})
    assert successors([one, two.model_copy(update={"rotation": own})], name(ONE)) == [name(ONE)]
    assert successors([one, two.model_copy(update={"rotation": None})], name(ONE)) == [name(ONE)]
    keys = listed(ONE, TWO, THREE, revoked=TWO)
    assert successors(keys, name(ONE)) == [name(ONE), name(TWO)]
    assert [successors(keys, name(key)) for key in (TWO, THREE)] == [[name(TWO)], [name(THREE)]]
    assert successors(listed(ONE, TWO, revoked=ONE), name(ONE)) == [name(ONE)]
