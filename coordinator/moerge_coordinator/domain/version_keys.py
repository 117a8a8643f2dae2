"""The keys that sign versions, and signatures that are made elsewhere."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.client.signatures import differing, named
from moerge.errors import MoergeError
from moerge.versions.file_plan import written
from moerge_coordinator.domain import cards
from moerge_coordinator.domain.ports import CardScores
from moerge_coordinator.domain.provenance import statement_of
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import VersionKeyRow, VersionRow, now, tell
from moerge_coordinator.storage.version_key import (
    KEY_FILE,
    PUBLIC_FILE,
    keep_public_key,
    make_key,
    private_key,
    public_key,
)
from moerge_proto.digests import Digest, sha256_hex
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import in_groups
from moerge_proto.version_files import CARD_FILE
from moerge_proto.version_keys import KeyRotation, NewSignature, VersionKey, successors
from moerge_proto.version_signatures import (
    PROVENANCE_FILE,
    SIGNATURE_FILE,
    SignedVersion,
    fingerprint,
    public_pem,
    signed_statement,
)


def keys(session: Session) -> list[VersionKeyRow]:
    """All keys, oldest first; the last one is active unless it is revoked."""
    return list(session.scalars(select(VersionKeyRow).order_by(VersionKeyRow.number)))


def active(session: Session) -> VersionKeyRow | None:
    rows = keys(session)
    return rows[-1] if rows and rows[-1].revoked is None else None


def signing_key(session: Session, home: Path) -> EllipticCurvePrivateKey | None:
    """The active key, if the home has it; versions are published unsigned otherwise."""
    key, row = private_key(home), active(session)
    return key if key is not None and row is not None and public_pem(key) == row.public_key else None


def disagreement(session: Session, home: Path) -> MoergeError | None:
    """The error of a home whose key is not that of the database; coordinators that share one have the same key."""
    found, rows, row = public_key(home), keys(session), active(session)
    if row is None:
        known = next((other for other in rows if other.public_key == found), None)
        if known is None:
            return None
        what = f"the key of versions {in_groups(known.fingerprint)} was revoked on {known.revoked:%Y-%m-%d %H:%M} UTC"
        todo = f"put another key there, or remove {KEY_FILE} and {PUBLIC_FILE}: then the next start makes a new one"
        return MoergeError(what, where=str(home), todo=todo)
    if found == row.public_key or (found is not None and _followed(session, home, found) == row.fingerprint):
        return None
    here = "this home has none" if found is None else f"this home has {in_groups(fingerprint(found))}"
    what = f"the key of versions is {in_groups(row.fingerprint)}; {here}"
    todo = f"copy that key's {KEY_FILE} there, or only its {PUBLIC_FILE} if you sign versions elsewhere"
    lost = "if it is lost, start with the public one and run: moerge version revoke-key"
    return MoergeError(what, where=str(home), todo=f"{todo}; {lost}")


def _followed(session: Session, home: Path, found: str) -> Digest | None:
    """The key to which signed rotations lead from a home's public key; None if the home has the private one."""
    return None if private_key(home) else successors(messages(session), fingerprint(found))[-1]


def agree(session: Session, home: Path) -> None:
    """Registers a home's first or new key, makes one if there is none, and follows signed rotations.

    Raises:
        MoergeError: the home and the database have different keys.
    """
    if (error := disagreement(session, home)) is not None:
        raise error
    if (row := active(session)) is not None:
        keep_public_key(home, row.public_key)
        if private_key(home) is None:
            tell(session, f"versions are published unsigned: {KEY_FILE} is not in this home")
        return
    new = public_key(home) or make_key(home)
    _add(session, new)
    tell(session, f"the key of versions is {in_groups(fingerprint(new))}")


def _add(session: Session, new: str, rotation: KeyRotation | None = None) -> VersionKeyRow:
    row = VersionKeyRow(public_key=new, fingerprint=fingerprint(new), rotation=rotation)
    session.add(row)
    session.flush()
    return row


def messages(session: Session) -> list[VersionKey]:
    return [message(VersionKey, row) for row in keys(session)]


