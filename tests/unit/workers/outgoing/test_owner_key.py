"""The owner's key file: made once, private, found where it lies, and told about when it is something else."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from moerge.errors import MoergeError
from moerge_proto.signatures import SignedInput, is_signed, public_key_of
from moerge_workers.outgoing.owner_key import join_request, key_file, read_owner_key, signature

PEM = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))


def test_a_key_is_made_once_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "firm.pem"
    requests = [join_request(path, "firm", domains) for domains in (["law", "art", "law"], ["art"])]
    assert requests[0].domains == ["art", "law"]
    assert [request.public_key for request in requests] == 2 * [public_key_of(read_owner_key(path))]
    assert all(request.is_genuine() for request in requests)
    assert path.stat().st_mode & 0o777 == 0o600
    assert join_request(tmp_path / "other" / "firm.pem", "firm", ["art"]).public_key != requests[0].public_key


def test_key_in_worker_home_precedes_the_shared_key(tmp_path: Path) -> None:
    shared, own = tmp_path / "user" / ".moerge" / "firm.pem", tmp_path / "worker" / "firm.pem"
    facts = SignedInput(kind="head contribution", owner="firm", domain="law", body=None, digest="0" * 64)
    assert key_file(own.parent, "firm") == shared
    assert signature(own.parent, facts) is None
    for path in (shared, own):
        request = join_request(path, "firm", ["law"])
        assert key_file(own.parent, "firm") == path
        signed = signature(own.parent, facts)
        assert signed is not None
        assert is_signed(request.public_key, facts.message(), signed)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "not an Ed25519 key in PKCS#8 PEM"),
        (b"not a key", "not an Ed25519 key in PKCS#8 PEM"),
        (
            Ed25519PrivateKey.generate().private_bytes(*PEM, serialization.BestAvailableEncryption(b"secret")),
            "not an Ed25519 key in PKCS#8 PEM",
        ),
        (
            generate_private_key(SECP256R1()).private_bytes(*PEM, serialization.NoEncryption()),
            "expected an Ed25519 key, found ECPrivateKey",
        ),
        (None, "not an Ed25519 key in PKCS#8 PEM"),
    ],
)
def test_what_is_no_key_is_told_by_the_file_s_name_and_stays(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "firm.pem"
    if content is not None:
        path.write_bytes(content)
        with pytest.raises(MoergeError):
            join_request(path, "firm", ["law"])
        assert path.read_bytes() == content
    with pytest.raises(MoergeError) as caught:
        read_owner_key(path)
    assert told in caught.value.what
    assert (caught.value.where, caught.value.todo != "") == (str(path), True)


def test_a_new_key_drops_the_rotation_of_one_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "firm.pem"
    pending = tmp_path / "firm.pem.next"
    pending.write_bytes(b"left by a rotation that was cut")
    join_request(path, "firm", ["law"])
    assert not pending.exists()
    pending.write_bytes(b"left by a rotation that was cut")
    join_request(path, "firm", ["law"])
    assert pending.exists(), "it is finished by the next start"


def test_a_folder_that_can_t_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MoergeError, match="can't write a key") as caught:
        join_request(tmp_path / "file" / "firm.pem", "firm", ["law"])
    assert (caught.value.where, "`home`" in caught.value.todo) == (str(tmp_path / "file"), True)


@pytest.mark.parametrize(("owner", "domain", "where"), [("../up", "law", "`owner`"), ("up", "Law", "`domain`")])
def test_no_key_is_made_for_an_invalid_name(tmp_path: Path, owner: str, domain: str, where: str) -> None:
    with pytest.raises(MoergeError, match="is not a valid name") as caught:
        join_request(tmp_path / "key.pem", owner, [domain])
    assert caught.value.where == where
    assert not list(tmp_path.iterdir())
