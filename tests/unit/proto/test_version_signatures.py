"""Signatures of versions: by our verifier, and by OpenSSF's own."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from model_signing.verifying import Config

from moerge.client.signatures import expected_fingerprint, verify_folder
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.progress import LogProgress
from moerge_proto.version_signatures import SignedVersion, fingerprint, loaded_key, public_pem, sign_version

SILENT = LogProgress()
NAMES = ("README.md", "config.json", "model-body.safetensors", "moerge.json")
KEY = generate_private_key(SECP256R1())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A signed folder beside its public key."""
    (folder := tmp_path / "model").mkdir()
    for name in NAMES:
        (folder / name).write_text(f"content of {name}")
    digests = {name: file_sha256(folder / name) for name in NAMES}
    (folder / "model.sig").write_text(sign_version(KEY, 3, "1.2.3", digests, "0" * 64))
    (tmp_path / "key.pub").write_text(public_pem(KEY))
    return folder


def stock(folder: Path) -> None:
    """Verifies with OpenSSF's verifier; ValueError: it refuses the folder."""
    config = Config()  # type: ignore[no-untyped-call]
    verifier = config.use_elliptic_key_verifier(public_key=folder.parent / "key.pub")
    verifier.verify(folder, folder / "model.sig")


def test_both_verifiers_accept_a_signed_folder(folder: Path) -> None:
    stock(folder)
    signed = verify_folder(folder, str(folder.parent / "key.pub"), SILENT)
    assert (signed.number, signed.release, tuple(signed.files)) == (3, "1.2.3", NAMES)
    assert signed.fingerprint == file_sha256(folder.parent / "key.pub")
    (folder / ".eval_results").mkdir()
    (folder / ".eval_results" / "gsm8k.yaml").write_text("")
    stock(folder)
    verify_folder(folder, None, SILENT)


@pytest.mark.parametrize("name", NAMES)
def test_both_verifiers_refuse_a_changed_byte(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"Hash mismatch for '{name}'"):
        stock(folder)
    with pytest.raises(MoergeError, match=f"not the signed ones: {name}"):
        verify_folder(folder, None, SILENT)


def test_both_verifiers_refuse_missing_and_additional_files(folder: Path) -> None:
    (folder / "config.json").rename(folder / "modeling_evil.py")
    with pytest.raises(ValueError, match="Extra files"):
        stock(folder)
    with pytest.raises(MoergeError, match=r"config\.json, modeling_evil\.py"):
        verify_folder(folder, None, SILENT)


def test_both_verifiers_refuse_another_key(folder: Path) -> None:
    (folder.parent / "key.pub").write_text(other := public_pem(generate_private_key(SECP256R1())))
    with pytest.raises(ValueError, match="Key mismatch"):
        stock(folder)
    for key in (str(folder.parent / "key.pub"), fingerprint(other)):
        with pytest.raises(MoergeError, match="not by the given one"):
            verify_folder(folder, key, SILENT)


@pytest.mark.parametrize("change", ["payload", "sig", "hint"])
def test_a_changed_signature_is_refused(folder: Path, change: str) -> None:
    bundle = json.loads((folder / "model.sig").read_text())
    envelope = bundle["dsseEnvelope"]
    if change == "payload":
        payload = base64.b64decode(envelope["payload"]).replace(b'"version":3', b'"version":4')
        envelope["payload"] = base64.b64encode(payload).decode()
    elif change == "sig":
        envelope["signatures"][0]["sig"] = base64.b64encode(b"\x30\x00").decode()
    else:
        bundle["verificationMaterial"]["publicKey"]["hint"] = "0" * 64
    with pytest.raises(ValueError, match=r"not by its key|names another key"):
        SignedVersion.of(json.dumps(bundle))
    with pytest.raises(ValueError, match="not the signature of a version"):
        SignedVersion.of(json.dumps({**bundle, "mediaType": "application/json"}))


def test_a_key_is_a_whole_fingerprint_or_a_public_key_on_p_256(tmp_path: Path) -> None:
    digits = fingerprint(public_pem(KEY))
    assert expected_fingerprint(" ".join([digits[:32].upper(), digits[32:]])) == digits
    for key in (generate_private_key(SECP384R1()), Ed25519PrivateKey.generate()):
        text = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        (tmp_path / "key.pub").write_text(text)
        with pytest.raises(ValueError, match="curve P-256"):
            loaded_key(text)
        with pytest.raises(MoergeError, match="neither a fingerprint"):
            expected_fingerprint(str(tmp_path / "key.pub"))
    with pytest.raises(MoergeError, match="neither a fingerprint"):
        expected_fingerprint(digits[:16])
