"""Rows as messages."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dbos import WorkflowStatus
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from moerge.trunk.merge import MergedTrunk
from moerge_coordinator.domain import owner_keys as keys
from moerge_coordinator.storage.tables import (
    AliasMoveRow,
    AliasRow,
    ContributionRow,
    DomainRow,
    EvaluationRow,
    ExpertRow,
    OwnerRow,
    ProgressRow,
    TokenRow,
    TrunkContributionRow,
    TrunkRow,
    VersionRow,
)
from moerge_proto.contributions import Contribution, TrunkContribution
from moerge_proto.evaluations import Evaluation, VersionTable
from moerge_proto.experts import Expert
from moerge_proto.owners import Owner
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.trunks import Trunk, TrunkLineage
from moerge_proto.versions import Alias, AliasMove, Version
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowState


def _fields(row: object, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def owner(session: Session, row: OwnerRow) -> Owner:
    domains = session.scalars(select(DomainRow.name).where(DomainRow.owner == row.name).order_by(DomainRow.name))
    seen = session.scalar(select(func.max(TokenRow.used)).where(TokenRow.owner == row.name))
    known = [keys.entry(key) for key in keys.keys_of(session, row.name)]
    return Owner(name=row.name, domains=list(domains), keys=known, created=row.created, seen=seen)


def expert(row: ExpertRow) -> Expert:
    return Expert.model_validate(_fields(row, *Expert.model_fields))


def trunk(row: TrunkRow) -> Trunk:
    return Trunk.model_validate(_fields(row, *Trunk.model_fields))


def contribution(row: ContributionRow) -> Contribution:
    return Contribution.model_validate(_fields(row, *Contribution.model_fields))


def merged_trunk(row: TrunkRow) -> MergedTrunk:
    return MergedTrunk.model_validate(_fields(row, *MergedTrunk.model_fields))


def trunk_lineage(row: TrunkRow) -> dict[str, Any]:
    """The trunk's `TrunkLineage` as JSON."""
    return TrunkLineage.model_validate(_fields(row, *TrunkLineage.model_fields)).model_dump(mode="json")


def trunk_contribution(row: TrunkContributionRow) -> TrunkContribution:
    return TrunkContribution.model_validate(_fields(row, *TrunkContribution.model_fields))


def versions(session: Session) -> Callable[[VersionRow], Version]:
    """A view of versions with the aliases and the withdrawals of now."""
    aliases = session.scalars(select(AliasRow).order_by(AliasRow.number)).all()
    withdrawn = set(session.scalars(select(ExpertRow.digest).where(ExpertRow.withdrawn.is_not(None))))
    trunks = {row.digest: trunk(row).contains for row in session.scalars(select(TrunkRow))} if withdrawn else {}

    def view(row: VersionRow) -> Version:
        contains = dict.fromkeys([*row.lineage["experts"], *trunks.get(row.lineage["trunk"], [])])
        derived = {
            "aliases": [alias.name for alias in aliases if alias.version == row.number],
            "contains_withdrawn": [expert for expert in contains if expert in withdrawn],
        }
        own = Version.model_fields.keys() - derived.keys()
        return Version.model_validate({**_fields(row, *own), **derived})

    return view


def progress(row: ProgressRow) -> DomainProgress:
    return DomainProgress.model_validate(_fields(row, *DomainProgress.model_fields))


def evaluation(row: EvaluationRow) -> Evaluation:
    return Evaluation.model_validate(_fields(row, *Evaluation.model_fields))


def table(session: Session, row: VersionRow) -> VersionTable:
    """The paper's table of a version, from the evaluations that there are."""
    rows = session.scalars(select(EvaluationRow).where(EvaluationRow.version == row.number, EvaluationRow.active))
    return VersionTable.of(row.number, row.lineage["domains"], map(evaluation, rows))


def alias(row: AliasRow) -> Alias:
    return Alias.model_validate(_fields(row, *Alias.model_fields))


def alias_move(row: AliasMoveRow) -> AliasMove:
    return AliasMove.model_validate(_fields(row, *AliasMove.model_fields))


def workflow(id_: str, status: str, output: Any, error: Exception | None) -> Workflow:
    """DBOS's status as a message."""
    if status == "SUCCESS":
        if "problem" in output:
            return Workflow(id=id_, state=WorkflowState.FAILED, problem=Problem.model_validate(output["problem"]))
        return Workflow(id=id_, state=WorkflowState.DONE, result=output["result"])
    if status in ("PENDING", "ENQUEUED", "DELAYED"):
        return Workflow(id=id_, state=WorkflowState.RUNNING)
    todo = "mend the cause, which the coordinator's log has, and ask again"
    problem = Problem.of(ProblemType.INTERNAL, f"the work broke off: {error or status}", todo=todo)
    return Workflow(id=id_, state=WorkflowState.FAILED, problem=problem)


_KINDS = {"take_in_expert": "expert", "merge_trunk": "trunk", "publish_version": "version"}


def workflow_entry(status: WorkflowStatus) -> WorkflowEntry:
    """DBOS's status as a line of a list."""
    shown = workflow(status.workflow_id, status.status, status.output, status.error)
    created, updated = (
        datetime.fromtimestamp((stamp or 0) / 1000, UTC) for stamp in (status.created_at, status.updated_at)
    )
    kind = _KINDS[status.name.rpartition(".")[2]]
    return WorkflowEntry.model_validate({**shown.model_dump(), "kind": kind, "created": created, "updated": updated})
