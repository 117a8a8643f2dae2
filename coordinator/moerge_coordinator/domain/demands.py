"""The demands on all owners' workers: the current body, and versions to evaluate."""

from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.storage.tables import BodyRow, ExpertRow, VersionRow
from moerge_proto.demands import Demands


@dataclass(frozen=True)
class AllDemands:
    """The demands at one moment. `versions`: (owner, dense expert) -> newest served version with its parts."""

    body: str | None
    versions: Mapping[tuple[str, str], int]

    def on(self, owner: str, expert: str) -> Demands:
        """The demands on the worker of an owner's dense expert."""
        return Demands.of(self.body, self.versions.get((owner, expert)))


def demands(session: Session, experts: dict[int, list[str]]) -> AllDemands:
    """The present demands. `experts` keeps version -> its experts, which never change, for the next call."""
    body = session.scalar(select(BodyRow.digest).where(BodyRow.current))
    whole = VersionRow.part.is_(None)
    served = select(VersionRow.number).where(whole, VersionRow.retired.is_(None), VersionRow.withheld.is_(None))
    numbers = list(session.scalars(served.order_by(VersionRow.number.desc())))
    new = VersionRow.number.in_([number for number in numbers if number not in experts])
    for number, lineage in session.execute(select(VersionRow.number, VersionRow.lineage).where(new)):
        experts[number] = [intern(expert) for expert in lineage.experts]
    ready = select(ExpertRow.digest, ExpertRow.owner, ExpertRow.parts_of).where(ExpertRow.withdrawn.is_(None))
    keys = {digest: (owner, dense) for digest, owner, dense in session.execute(ready)}
    wanted, newest = set(keys.values()), dict[tuple[str, str], int]()
    for number in numbers:
        if len(newest) == len(wanted):
            break
        for expert in experts[number]:
            if expert in keys:
                newest.setdefault(keys[expert], number)
    return AllDemands(body, newest)
