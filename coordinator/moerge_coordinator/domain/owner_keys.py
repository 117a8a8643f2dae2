"""Owners' keys and their signatures."""

from collections.abc import Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.models.expert_folder import expert_digest
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ContributionRow, KeyRow, now
from moerge_proto.contributions import ContributionSignature, NewContribution, signed_contribution
from moerge_proto.experts import NewExpert
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import PublicKey, Rotation, Signature, SignedInput, fingerprint, is_signed
from moerge_proto.statistics_file import Manifest

ANEW = "move its file away, make a new request (moerge worker init), and ask for moerge owner approve --replace"


def keys_of(session: Session, owner: str | None) -> list[KeyRow]:
    """An owner's keys, oldest first; the last one is active unless it is revoked."""
    return list(session.scalars(select(KeyRow).where(KeyRow.owner == owner).order_by(KeyRow.number)))


def add_key(session: Session, owner: str, public_key: PublicKey, where: str) -> None:
    """Makes this the owner's only active key; refused if the coordinator knows the key, of any owner."""
    if session.scalar(select(KeyRow).where(KeyRow.public_key == public_key)) is not None:
        problem, todo = "the key was in use before; keys can't be reused", f"make a new key: {ANEW}"
        raise RefusedError(ProblemType.CONFLICT, problem, where=where, todo=todo)
    revoke_keys(session, owner)
    session.add(KeyRow(owner=owner, public_key=public_key, fingerprint=fingerprint(public_key)))
    session.flush()


def revoke_keys(session: Session, owner: str) -> None:
    for row in keys_of(session, owner):
        row.revoked = row.revoked or now(session)
    session.flush()


def rotate(session: Session, asked: Rotation) -> None:
    """Replaces the owner's active key with the new one. Idempotent."""
    if (name := asked.forged()) is not None:
        problem, todo = "it is not that key's signature of this rotation", "run again: moerge worker rotate"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where=name, todo=todo)
    active = next((row.public_key for row in keys_of(session, asked.owner) if row.revoked is None), None)
    if active == asked.new_key:
        return
    if active != asked.old_key:
        problem = f"it is not the active key of owner {asked.owner!r}"
        todo = f"if it was revoked or replaced, {ANEW}"
        raise RefusedError(ProblemType.CONFLICT, problem, where="old_key", todo=todo)
    add_key(session, asked.owner, asked.new_key, "new_key")


def require_signed(session: Session, manifest: Manifest, new: NewContribution) -> str | None:
    """The fingerprint of a contribution's signing key, or None if its owner has never had a key.

    Refused without a valid signature by the owner's active key.
    """
    if new.signature is None and not keys_of(session, manifest.owner):
        return None
    return _signer(session, signed_contribution(manifest, new.sha256), new.signature)


def expert_signer(session: Session, owner: str, new: NewExpert) -> str | None:
    """The fingerprint of the key that signed an expert, or None if it isn't signed.

    Refused unless a signature is by the owner's active key.
    """
    if new.signature is None:
        return None
    return _signer(session, new.signed_by(owner, expert_digest(new.files)), new.signature)


def _signer(session: Session, signed: SignedInput, signature: Signature | None) -> str:
    """The fingerprint of the owner's active key, which must have signed these facts."""
    owner, message = signed.owner, signed.message()
    rows = keys_of(session, owner)
    if not rows:
        problem, todo = f"owner {owner!r} has no key for its verification", "ask for approval: moerge owner approve"
    elif rows[-1].revoked is not None:
        problem = f"the key of owner {owner!r} was revoked on {rows[-1].revoked:%Y-%m-%d %H:%M} UTC"
        todo = f"ask the operator for the reason; to join again, {ANEW}"
    elif signature is None:
        problem = f"it is missing; expected a signature by key {rows[-1].fingerprint} of owner {owner!r}"
        todo = "run the worker on the machine with that key"
    else:
        signer = next((row for row in rows if is_signed(row.public_key, message, signature)), None)
        if signer is rows[-1]:
            return signer.fingerprint
        if signer is None:
            facts = f"owner {owner!r}, domain {signed.domain!r} and {signed.kind} {signed.digest}"
            problem = f"it is not key {rows[-1].fingerprint}'s signature of {facts}, as this release expects it"
        else:
            problem = f"it is by key {signer.fingerprint}, which was revoked on {signer.revoked:%Y-%m-%d %H:%M} UTC"
        todo = f"run a worker of this release on the machine with the owner's key; if it is lost, {ANEW}"
    raise RefusedError(ProblemType.FORBIDDEN, problem, where="signature", todo=todo)


def signatures(session: Session, digests: Sequence[str]) -> Iterator[ContributionSignature]:
    """The signatures of these contributions, in their order."""
    row = ContributionRow
    query = select(row.kind, row.digest, row.owner, row.domain, row.body, KeyRow.public_key, row.signature)
    query = query.outerjoin(KeyRow, KeyRow.fingerprint == row.fingerprint).where(row.digest.in_(digests))
    result = {item.digest: item._asdict() for item in session.execute(query)}
    for digest in digests:
        yield ContributionSignature(**result[digest])
