"""Parts of versions: the experts that a reader may use, and what counts in them."""

from pathlib import Path

from sqlalchemy.orm import Session

from moerge_coordinator.grants import parts, rules
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import CohortRow
from moerge_proto.owners import Identity, Role
from support.rows import add_body, add_contribution, add_expert, add_version

SETTINGS = Settings(home=Path("unused"))


def test_experts_whose_contributions_count_as_a_sum_are_granted_together(session: Session) -> None:
    """With one of them closed, a reader has neither, and nothing of the sum counts in its part."""
    body = add_body(session)
    experts = {domain: add_expert(session, domain) for domain in ("law", "art", "code")}
    session.add(cohort := CohortRow(body=body.digest, sum="f" * 64))
    session.flush()
    for domain in ("law", "art"):
        add_contribution(session, experts[domain], body, alone=False, cohort=cohort.number)
    alone = add_contribution(session, experts["code"], body)
    version = add_version(session, options={"lambda_scale": "relative", "domain_weights": {}})
    assert version.lineage.contributions == sorted([alone.digest, "f" * 64])

    def granted() -> list[str]:
        return parts.granted(session, rules.Rules.of(session, SETTINGS), version)(("ben",))

    assert granted() == ["law", "art", "code"]
    owner = Identity(role=Role.OWNER, owner="art-owner", domains=["art"])
    rules.decide(session, SETTINGS, owner, "art", "anna", None, granted=True)
    assert granted() == ["code"]
    lineage = parts.part_lineage(session, version, granted())
    assert (lineage.domains, lineage.contributions) == (["code"], [alone.digest])
    rules.decide(session, SETTINGS, owner, "art", "ben", None, granted=True)
    assert granted() == ["law", "art", "code"]
