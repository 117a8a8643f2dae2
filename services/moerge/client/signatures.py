"""The check of a version's signature, and of a folder against it."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import file_sha256, user_path
from moerge.progress import Progress
from moerge_proto.digests import Digest, sha256_hex
from moerge_proto.provenance import Provenance
from moerge_proto.signatures import PublicKey, in_groups
from moerge_proto.signatures import fingerprint as owner_fingerprint
from moerge_proto.version_files import CARD_FILE
from moerge_proto.version_keys import VersionKey, successors
from moerge_proto.version_signatures import (
    PROVENANCE_FILE,
    SIGNATURE_FILE,
    TOOLS,
    UNSIGNED,
    SignedVersion,
    fingerprint,
    loaded_key,
    signed_statement,
)

_ASK = "ask the operator for the fingerprint over another channel"
_DIGITS, _SHOWN = 64, 4


def expected_fingerprint(key: str) -> Digest:
    """The fingerprint that `key` is, or that of the public key in the file of this name.

    Raises:
        MoergeError: it is neither.
    """
    digits = "".join(key.split()).lower()
    if len(digits) == _DIGITS and set(digits) <= set("0123456789abcdef"):
        return digits
    try:
        text = user_path(key).read_text(encoding="ascii")
        loaded_key(text)
    except (OSError, ValueError) as error:
        what = "neither a fingerprint of 64 digits nor a file with a public key on P-256 in PEM"
        raise MoergeError(what, where="`key`", todo="give the whole fingerprint, or version-key.pub") from error
    return fingerprint(text)


def read_signature(folder: Path) -> SignedVersion | None:
    """The verified content of a folder's `model.sig`; None without one.

    Raises:
        MoergeError: it is not the signature of a version.
    """
    try:
        return parsed((folder / SIGNATURE_FILE).read_text(encoding="utf-8"), str(folder / SIGNATURE_FILE))
    except (FileNotFoundError, NotADirectoryError):
        return None


def parsed(signature: str | None, where: str) -> SignedVersion:
    """As `SignedVersion.of`, with its errors as MoergeErrors; None is the signature of an unsigned version."""
    if signature is None:
        raise MoergeError("is not signed", where=where, todo="ask the operator to run: moerge version sign")
    try:
        return SignedVersion.of(signature)
    except ValueError as error:
        raise MoergeError(str(error), where=where, todo=f"don't use the version; {_ASK}") from error


def require_key(signed: SignedVersion, expected: Digest, known: str, keys: Sequence[VersionKey] = ()) -> None:
    """Requires that the key with this fingerprint, which is `known` from somewhere, has signed a version.

    Or a later one to which signed rotations lead from it; `keys` are the operator's.
    """
    if signed.fingerprint not in successors(keys, expected):
        what = f"signed by key {in_groups(signed.fingerprint)}, not by the {known}, {in_groups(expected)}"
        since = _revoked(keys, expected)
        if since is not None:
            what += f", which the operator revoked on {since}"
        elif keys:
            what += ", and no signed rotation leads from that one to it"
        todo = f"don't use it; {_ASK}, and give it as `key` if the operator has changed the key"
        raise MoergeError(what, where=f"version {signed.name}", todo=todo)


def require_valid(signed: SignedVersion, keys: Sequence[VersionKey]) -> None:
    """Requires that the operator has not revoked the key that signed a version."""
    if (since := _revoked(keys, signed.fingerprint)) is not None:
        what = f"signed by key {in_groups(signed.fingerprint)}, which the operator revoked on {since}"
        todo = f"don't use it; ask the operator to run: moerge version sign {signed.name}"
        raise MoergeError(what, where=f"version {signed.name}", todo=todo)


def _revoked(keys: Sequence[VersionKey], name: Digest) -> str | None:
    times = [key.revoked for key in keys if key.fingerprint == name and key.revoked is not None]
    return f"{times[0]:%Y-%m-%d %H:%M} UTC" if times else None


def require_served(
    signed: SignedVersion,
    name: str,
    served: Mapping[str, Digest],
    earlier: SignedVersion | None,
    keys: Sequence[VersionKey] = (),
) -> None:
    """Requires that the served files are the signed ones, and those of an earlier pull of the same version.

    An earlier pull counts if its key has signed the version, or a later one to which signed rotations lead.

    Raises:
        MoergeError: names the files.
    """
    todo = f"don't use it; {_ASK}, and tell the operator to run: moerge coordinator verify"
    if signed.name != name:
        what = f"the coordinator sent the signature of version {signed.name}"
        raise MoergeError(what, where=f"version {name}", todo=todo)
    if changed := differing(signed.files, served):
        raise MoergeError(f"its files are not the signed ones: {named(changed)}", where=f"version {name}", todo=todo)
    if earlier is None or earlier.name != name or signed.fingerprint not in successors(keys, earlier.fingerprint):
        return
    if changed := differing({**earlier.files, CARD_FILE: served[CARD_FILE]}, served):
        what = f"the coordinator serves other files than at the earlier pull into this folder: {named(changed)}"
        raise MoergeError(what, where=f"version {name}", todo=f"keep the folder; {_ASK}, and why a version changed")


def read_provenance(bundle: str | None, signed: SignedVersion, where: str) -> Provenance:
    """The verified content of a version's `provenance.sigstore.json`.

    Raises:
        MoergeError: it is missing, or isn't the one that the version's signature names; another key has signed it, it
            is of other files, or an owner's signature in it is not genuine.
    """
    todo = f"don't use the version; {_ASK}"
    if bundle is None:
        raise MoergeError(f"has no {PROVENANCE_FILE}, which its signature names", where=where, todo=todo)
    try:
        statement = signed_statement(bundle, signed.public_key)
        if sha256_hex(statement) != signed.provenance:
            raise ValueError(f"not the one that {SIGNATURE_FILE} names")
    except ValueError as error:
        raise MoergeError(f"{PROVENANCE_FILE}: {error}", where=where, todo=todo) from error
    return parsed_provenance(statement, signed.files, where)


def parsed_provenance(statement: bytes, files: Mapping[str, Digest], where: str) -> Provenance:
    """The provenance in a statement about these files, name -> SHA-256.

    Raises:
        MoergeError: it is of other files, or an owner's signature in it is not genuine.
    """
    todo = f"don't use the version; {_ASK}"
    try:
        made = Provenance.of(statement)
    except ValueError as error:
        raise MoergeError(f"{PROVENANCE_FILE}: {error}", where=where, todo=todo) from error
    if changed := differing({name: digest for name, digest in files.items() if name != CARD_FILE}, made.files):
        raise MoergeError(f"{PROVENANCE_FILE} is of other files: {named(changed)}", where=where, todo=todo)
    if foreign := [item.name for item in made.inputs if item.annotations.body not in (None, made.body)]:
        raise MoergeError(f"{PROVENANCE_FILE} has inputs of other bodies: {named(foreign)}", where=where, todo=todo)
    if forged := [item.name for item in made.inputs if item.is_signed and not item.is_genuine]:
        what = f"{PROVENANCE_FILE} has signatures that are not by the owners' keys: {named(forged)}"
        todo += ". If a development build signed them, their owners register and contribute again"
        raise MoergeError(what, where=where, todo=todo)
    return made


def require_owners(made: Provenance, earlier: Provenance, accepted: Collection[str], where: str) -> None:
    """Requires that owners of an earlier pull sign with the keys that they had there.

    Owners who had none, and those in `accepted`, may have any.

    Raises:
        MoergeError: names the owners, with the fingerprints of both.
    """
    pinned = {owner: keys for owner, keys in earlier.owner_keys.items() if any(keys) and owner not in accepted}
    for owner, keys in made.owner_keys.items():
        if not keys <= pinned.get(owner, keys):
            what = (
                f"inputs of owner {owner} are signed by {_named(keys)}; at the earlier pull by {_named(pinned[owner])}"
            )
            todo = f"compare the fingerprint with the owner's; if it is right, set `accept_owner` {owner}"
            raise MoergeError(what, where=where, todo=todo)


def owner_lines(made: Provenance) -> list[str]:
    """A line for each owner, with the fingerprints of its keys."""
    return [f"owner {owner}: {_named(keys)}" for owner, keys in sorted(made.owner_keys.items())]


def _named(keys: Collection[PublicKey | None]) -> str:
    known = sorted(f"key {in_groups(owner_fingerprint(key))}" for key in keys if key is not None)
    return ", ".join([*known, *(["nobody"] if None in keys else [])])


def folder_provenance(folder: Path, signed: SignedVersion) -> Provenance:
    """The verified provenance of a version's folder."""
    path = folder / PROVENANCE_FILE
    return read_provenance(path.read_text(encoding="utf-8") if path.exists() else None, signed, str(folder))


