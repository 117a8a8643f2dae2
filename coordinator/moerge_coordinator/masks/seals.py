"""The rule of masked contributions: seals for their keepers, and a part in the sum of a cohort."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from moerge.statistics.validate import require_exponents
from moerge_coordinator.domain.contribution_kinds import RouterRule, Rule
from moerge_coordinator.domain.owner_keys import keys_of
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow, ContributionRow, SealsRow
from moerge_proto.contributions import NewContribution
from moerge_proto.masks import MaskedPart, facts_of
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import RouterManifest, StatisticsFile


class MaskedRule(RouterRule):
    """Masked router contributions. Their seals must be for their keepers, and signed by the owner's active key."""

    def require_beside(self, session: Session, manifest: RouterManifest, new: NewContribution) -> None:
        found = [] if new.masks is None else sorted(new.masks.sealed)
        if new.masks is None or found != manifest.keepers:
            what = (
                f"expected seeds for {len(manifest.keepers)} keepers of the contribution, found others for {len(found)}"
            )
            raise RefusedError(ProblemType.INVALID_REQUEST, what, where="masks", todo="run the worker again")
        part = MaskedPart.model_validate({**facts_of(manifest), "contribution": new.sha256, "seals": new.masks})
        keys = keys_of(session, manifest.owner)
        if not keys or not part.is_genuine(keys[-1].public_key):
            todo = "make a key (moerge worker init), and run the worker again"
            what = "not signed by the owner's active key"
            raise RefusedError(ProblemType.FORBIDDEN, what, where="masks.signature", todo=todo)

    def validate(self, file: StatisticsFile, body: BodyRow) -> list[str]:
        require_exponents(file, body.exponents)
        return ["masked: its numbers can't be checked, only those of the sum with other owners'"]

    def describe(self, row: ContributionRow, manifest: RouterManifest) -> None:
        super().describe(row, manifest)
        row.alone = False

    def claim(self, session: Session, new: NewContribution, manifest: RouterManifest) -> None:
        super().claim(session, new, manifest)
        if session.get(SealsRow, new.sha256) is None and new.masks is not None:
            session.add(SealsRow(contribution=new.sha256, seals=new.masks))


RULES: Mapping[str, Rule[Any]] = {"masked": MaskedRule()}
