"""The demands on owners' workers."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator

from moerge_coordinator.domain.owners import own_name
from moerge_coordinator.rest.auth import DomainOwner, Route
from moerge_coordinator.rest.lists import plain
from moerge_coordinator.rest.state import Coordinator
from moerge_proto.demands import LONGEST_WAIT, Demands
from moerge_proto.digests import Digest

router = APIRouter(prefix="/demands", tags=["operation"], route_class=Route)
Expert = Annotated[Digest, Query(description="The worker's dense expert, registered or not.")]
Seen = Annotated[Digest | None, Query(description="The tag of the last answer.")]
_WAIT = Query(ge=0, le=LONGEST_WAIT, description="Seconds to wait for another tag than `seen`.")
Wait = Annotated[int, BeforeValidator(plain), _WAIT]


@router.get("")
async def show_demands(
    state: Coordinator, caller: DomainOwner, expert: Expert, seen: Seen = None, wait_s: Wait = 0
) -> Demands:
    """The demands on the worker of one of the caller's experts: answers once they differ from those seen.

    After `wait_s` seconds, and at the coordinator's stop, answers in any case. A worker follows all its demands with
    this call.
    """
    return await state.waits.demands(own_name(caller), expert, seen, wait_s)