def verify_folder(folder: Path, key: str | None, progress: Progress, keys: Sequence[VersionKey] = ()) -> SignedVersion:
    """Verifies a version's folder against its signature, without a coordinator, and returns the signed facts.

    Args:
        key: a fingerprint or the file of a public key; None accepts any key.
        keys: the operator's, with rotations and revocations.

    Raises:
        MoergeError: there is no signature, another key or a revoked one made it, or a file is altered, missing, not
            signed or not a regular file.
    """
    regular_files(folder)  # before a signature is opened that is a FIFO
    signed = read_signature(folder)
    if signed is None:
        todo = "name the folder of a pulled version, or a copy of one"
        raise MoergeError(f"has no {SIGNATURE_FILE}", where=str(folder), todo=todo)
    require_valid(signed, keys)
    if key is not None:
        require_key(signed, expected_fingerprint(key), "given one", keys)
    if changed := differing(signed.files, folder_digests(folder, progress)):
        todo = "pull it again; if that fails too, don't use it"
        raise MoergeError(f"files are not the signed ones: {named(changed)}", where=str(folder), todo=todo)
    return signed


def folder_digests(folder: Path, progress: Progress) -> dict[str, Digest]:
    """Name -> SHA-256 of the files of a version's folder that its signature covers."""
    paths = [path for path in regular_files(folder) if path.relative_to(folder).parts[0] not in UNSIGNED]
    found = dict[str, Digest]()
    with progress.track("verifying files", sum(path.stat().st_size for path in paths), "B") as tracker:
        for path in paths:
            found[path.relative_to(folder).as_posix()] = file_sha256(path)
            tracker.advance(path.stat().st_size)
    return found


def regular_files(folder: Path) -> list[Path]:
    """The files of a version's folder without those of other tools. MoergeError: names what is no regular file."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    paths = [path for path in paths if path.relative_to(folder).parts[0] not in TOOLS]
    if odd := [path.relative_to(folder).as_posix() for path in paths if not path.is_file()]:
        raise MoergeError(f"not regular files: {named(odd)}", where=str(folder), todo="remove them, or pull again")
    return paths


def differing(expected: Mapping[str, Digest], found: Mapping[str, Digest]) -> list[str]:
    """The names with another digest, or on one side only."""
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def named(names: list[str]) -> str:
    """The first of these names, for a message."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
