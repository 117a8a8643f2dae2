"""Owners, and who a token is."""

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator import views
from moerge_coordinator.auth import Anyone, Operator
from moerge_coordinator.database import reading, transaction
from moerge_coordinator.refusals import RefusedError
from moerge_coordinator.routes.pages import After, page
from moerge_coordinator.tables import DomainRow, OwnerRow
from moerge_proto.messages import Page
from moerge_proto.owners import Identity, NewOwner, Owner
from moerge_proto.problems import ProblemType

router = APIRouter(tags=["owners"])


def _domains(session: Session, owner: str) -> list[str]:
    return list(session.scalars(select(DomainRow.name).where(DomainRow.owner == owner).order_by(DomainRow.name)))


@router.get("/identity")
def identity(caller: Anyone) -> Identity:
    """Whose token this is. Role: any."""
    return caller


@router.post("/owners", status_code=201)
def add_owner(request: Request, caller: Operator, new: NewOwner) -> Owner:
    """Adds an owner who speaks for the given domains. The same again changes nothing. Role: operator."""
    with transaction(request.app.state.engine) as session:
        row = session.scalar(select(OwnerRow).where(OwnerRow.name == new.name))
        if row is not None:
            if _domains(session, new.name) != sorted(set(new.domains)):
                raise RefusedError(
                    ProblemType.CONFLICT, f"owner {new.name!r} is there with other domains", where="name"
                )
            return views.owner(row, _domains(session, new.name))
        row = OwnerRow(name=new.name)
        session.add(row)
        session.flush()
        for domain in sorted(set(new.domains)):
            if (taken := session.get(DomainRow, domain)) is not None:
                raise RefusedError(
                    ProblemType.CONFLICT,
                    f"domain {domain!r} belongs to {taken.owner!r}",
                    where="domains",
                    todo="choose another name",
                )
            session.add(DomainRow(name=domain, owner=new.name))
        session.flush()
        return views.owner(row, _domains(session, new.name))


@router.get("/owners")
def list_owners(request: Request, caller: Operator, after: After = 0) -> Page[Owner]:
    """Lists owners. Role: operator."""
    with reading(request.app.state.engine) as session:
        return page(
            session, select(OwnerRow), OwnerRow.number, after, lambda row: views.owner(row, _domains(session, row.name))
        )
