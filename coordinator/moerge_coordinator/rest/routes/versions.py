"""Versions and the workflows that make them."""

import json

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.versions.engines import engine_limits
from moerge_coordinator.domain import aliases, cards, owner_keys, provenance, version_keys, versions
from moerge_coordinator.domain.owners import own_name
from moerge_coordinator.domain.sums import contributions_in
from moerge_coordinator.rest.auth import Anyone, Operator, OperatorOrReader, Route
from moerge_coordinator.rest.content import composed_content, content
from moerge_coordinator.rest.lists import After, Newest, Number, VersionPath, page
from moerge_coordinator.rest.state import Coordinator, State
from moerge_coordinator.storage import messages
from moerge_coordinator.storage.composed import composed
from moerge_coordinator.storage.references import collect
from moerge_coordinator.storage.tables import VersionRow
from moerge_proto.contributions import ContributionSignature
from moerge_proto.messages import Page
from moerge_proto.owners import Identity, Role
from moerge_proto.version_files import CARD_FILE, CONFIG_FILE, REPORT_FILE
from moerge_proto.version_keys import NewSignature
from moerge_proto.versions import (
    EngineLimit,
    NewVersion,
    PromotionCheck,
    SignedCard,
    SolveReport,
    Version,
    VersionChange,
)
from moerge_proto.workflows import Workflow

router = APIRouter(prefix="/versions", tags=["versions"], route_class=Route)


class Markdown(PlainTextResponse):
    media_type = "text/markdown"


def _admitted(state: State, session: Session, caller: Identity, name: str) -> VersionRow:
    """The served version, or part of one, of that name, all of whose experts the caller may use.

    A reader who may not use all of a withheld version is told that first, because its part of it may be served.
    """
    row = versions.find(session, name)
    if row.retired is None:
        state.admission(session, state.settings, caller, row)
    return versions.require_served(row)


@router.post("", status_code=202)
def solve(state: Coordinator, caller: Operator, new: NewVersion) -> Workflow:
    """Starts a workflow that solves and publishes a version; its result is the version's number.

    Needs contributions of all ready experts, unless `partial` or `experts` is given. An already published lineage
    gives its existing version.
    """
    with state.database.reading() as session:
        lineage = versions.lineage_of(session, new, lambda body: state.folders.seed(body).is_tied)
    return state.workflows.start_version(lineage, accept_loss=new.accept_loss)


@router.get("")
def list_versions(state: Coordinator, caller: Anyone, after: After = 0, newest: Newest = False) -> Page[Version]:
    """Lists versions."""
    with state.database.reading() as session:
        query, view = select(VersionRow).where(VersionRow.part.is_(None)), messages.versions(session)
        return page(session, query, VersionRow.number, after, view, newest=newest)


@router.get("/{number}")
def show_version(state: Coordinator, caller: Anyone, number: VersionPath) -> Version:
    """One version with its lineage and files."""
    with state.database.reading() as session:
        return messages.versions(session)(versions.find(session, number))


@router.patch("/{number}")
def change_version(state: Coordinator, caller: Operator, number: Number, change: VersionChange) -> Version:
    """Sets a version's note or tags, the only variable parts."""
    with state.database.transaction("change version") as session:
        row = versions.find(session, number)
        versions.change(row, change)
        session.flush()
        return messages.versions(session)(row)


@router.delete("/{number}")
def retire_version(state: Coordinator, caller: Operator, number: Number) -> Version:
    """Retires a version: its own files are removed, its number and lineage stay.

    Refused while an alias points to it. Idempotent.
    """
    with state.database.transaction("retire version") as session:
        row = versions.find(session, number)
        retired = versions.retire(session, [row])
        view = messages.versions(session)(row)
    state.folders.drop(versions=retired)
    collect(state.database, state.blobs)
    return view


@router.get("/{number}/report")
def show_report(state: Coordinator, caller: OperatorOrReader, number: VersionPath) -> SolveReport:
    """The solve's report of each layer."""
    with state.database.reading() as session:
        sha256 = versions.file_digest(_admitted(state, session, caller, number), REPORT_FILE)
    return SolveReport.model_validate_json(state.blobs.local(sha256).read_bytes())


