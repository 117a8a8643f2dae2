"""Join requests, rotations and signatures: exact bytes, and nothing in them can be changed unseen."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from moerge_proto.contributions import ContributionSignature
from moerge_proto.digests import canonical_json, sha256_hex
from moerge_proto.signatures import (
    JoinRequest,
    Rotation,
    SignedInput,
    fingerprint,
    in_groups,
    is_signed,
    public_key_of,
)

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
PUBLIC, FOREIGN = public_key_of(KEY), public_key_of(OTHER)
WHEN = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
DIGEST, BODY = sha256_hex(b"a contribution"), "b" * 64
INPUT = SignedInput(kind="router contribution", owner="hospital", domain="medicine", body=BODY, digest=DIGEST)
REQUEST = JoinRequest.make(KEY, "hospital", ["medicine", "nursing"], WHEN)
ROTATION = Rotation.make(KEY, OTHER, "hospital")


def line_of(content: dict[str, Any]) -> str:
    coded = base64.urlsafe_b64encode(canonical_json(content)).decode().rstrip("=")
    return f"moerge-join-1.{coded}"


def test_keys_and_signatures_are_those_of_rfc_8032() -> None:
    """Its section 7.1, test 2."""
    key = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    )
    assert public_key_of(key) == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    signature = (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert is_signed(public_key_of(key), b"\x72", signature)
    assert not is_signed(public_key_of(key), b"\x73", signature)


def test_these_bytes_are_signed() -> None:
    """Golden: other bytes would make every earlier signature worthless."""
    assert INPUT.message().decode() == (
        f'{{"body":"{BODY}","digest":"{DIGEST}","domain":"medicine","kind":"router contribution",'
        '"owner":"hospital","purpose":"moerge input","version":1}'
    )
    assert (
        REQUEST.message()
        == (
            '{"created":"2026-05-01T12:30:00Z","domains":["medicine","nursing"],"owner":"hospital",'
            f'"public_key":"{PUBLIC}","purpose":"moerge join","version":1}}'
        ).encode()
    )
    rotated = (
        f'{{"new_key":"{FOREIGN}","old_key":"{PUBLIC}","owner":"hospital","purpose":"moerge rotation","version":1}}'
    )
    assert is_signed(PUBLIC, rotated.encode(), ROTATION.old_signature)
    assert is_signed(FOREIGN, rotated.encode(), ROTATION.new_signature)


def test_fingerprint_is_sha_256_of_the_key_shown_in_groups() -> None:
    assert fingerprint(PUBLIC) == sha256_hex(bytes.fromhex(PUBLIC))
    assert in_groups("0123456789ab") == "0123 4567 89ab"


def test_a_request_is_one_line_and_comes_back_as_it_was() -> None:
    line = REQUEST.line()
    assert line.isascii()
    assert not set(line) & set(" \n=+/")
    assert JoinRequest.of_line(line) == REQUEST
    broken_by_a_mail = f"  {line[:70]}\r\n{line[70:140]}\n {line[140:]}\n"
    assert JoinRequest.of_line(broken_by_a_mail) == REQUEST


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("owner", "hospice"),
        ("domains", ["medicine"]),
        ("domains", ["nursing", "medicine"]),
        ("domains", ["law", "medicine", "nursing"]),
        ("public_key", FOREIGN),
        ("created", "2026-05-01T12:30:01Z"),
        ("signature", KEY.sign(b"else").hex()),
        ("signature", OTHER.sign(REQUEST.message()).hex()),
        ("signature", INPUT.sign(KEY)),
    ],
)
def test_a_request_with_any_other_field_is_refused(field: str, value: Any) -> None:
    changed = REQUEST.model_dump(mode="json") | {field: value}
    assert not JoinRequest.model_validate(changed).is_genuine()
    with pytest.raises(ValueError, match="changed in transit"):
        JoinRequest.of_line(line_of(changed))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "expected a line that begins with 'moerge-join-1.', found ''"),
        ("moerge_secret", "found 'moerge_secret'"),
        (REQUEST.line().replace("join-1", "join-2"), "begins with 'moerge-join-1.'"),
        (REQUEST.line()[:-4], "damaged"),
        (f"{REQUEST.line()}AAAA", "damaged"),
        ("moerge-join-1.", "damaged"),
        ("moerge-join-1.é", "damaged"),
        (line_of({"owner": "hospital"}), "damaged"),
        (line_of(REQUEST.model_dump(mode="json") | {"more": 1}), "damaged"),
        (line_of(REQUEST.model_dump(mode="json") | {"owner": "../x"}), "damaged"),
        (line_of(REQUEST.model_dump(mode="json") | {"created": "2026-05-01T14:30:00+02:00"}), "changed in transit"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(line: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        JoinRequest.of_line(line)


@given(at=st.integers(len("moerge-join-1."), len(REQUEST.line()) - 1), to=st.characters(codec="ascii"))
def test_no_single_character_of_a_request_can_be_changed(at: int, to: str) -> None:
    line = REQUEST.line()
    changed = line[:at] + to + line[at + 1 :]
    if changed == line:
        return
    with pytest.raises(ValueError, match="the request is"):
        JoinRequest.of_line(changed)


@pytest.mark.parametrize(("owner", "domains"), [("../x", ["law"]), ("x", ["Law"]), ("x", []), ("", ["law"])])
def test_a_request_of_something_that_is_no_name_is_never_made(owner: str, domains: list[str]) -> None:
    with pytest.raises(ValidationError):
        JoinRequest.make(KEY, owner, domains, WHEN)


def test_requests_of_one_key_at_two_times_differ() -> None:
    assert JoinRequest.make(KEY, "hospital", ["medicine"], WHEN + timedelta(seconds=1)) != REQUEST


@pytest.mark.parametrize(
    ("field", "value", "forged"),
    [
        ("owner", "hospice", "old_signature"),
        ("old_key", FOREIGN, "old_signature"),
        ("new_key", PUBLIC, "old_signature"),
        ("old_signature", ROTATION.new_signature, "old_signature"),
        ("new_signature", ROTATION.old_signature, "new_signature"),
    ],
)
def test_a_rotation_is_forged_unless_both_keys_signed_all_of_it(field: str, value: str, forged: str) -> None:
    assert ROTATION.forged() is None
    assert ROTATION.model_copy(update={field: value}).forged() == forged


@pytest.mark.parametrize(
    "change",
    [
        {"owner": "hospice"},
        {"digest": "0" * 64},
        {"domain": "nursing"},
        {"kind": "head"},
        {"body": "0" * 64},
        {"body": None},
        {"public_key": FOREIGN},
        {"signature": INPUT.sign(OTHER)},
        {"signature": KEY.sign(DIGEST.encode()).hex()},
        {"public_key": None, "signature": None},
    ],
)
def test_signature_is_valid_only_for_its_own_contribution(change: dict[str, Any]) -> None:
    signed = ContributionSignature(
        kind="router",
        digest=DIGEST,
        owner="hospital",
        domain="medicine",
        body=BODY,
        public_key=PUBLIC,
        signature=INPUT.sign(KEY),
    )
    assert signed.is_genuine()
    assert not signed.model_copy(update=change).is_genuine()
