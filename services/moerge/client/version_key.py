"""The key that signs versions: a file, at the coordinator or on another machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from moerge.client.client import Client
from moerge.client.signatures import (
    differing,
    folder_digests,
    named,
    parsed,
    parsed_provenance,
    read_provenance,
)
from moerge.errors import MoergeError
from moerge.files import atomic_file, locked, sync_folder
from moerge.progress import Progress
from moerge_proto.digests import Digest, sha256_hex
from moerge_proto.version_files import CARD_FILE, foreign_names
from moerge_proto.version_keys import KeyRotation, NewSignature
from moerge_proto.version_signatures import (
    fingerprint,
    loaded_key,
    public_pem,
    sign_version,
    signed_bundle,
    signed_statement,
)
from moerge_proto.versions import Version

PUBLIC_SUFFIX = ".pub"


def read_version_key(path: Path) -> EllipticCurvePrivateKey:
    """The private key in a file.

    Raises:
        MoergeError: the file has something else, or there is none.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
            raise ValueError("a key of another kind")
    except (FileNotFoundError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        todo = "put back the file that was there, or name another one"
        what = "expected a private key on P-256 in PEM, without a password"
        raise MoergeError(what, where=str(path), todo=todo) from error
    return key


def make_version_key(path: Path) -> EllipticCurvePrivateKey:
    """The key in a file that only this user may read; a new one, if there is no file."""
    if not path.exists():
        made = generate_private_key(SECP256R1())
        with atomic_file(path, private=True) as out:
            out.write(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return read_version_key(path)


def read_public_key(path: Path) -> str:
    """The PEM of the public key in a file.

    Raises:
        MoergeError: the file has something else, or there is none.
    """
    try:
        text = path.read_text(encoding="ascii")
        loaded_key(text)
    except (FileNotFoundError, ValueError) as error:
        todo = "make it of the private key: openssl pkey -in version-key.pem -pubout -out version-key.pub"
        raise MoergeError("expected a public key on P-256 in PEM", where=str(path), todo=todo) from error
    return text


def write_public_key(path: Path, public_key: str) -> None:
    """Writes a public key, if the file has another or none."""
    if not path.is_file() or path.read_bytes() != public_key.encode():
        with atomic_file(path) as out:
            out.write(public_key.encode())


@dataclass(frozen=True)
class Unsigned:
    """The facts that the signature of a version covers.

    Attributes:
        files: name -> SHA-256 of every file; of the card, that of `card`.
        published: as `files`, with the card that was published.
        statement: its provenance, which is signed too.
        earlier: the fingerprint of the key that signed it before; None if nobody has.
    """

    number: int
    part: str | None
    release: str
    card: str
    files: Mapping[str, Digest]
    published: Mapping[str, Digest]
    statement: bytes
    earlier: Digest | None

    def sign(self, key: EllipticCurvePrivateKey) -> NewSignature:
        signature = sign_version(key, self.number, self.release, self.files, sha256_hex(self.statement), self.part)
        return NewSignature(signature=signature, provenance=signed_bundle(key, self.statement))

    def require_rebuilt(self, folder: Path, progress: Progress) -> None:
        """Requires that the files are those of a folder by `moerge version rebuild`.

        Raises:
            MoergeError: names those that aren't.
        """
        if changed := differing(self.published, folder_digests(folder, progress)):
            todo = "don't sign it; ask the operator to run: moerge coordinator verify"
            raise MoergeError(f"the coordinator serves other files: {named(changed)}", where=str(folder), todo=todo)


def unsigned(client: Client, version: Version) -> Unsigned:
    """The files and provenance of a version to sign, with its present card.

    Raises:
        MoergeError: it has files that no version has, or other files than were signed before; or its provenance is of
            other files, or has a forged signature.
    """
    published = {file.name: file.sha256 for file in version.files}
    where, todo = f"version {version.name}", "don't sign it; ask the operator to run: moerge coordinator verify"
    if foreign := foreign_names(published):
        raise MoergeError(f"the coordinator lists files that no version has: {named(foreign)}", where=where, todo=todo)
    card, signed = client.version_card(version.name), client.signed_card(version.name)
    files = published | {CARD_FILE: sha256_hex(card.encode())}
    earlier = None if signed.signature is None else parsed(signed.signature, where)
    if earlier is not None and (changed := differing({**earlier.files, CARD_FILE: files[CARD_FILE]}, files)):
        raise MoergeError(f"its files are not those signed before: {named(changed)}", where=where, todo=todo)
    statement = client.provenance(version.name)
    if earlier is not None:
        read_provenance(signed.provenance, earlier, where)
        statement = signed_statement(signed.provenance or "", earlier.public_key)
    parsed_provenance(statement, files, where)
    by = None if earlier is None else earlier.fingerprint
    return Unsigned(version.number, version.part, version.release, card, files, published, statement, by)


def rotate(client: Client, path: Path) -> tuple[Digest, Digest]:
    """Replaces the key in a file, and returns the old and the new fingerprint. After a kill, it can be run again.

    The new public key is written beside it.

    Raises:
        MoergeError: the file has no key, or the coordinator refuses.
    """
    new_path = path.with_name(f"{path.name}.next")
    with locked(path.with_name(f".{path.name}.lock"), -1):
        old = read_version_key(path)
        new = make_version_key(new_path)
        client.rotate_version_key(KeyRotation.make(old, new))  # first, because it refuses signatures of an unknown key
        write_public_key(path.with_suffix(PUBLIC_SUFFIX), public_pem(new))
        new_path.replace(path)
        sync_folder(path.parent)
    return fingerprint(public_pem(old)), fingerprint(public_pem(new))
