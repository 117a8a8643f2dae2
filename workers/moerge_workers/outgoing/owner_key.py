"""The owner's Ed25519 key, which signs contributions and never leaves the machine.

Its file has the owner's name, in the worker's home or, for all the owner's workers, in ~/.moerge.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.files import atomic_file, locked, sync_folder
from moerge_proto.owners import Identity, Role
from moerge_proto.signatures import (
    JoinRequest,
    Rotation,
    SignedInput,
    fingerprint,
    in_groups,
    public_key_of,
)

NEW_REQUEST = "make a new request with moerge worker init, and ask the operator to run moerge owner approve --replace"


def default_home() -> Path:
    return Path.home() / ".moerge"


def key_file(home: Path, owner: str) -> Path:
    """The path of the owner's key: in the worker's home if it exists there, else in ~/.moerge."""
    own = home / f"{owner}.pem"
    return own if own.is_file() else default_home() / own.name


def _next_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.next")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Context in which no other process makes or rotates this key; MoergeError: its folder isn't writable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = locked(path.with_name(f"{path.name}.lock"), -1)
    except OSError as error:
        todo = "name a writable folder with `home`"
        raise MoergeError(f"can't write a key: {error.strerror}", where=str(path.parent), todo=todo) from error
    with lock:
        yield


def _made(path: Path) -> Ed25519PrivateKey:
    """The key in a file; a new one, as PKCS#8 PEM with mode 0600, if there is no file."""
    if not path.is_file():
        pem = Ed25519PrivateKey.generate().private_bytes(
            encoding=serialization.Encoding.PEM,
            format=serialization.PrivateFormat.PKCS8,
            encryption_algorithm=serialization.NoEncryption(),
        )
        with atomic_file(path, private=True) as file:
            file.write(pem)
    return read_owner_key(path)


def read_owner_key(path: Path) -> Ed25519PrivateKey:
    """The Ed25519 key in a PEM file; MoergeError: there is none."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        todo = f"restore the file; if the key is lost, remove it and {NEW_REQUEST}"
        raise MoergeError(f"not an Ed25519 key in PKCS#8 PEM: {error}", where=str(path), todo=todo) from error
    if not isinstance(key, Ed25519PrivateKey):
        problem, todo = f"expected an Ed25519 key, found {type(key).__name__}", "move the file away"
        raise MoergeError(problem, where=str(path), todo=todo)
    return key


def join_request(path: Path, owner: str, domains: list[str]) -> JoinRequest:
    """The join request of an owner with the key at `path`; uses an existing key, and never overwrites one.

    Raises:
        MoergeError: a name is invalid, or the file isn't a key.
    """
    try:
        JoinRequest.make(Ed25519PrivateKey.generate(), owner, domains, datetime.now(UTC))  # before anything is written
    except ValidationError as error:
        first = error.errors()[0]
        field = {"owner": "`owner`", "domains": "`domain`"}[str(first["loc"][0])]
        todo = "use a-z, 0-9, - and _, at most 63 characters"
        raise MoergeError(f"{first['input']!r} is not a valid name", where=field, todo=todo) from error
    with _alone(path):
        if not path.is_file():
            _next_file(path).unlink(missing_ok=True)  # the rotation of a lost key
        return JoinRequest.make(_made(path), owner, sorted(set(domains)), datetime.now(UTC).replace(microsecond=0))


def rotate(client: Client, owner: str, path: Path) -> str:
    """Replace the key, and return the new fingerprint. After a kill at any moment, it can be run again.

    Raises:
        MoergeError: there is no key, or the coordinator refuses.
    """
    with _alone(path):
        read_owner_key(path)
        _made(_next_file(path))
        _finish(client, owner, path)
        return fingerprint(public_key_of(read_owner_key(path)))


def _finish(client: Client, owner: str, path: Path) -> None:
    """Replace the key at the coordinator first, because it refuses signatures of an unknown key."""
    new = _next_file(path)
    client.rotate_key(Rotation.make(read_owner_key(path), read_owner_key(new), owner))
    new.replace(path)
    sync_folder(path.parent)


def own_identity(client: Client, domain: str) -> Identity:
    """The token's identity; MoergeError: it isn't an owner of this domain."""
    identity = client.identity()
    if identity.role is not Role.OWNER or domain not in identity.domains:
        problem = f"the token is {identity.who}'s, for {', '.join(identity.domains) or 'no domain'}, not for {domain!r}"
        todo = "use the token of this domain's owner, from the operator"
        raise MoergeError(problem, where="`token`", todo=todo)
    return identity


def require_approved(client: Client, home: Path) -> bool:
    """Tell whether contributions are signed; False: neither this machine nor the coordinator has a key.

    Finishes an interrupted rotation first.

    Raises:
        MoergeError: only one of them has a key, or the keys differ.
    """
    identity = client.identity()
    owner = identity.owner or ""
    path = key_file(home, owner)
    if _next_file(path).is_file():
        with _alone(path):
            if _next_file(path).is_file():
                _finish(client, owner, path)
        identity = client.identity()
    here = fingerprint(public_key_of(read_owner_key(path))) if path.is_file() else None
    if (problem := _problem(identity, here)) is not None:
        what, todo = problem
        raise MoergeError(what, where=str(path), todo=todo)
    return here is not None


def _problem(identity: Identity, here: str | None) -> tuple[str, str] | None:
    """The difference between the approved key and the one here, and the remedy."""
    key = identity.key
    if key is None:
        todo = "ask the operator to approve it (moerge worker init prints the request again), or move the file away"
        return ("the operator has not approved this key", todo) if here else None
    approved = in_groups(key.fingerprint)
    if key.revoked is not None:
        problem = f"the operator revoked the key {approved} on {key.revoked:%Y-%m-%d %H:%M} UTC"
        return problem, f"ask why; to join again, move the file away and {NEW_REQUEST}"
    if here is None:
        return f"the approved key {approved} is not on this machine", f"copy it there; if it is lost, {NEW_REQUEST}"
    if here != key.fingerprint:
        problem = f"this key is {in_groups(here)}, the approved one is {approved}"
        return problem, f"put the approved one there; if it is lost, {NEW_REQUEST}"
    return None


def signature(home: Path, signed: SignedInput) -> str | None:
    """The owner's signature of an expert or a contribution; None without a key."""
    path = key_file(home, signed.owner)
    return signed.sign(read_owner_key(path)) if path.is_file() else None
