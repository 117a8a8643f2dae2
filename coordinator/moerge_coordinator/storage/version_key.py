"""The key that signs versions, in a coordinator's home: `version-key.pem` and `version-key.pub`.

A home with only the public one can't sign: its key is on another machine. Backups have neither.
"""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from moerge.client.version_key import make_version_key, read_public_key, read_version_key, write_public_key
from moerge_proto.version_signatures import public_pem

KEY_FILE, PUBLIC_FILE = "version-key.pem", "version-key.pub"


def private_key(home: Path) -> EllipticCurvePrivateKey | None:
    """The home's key; None if it is elsewhere.

    Raises:
        MoergeError: the file has something else.
    """
    return read_version_key(home / KEY_FILE) if (home / KEY_FILE).exists() else None


def public_key(home: Path) -> str | None:
    """The public key of the home, which follows the private one; None if the home has no key.

    Raises:
        MoergeError: a file has something else.
    """
    if (key := private_key(home)) is not None:
        keep_public_key(home, public_pem(key))
    return read_public_key(home / PUBLIC_FILE) if (home / PUBLIC_FILE).exists() else None


def keep_public_key(home: Path, public_key: str) -> None:
    write_public_key(home / PUBLIC_FILE, public_key)


def make_key(home: Path) -> str:
    """Makes a key in the home, and returns its public key."""
    keep_public_key(home, made := public_pem(make_version_key(home / KEY_FILE)))
    return made