@router.get("/{number}/promotion")
def check_promotion(state: Coordinator, caller: Operator, number: Number) -> PromotionCheck:
    """The verdict of the promotion rules on `champion` pointing to the version: see `PUT /v1/aliases/{name}`."""
    with state.database.reading() as session:
        return aliases.check(session, number, state.settings, state.comparisons)


@router.get("/{number}/card", response_class=Markdown)
def show_card(state: Coordinator, caller: Anyone, number: VersionPath) -> Markdown:
    """The version's model card, with present notices."""
    with state.database.reading() as session:
        row = _admitted(state, session, caller, number)
        published = state.blobs.local(versions.file_digest(row, CARD_FILE)).read_text(encoding="utf-8")
        return Markdown(cards.version_card(session, row, published, caller.owner, state.card_scores))


@router.get("/{number}/signed-card")
def show_signed_card(state: Coordinator, caller: Anyone, number: VersionPath) -> SignedCard:
    """The version's model card, with present notices, the signature of all of its files, and its provenance.

    The signature was made at the publication. The coordinator signs the card anew, with the same digests of all other
    files, if it has the key; otherwise the card is the signed one. Refused to an owner who may not see all its scores.
    """
    with state.database.reading() as session:
        row = _admitted(state, session, caller, number)
        key = version_keys.signing_key(session, state.settings.home)
        return cards.signed_card(session, state.blobs, row, caller.owner, key, state.card_scores)


@router.get("/{number}/provenance")
def show_provenance(state: Coordinator, caller: Operator, number: VersionPath) -> Response:
    """The version's provenance, an in-toto statement, without its signature: what `moerge version sign` signs."""
    with state.database.reading() as session:
        statement = provenance.statement_of(session, state.blobs, versions.find_served(session, number))
    return Response(statement, media_type="application/json")


@router.put("/{number}/signature")
def sign_version(state: Coordinator, caller: Operator, number: VersionPath, new: NewSignature) -> Version:
    """Stores a signature that was made elsewhere, by the active version key, with the present model card. Idempotent.

    Refused unless its files are the published ones.
    """
    with state.database.transaction("sign version") as session:
        row = versions.find_served(session, number)
        version_keys.sign(session, state.blobs, row, new, state.card_scores)
        session.flush()
        files, view = row.attestations, messages.versions(session)(row)
    state.folders.replace_in_version(str(number), files)
    return view


@router.get("/{number}/engines")
def list_engine_limits(state: Coordinator, caller: Anyone, number: VersionPath) -> list[EngineLimit]:
    """The engines that don't run the version as transformers does."""
    with state.database.reading() as session:
        sha256 = versions.file_digest(_admitted(state, session, caller, number), CONFIG_FILE)
    return engine_limits(json.loads(state.blobs.local(sha256).read_bytes()))


@router.get("/{number}/signatures")
def list_signatures(state: Coordinator, caller: Anyone, number: VersionPath) -> list[ContributionSignature]:
    """The signatures of the contributions to the version's routers and head."""
    with state.database.reading() as session:
        made = versions.find(session, number).lineage
        every = [*contributions_in(session, made.contributions), *made.head.contributions]
        return list(owner_keys.signatures(session, every))


@router.get("/{number}/files/{name}", response_class=FileResponse)
def version_content(request: Request, state: Coordinator, caller: Anyone, number: VersionPath, name: str) -> Response:
    """A file of a version; supports ranges.

    Refused to an owner unless its own ready expert is in the version, all others in it allow redistribution, and none
    is withdrawn; to a reader unless all experts in it are granted to it.
    """
    with state.database.reading() as session:
        row = _admitted(state, session, caller, number)
        if caller.role is Role.OWNER:
            versions.require_shared(session, own_name(caller), row)
        sha256 = versions.file_digest(row, name)
        made = composed(session, row, sha256)
    if made is not None:
        return composed_content(state.blobs, made, request.headers.get("range"))
    return content(state.blobs, sha256, name)
