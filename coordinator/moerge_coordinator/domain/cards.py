"""Model cards of versions, with facts added after publication."""

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.versions.card_scores import published_card
from moerge_coordinator.domain.ports import CardScores
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.messages import versions
from moerge_coordinator.storage.tables import ExpertRow, VersionRow
from moerge_proto.digests import sha256_hex
from moerge_proto.problems import ProblemType
from moerge_proto.version_files import CARD_FILE
from moerge_proto.version_signatures import SignedVersion, public_pem, sign_version
from moerge_proto.versions import SignedCard


def version_card(session: Session, row: VersionRow, card: str, owner: str | None, scores: CardScores) -> str:
    """The published `card`, with number, date, later withdrawn experts, and what the owner may see of the scores."""
    text = "\n".join(filter(None, (make(session, row, owner) for make in scores)))
    return published_card(card, row.name, row.created, withdrawal_note(session, row) + part_note(row), text)


def signed_card(
    session: Session,
    blobs: Blobs,
    row: VersionRow,
    owner: str | None,
    key: EllipticCurvePrivateKey | None,
    scores: CardScores,
) -> SignedCard:
    """A version's card with its signature, for an owner, or for None, who sees all.

    Both are made anew with the `key` if it has signed the version at its publication.
    """

    def text(digest: str) -> str:
        return blobs.local(digest).read_text(encoding="utf-8")

    provenance = None if row.provenance is None else text(row.provenance.sha256)
    published = text(next(file.sha256 for file in row.files if file.name == CARD_FILE))
    card = version_card(session, row, published, owner, scores)
    if row.signature is None:
        return SignedCard(card=card, signature=None)
    signature = text(row.signature.sha256)
    if key is not None and (signed := signed_again(key, signature, published, card)) is not None:
        return SignedCard(card=card, signature=signed, provenance=provenance)
    if row.card is not None and owner is not None and card != version_card(session, row, published, None, scores):
        problem, todo = "the signed card has scores of other owners", "ask the operator for a reader's token"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where="number", todo=todo)
    card = published if row.card is None else text(row.card.sha256)
    return SignedCard(card=card, signature=signature, provenance=provenance)


def signed_again(key: EllipticCurvePrivateKey, signature: str, published: str, card: str) -> str | None:
    """A version's signature with `card`, made from the `published` one.

    None if another key made the signature, or if it or the published card was changed.
    The digests of all other files are those that it has: rows of the database have no effect on them.
    """
    try:
        signed = SignedVersion.of(signature)
    except ValueError:
        return None
    if signed.public_key != public_pem(key) or signed.files.get(CARD_FILE) != sha256_hex(published.encode()):
        return None
    files = {**signed.files, CARD_FILE: sha256_hex(card.encode())}
    return sign_version(key, signed.number, signed.release, files, signed.provenance, signed.part)


def part_note(row: VersionRow) -> str:
    """The notice that it is a part of a version; empty if it is whole."""
    if row.part_of is None:
        return ""
    have = ", ".join(row.lineage.domains)
    return f"> This is the part of version {row.part_of} that has the experts of {have} only.\n\n"


def withdrawal_note(session: Session, row: VersionRow) -> str:
    """The notice of its later withdrawn experts; empty if there are none."""
    gone = versions(session)(row).contains_withdrawn
    if not gone:
        return ""
    domains = {expert.digest: expert.domain for expert in session.scalars(select(ExpertRow))}
    names = ", ".join(f"{domains[digest]} (`{digest}`)" for digest in gone)
    return f"> This version still contains parameters of experts that were withdrawn: {names}.\n\n"
