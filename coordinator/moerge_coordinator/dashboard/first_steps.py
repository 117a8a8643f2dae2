"""The first steps of a fresh coordinator, from owners to a champion."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from moerge_coordinator.dashboard.attention import usable
from moerge_proto.bodies import Body
from moerge_proto.experts import Expert
from moerge_proto.owners import Owner
from moerge_proto.versions import Version


@dataclass(frozen=True)
class Step:
    """A step: its progress, and its page, if available now."""

    what: str
    done: bool
    state: str
    place: str


def first_steps(
    owners: Sequence[Owner],
    experts: Sequence[Expert],
    body: Body | None,
    contributed: Collection[str],
    versions: Sequence[Version],
) -> list[Step]:
    """The steps to the first champion. `contributed`: domains with a contribution under the current body."""
    domains = {domain for owner in owners for domain in owner.domains}
    ready = {expert.domain for expert in usable(experts, body)}
    arrived, has_body = f"{len(ready)} of {len(domains)} domains ready", body is not None
    served = [version for version in versions if not (version.retired or version.withheld)]
    summed = f"{len(contributed)} of {len(ready)} domains contributed"
    return [
        Step("Register the seed", has_body, "" if has_body else "moerge coordinator seed", ""),
        Step("Approve the owners", bool(owners), f"{len(owners)} approved", "/owners/approve"),
        Step("Wait for the owners' experts", bool(ready) and domains <= ready, arrived, "/experts" if owners else ""),
        Step("Wait for contributions, and solve a version", bool(served), summed, "/solve" if contributed else ""),
        Step("Promote it", False, "", f"/versions/{served[0].number}/promote" if served else ""),
    ]
