"""The merge of a body, or the choice of a merged or registered one, which becomes the current one."""

from typing import Any

from dbos import DBOS
from sqlalchemy import select

from moerge.trunk.merge import BodyInputs, MergedBody, merge_body
from moerge_coordinator.domain import bodies
from moerge_coordinator.log import progress
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ExpertRow
from moerge_coordinator.workflows.steps import GONE, Outcome, Work, telling_problems
from moerge_proto.bodies import BodyLineage
from moerge_proto.problems import ProblemType


@DBOS.dbos_class()
class MergeBody(Work):
    title = "merging a body"

    @DBOS.workflow()
    def merge_body(self, lineage: dict[str, Any]) -> Outcome:
        while True:
            merged = self._merge(lineage)
            outcome = merged if "problem" in merged else self._record(merged["result"])
            if outcome != GONE:
                return outcome

    @DBOS.step()
    @telling_problems
    def _merge(self, lineage: dict[str, Any]) -> dict[str, Any]:
        made, ports = BodyLineage.model_validate(lineage), self.ports
        with ports.database.reading() as session:
            if (known := bodies.known(session, ports.blobs, made)) is not None:
                return known.model_dump(mode="json")
            if not made.experts:
                todo = "register it again: moerge coordinator seed"
                raise RefusedError(ProblemType.NOT_READY, "the seed's files are missing", where="method", todo=todo)
            domains = {row.digest: row.domain for row in session.scalars(select(ExpertRow))}
        experts = [*made.experts, *([] if made.options.base is None else [made.options.base])]
        inputs = BodyInputs(
            experts={digest: ports.folders.expert(digest) for digest in experts},
            domains=domains,
            statistics={digest: ports.blobs.source(digest) for digest in made.contributions},
        )
        return merge_body(made, inputs, ports.blobs, progress()).model_dump(mode="json")

    @DBOS.step()
    @telling_problems
    def _record(self, body: dict[str, Any]) -> str | None:
        with self.ports.database.transaction("make body current") as session:
            return bodies.make_current(session, self.ports.blobs, MergedBody.model_validate(body))
