"""What needs an operator's attention."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from moerge_coordinator.dashboard.attention import needs
from moerge_coordinator.dashboard.first_steps import first_steps
from moerge_proto.bodies import Body
from moerge_proto.experts import Expert, ExpertState, Parts
from moerge_proto.owners import Owner
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import HeadLineage, Lineage, Version
from moerge_proto.workflows import WorkflowEntry

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def workflow(id_: str, state: str, why: ProblemType = ProblemType.CONFLICT) -> WorkflowEntry:
    problem = Problem.of(why, "why") if state == "failed" else None
    kind = id_.partition("-")[0]
    fields = {"id": id_, "state": state, "problem": problem, "kind": kind, "created": NOW, "updated": NOW}
    return WorkflowEntry.model_validate(fields)


def version(number: int, *withdrawn: str, experts: Sequence[str] = ()) -> Version:
    lineage = Lineage(
        body="0" * 64, head=HeadLineage(method="average"), experts=list(experts), domains=["law"] * len(experts),
        contributions=[], options=SolveOptions(), solver="solver",
    )  # fmt: skip
    gone = [item * 64 for item in withdrawn]
    return Version(
        number=number, lineage=lineage, files=[], bytes_total=0, bytes_written=0, note="", tags=[], aliases=[],
        contains_withdrawn=gone, created=NOW, withheld=None, retired=None,
    )  # fmt: skip


def test_a_failed_workflow_needs_attention_until_it_is_retried() -> None:
    assert [item.what for item in needs(None, [], None, [], [workflow("version-a-1", "failed")])] == [
        "Solving a version failed: why"
    ]
    again = [workflow("version-a-2", "done"), workflow("version-a-1", "failed")]
    assert needs(None, [], None, [], again) == []


def test_a_refused_solve_is_forgotten_once_a_later_one_succeeds() -> None:
    later = workflow("version-b-1", "done").model_copy(update={"created": NOW + timedelta(minutes=1)})
    assert needs(None, [], None, [], [later, workflow("version-a-1", "failed")]) == []
    other = later.model_copy(update={"id": "expert-b-1", "kind": "expert"})
    assert len(needs(None, [], None, [], [other, workflow("version-a-1", "failed")])) == 1


def test_champion_with_withdrawn_expert_needs_a_clean_version() -> None:
    champion, same, clean = version(1, "a"), version(2, "a"), version(3)
    assert [item.todo for item in needs(champion, [clean, same, champion], None, [], [])] == ["promote version 3"]
    result = [item.todo for item in needs(champion, [same, champion], None, [], [])]
    assert result == ["solve a version without them"]


@pytest.mark.parametrize("kind", ["expert", "contribution"])
def test_operator_sees_internal_failures_but_not_refused_files(kind: str) -> None:
    assert needs(None, [], None, [], [workflow(f"{kind}-a-1", "failed")]) == []
    broken = workflow(f"{kind}-a-1", "failed", ProblemType.INTERNAL)
    assert [item.place for item in needs(None, [], None, [], [broken])] == ["/workflows"]


BODY = Body(
    digest="0" * 64, family="llama", hidden_size=8, layers=1, config={}, exponents=[1], tensors=1, files=[],
    source="seed", license="unknown", current=True, created=NOW,
)  # fmt: skip


def expert(domain: str, digit: str, body: str = BODY.digest) -> Expert:
    return Expert(
        number=1, domain=domain, owner=domain, digest=digit * 64, family="llama", license="unknown",
        redistribute=False, state=ExpertState.READY, problem=None, files=[], adapter=None,
        parts=Parts(expert=digit * 64, body=body, fitted=False), created=NOW, withdrawn=None, purged=None,
    )  # fmt: skip


def late(*experts: Expert, there: Sequence[str]) -> list[str]:
    """The needs with a newest version of these experts."""
    return [need.what for need in needs(None, [version(1, experts=there)], BODY, experts, [])]


def test_experts_for_the_current_body_need_a_version_and_others_do_not() -> None:
    experts = [expert("law", "a"), expert("art", "b", "1" * 64)]
    assert late(*experts, there=["c" * 64]) == ["The newest version has no expert for law"]
    assert late(*experts, there=["a" * 64]) == []


def test_a_seed_is_registered_before_the_experts_are_ready() -> None:
    owner = Owner(name="law", domains=["law", "art"], keys=[], created=NOW, seen=None, revoked=None)
    steps = {step.what: step for step in first_steps([owner], [expert("law", "a")], BODY, [], [])}
    assert steps["Register the seed"].done
    assert not steps["Wait for the owners' experts"].done, "art's is missing"


def test_a_worker_with_an_obstacle_needs_attention() -> None:
    figures = {"shards_done": 0, "shards_total": 0, "tokens_per_second": 0, "seconds_left": None}
    about = {"domain": "art", "owner": "art", "number": 1, "heard": NOW, "stage": "waiting", "obstacle": "body-refused"}
    progress = DomainProgress.model_validate({**about, **figures})
    [result] = needs(None, [], BODY, [], [], [progress])
    assert result.what.startswith("Worker of art: refuses the body")
