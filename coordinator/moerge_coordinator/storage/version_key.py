"""The key of a coordinator that signs versions: two files of its home, `version-key.pem` and `version-key.pub`."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_proto.version_signatures import public_pem

KEY_FILE, PUBLIC_FILE = "version-key.pem", "version-key.pub"


def version_key(home: Path) -> EllipticCurvePrivateKey:
    """The home's key, made if there is none. Backups don't have it.

    Raises:
        MoergeError: the file has something else.
    """
    path = home / KEY_FILE
    if not path.exists():
        made = generate_private_key(SECP256R1())
        with atomic_file(path, private=True) as out:
            out.write(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    try:
        key = load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
            raise ValueError("a key of another kind")
    except (ValueError, TypeError) as error:
        todo = "put back the key that was there; without it, remove the file, and a new key is made"
        raise MoergeError("expected a private key on P-256 in PEM", where=str(path), todo=todo) from error
    public = public_pem(key).encode()
    if not (home / PUBLIC_FILE).is_file() or (home / PUBLIC_FILE).read_bytes() != public:
        with atomic_file(home / PUBLIC_FILE) as out:
            out.write(public)
    return key