def rotate(session: Session, asked: KeyRotation) -> VersionKeyRow:
    """Replaces the active key with the new one. Idempotent."""
    if (name := asked.forged()) is not None:
        problem, todo = "it is not that key's signature of this rotation", "run again: moerge version rotate-key"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where=name, todo=todo)
    row = active(session)
    if row is not None and row.public_key == asked.new_key:
        return row
    if row is None or row.public_key != asked.old_key:
        problem = "it is not the active key of versions" + ("" if row is None else f", {in_groups(row.fingerprint)}")
        raise RefusedError(ProblemType.CONFLICT, problem, where="old_key", todo="run: moerge version keys")
    if any(other.public_key == asked.new_key for other in keys(session)):
        problem, todo = "the key was in use before; keys can't be reused", "make a new key"
        raise RefusedError(ProblemType.CONFLICT, problem, where="new_key", todo=todo)
    new = _add(session, asked.new_key, asked)
    tell(session, f"the key of versions is rotated to {in_groups(new.fingerprint)}")
    return new


def revoke(session: Session, name: Digest) -> VersionKeyRow:
    """Revokes a key: signatures of it count no longer. Idempotent."""
    row = session.scalar(select(VersionKeyRow).where(VersionKeyRow.fingerprint == name))
    row = existing(row, f"version key {name}", "fingerprint", "run: moerge version keys")
    if row.revoked is None:
        row.revoked = now(session)
        tell(session, f"the key of versions {in_groups(name)} is revoked")
    session.flush()
    return row


def sign(session: Session, blobs: Blobs, row: VersionRow, new: NewSignature, scores: CardScores) -> None:
    """Stores a signature of a version and its present card, and the provenance, by the active key. Idempotent.

    The files must be the published ones, the card the present one, and the provenance that of `statement_of`.
    """

    def refused(kind: ProblemType, problem: str, todo: str, where: str = "signature") -> RefusedError:
        return RefusedError(kind, problem, where=where, todo=todo)

    again = f"run again: moerge version sign {row.name}"

    try:
        signed = SignedVersion.of(new.signature)
    except ValueError as error:
        raise refused(ProblemType.INVALID_REQUEST, str(error), "make it with: moerge version sign") from error
    key = active(session)
    if key is None or signed.public_key != key.public_key:
        expected = "there is none" if key is None else f"that is {in_groups(key.fingerprint)}"
        problem = f"it is by key {in_groups(signed.fingerprint)}, not by the active key of versions; {expected}"
        raise refused(ProblemType.FORBIDDEN, problem, "run: moerge version keys")
    if (signed.name, signed.release) != (row.name, row.release):
        problem = f"it is of version {signed.name} by release {signed.release or 'unknown'}"
        todo = f"sign version {row.name}, which release {row.release} published"
        raise refused(ProblemType.CONFLICT, problem, todo)
    published = {file.name: file.sha256 for file in row.files}
    text = blobs.local(published[CARD_FILE]).read_text(encoding="utf-8")
    card = cards.version_card(session, row, text, None, scores).encode()
    if changed := differing(signed.files, published | {CARD_FILE: sha256_hex(card)}):
        problem = f"these files of version {row.name} are others: {named(changed)}"
        raise refused(ProblemType.CONFLICT, problem, again)
    try:
        statement = signed_statement(new.provenance, key.public_key)
    except ValueError as error:
        raise refused(ProblemType.INVALID_REQUEST, str(error), again, "provenance") from error
    if statement != statement_of(session, blobs, row) or sha256_hex(statement) != signed.provenance:
        raise refused(ProblemType.CONFLICT, f"it is not that of version {row.name}", again, "provenance")
    row.signature = blobs.put(SIGNATURE_FILE, lambda out: written(new.signature.encode(), out))
    row.provenance = blobs.put(PROVENANCE_FILE, lambda out: written(new.provenance.encode(), out))
    row.card = blobs.put(CARD_FILE, lambda out: written(card, out))
    row.key = key.fingerprint
    tell(session, f"version {row.name} is signed by key {in_groups(key.fingerprint)}")
