"""The provenance of a version: its inputs with their owners' signatures."""

from collections.abc import Iterator, Sequence

from pydantic import JsonValue
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge_coordinator.domain import bodies, owner_keys
from moerge_coordinator.domain.sums import contributions_in
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ExpertRow, KeyRow, VersionRow
from moerge_proto.digests import Digest
from moerge_proto.problems import ProblemType
from moerge_proto.provenance import Input, Kind, Origin, Provenance
from moerge_proto.version_signatures import SignedVersion, signed_statement


def provenance_of(session: Session, row: VersionRow) -> Provenance:
    """The provenance of a version."""
    lineage, files = row.lineage, {file.name: file.sha256 for file in row.files}
    body = bodies.find(session, lineage.body)
    inputs = [Input.of(body.digest, Origin(kind="body"))]
    if lineage.seed is not None:
        inputs.append(Input.of(lineage.seed, Origin(kind="seed")))
    inputs += _experts(session, lineage.experts)
    every = list(contributions_in(session, lineage.contributions))
    sums = [digest for digest in lineage.contributions if digest not in every]
    inputs += [Input.of(digest, Origin(kind="router sum", body=lineage.body)) for digest in sums]
    for item in owner_keys.signatures(session, [*every, *lineage.head.contributions]):
        kind: Kind = f"{item.kind} contribution"  # type: ignore[assignment]  # three words
        who = {"domain": item.domain, "owner": item.owner, "body": item.body}
        signed = {"public_key": item.public_key, "signature": item.signature}
        inputs.append(Input.of(item.digest, Origin(kind=kind, **who, **signed)))
    parameters: dict[str, JsonValue] = {
        "body": lineage.body,
        "domains": list(lineage.domains),
        "head": lineage.head.method,
        "options": lineage.options.model_dump(mode="json"),
        "tied": lineage.tied,
        **({} if row.part_of is None else {"part_of": row.part_of}),
        **({} if lineage.chat_template is None else {"chat_template": lineage.chat_template}),
    }
    return Provenance.make(files, parameters, lineage.solver, inputs, row.release, row.commit)


def statement_of(session: Session, blobs: Blobs, row: VersionRow) -> bytes:
    """The provenance that a version was signed with, or, of an unsigned one, as of now."""
    if row.signature is None or row.provenance is None:
        return provenance_of(session, row).statement()
    try:
        signed = SignedVersion.of(blobs.local(row.signature.sha256).read_bytes())
        return signed_statement(blobs.local(row.provenance.sha256).read_bytes(), signed.public_key)
    except ValueError as error:
        todo = "run: moerge coordinator verify"
        raise RefusedError(ProblemType.CONFLICT, f"stored signatures: {error}", where="number", todo=todo) from error


def _experts(session: Session, digests: Sequence[Digest]) -> Iterator[Input]:
    row = ExpertRow
    query = select(row.digest, row.domain, row.owner, row.parts_body.label("body"), row.signature, KeyRow.public_key)
    query = query.outerjoin(KeyRow, KeyRow.fingerprint == row.fingerprint).where(row.digest.in_(digests))
    rows = {item.digest: item._asdict() for item in session.execute(query)}
    for digest in digests:
        yield Input.of(rows[digest].pop("digest"), Origin(kind="expert", **rows[digest]))
