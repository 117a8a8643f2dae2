"""What needs an operator's attention."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from moerge_coordinator.dashboard.attention import needs
from moerge_coordinator.dashboard.first_steps import first_steps
from moerge_proto.bodies import Body, BodyOptions
from moerge_proto.experts import Expert, ExpertState, Parts
from moerge_proto.options import SolveOptions
from moerge_proto.owners import Owner
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.rounds import Round
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
    assert [item.what for item in needs(None, [], None, [], [], [workflow("version-a-1", "failed")])] == [
        "Solving a version failed: why"
    ]
    again = [workflow("version-a-2", "done"), workflow("version-a-1", "failed")]
    assert needs(None, [], None, [], [], again) == []


def test_a_refused_solve_is_forgotten_once_a_later_one_succeeds() -> None:
    later = workflow("version-b-1", "done").model_copy(update={"created": NOW + timedelta(minutes=1)})
    assert needs(None, [], None, [], [], [later, workflow("version-a-1", "failed")]) == []
    body = later.model_copy(update={"id": "body-b-1", "kind": "body"})
    assert len(needs(None, [], None, [], [], [body, workflow("version-a-1", "failed")])) == 1


def test_champion_with_withdrawn_expert_needs_a_clean_version() -> None:
    champion, same, clean = version(1, "a"), version(2, "a"), version(3)
    assert [item.todo for item in needs(champion, [clean, same, champion], None, [], [], [])] == ["promote version 3"]
    result = [item.todo for item in needs(champion, [same, champion], None, [], [], [])]
    assert result == ["merge a body without them, then solve a version"]


@pytest.mark.parametrize("kind", ["expert", "contribution"])
def test_operator_sees_internal_failures_but_not_refused_files(kind: str) -> None:
    assert needs(None, [], None, [], [], [workflow(f"{kind}-a-1", "failed")]) == []
    broken = workflow(f"{kind}-a-1", "failed", ProblemType.INTERNAL)
    assert [item.place for item in needs(None, [], None, [], [], [broken])] == ["/workflows"]


BODY = Body(
    digest="0" * 64, method="average", options=BodyOptions(), experts=[], contributions=[], revision=1,
    family="llama", hidden_size=8, layers=1, config={}, exponents=[1], tensors=1, files=[], source=None,
    license="unknown", current=True, created=NOW, retired=None,
)  # fmt: skip


def expert(domain: str, digit: str, parts: Parts | None = None) -> Expert:
    return Expert(
        number=1, domain=domain, owner=domain, digest=digit * 64, family="llama", license="unknown",
        redistribute=False, state=ExpertState.READY, problem=None, files=[], source=None, adapter=None, parts=parts,
        created=NOW, withdrawn=None, purged=None,
    )  # fmt: skip


def late(*experts: Expert, there: Sequence[str]) -> list[str]:
    """The needs with a newest version of these experts."""
    return [need.what for need in needs(None, [version(1, experts=there)], BODY, experts, [], [])]


def test_a_version_with_an_expert_s_parts_has_the_expert() -> None:
    whole, parts = expert("law", "a"), Parts(expert="a" * 64, body=BODY.digest, fitted=True)
    assert late(whole, expert("law", "b", parts), there=["b" * 64]) == []
    assert late(whole, expert("law", "b", parts), there=["a" * 64]) == []


def test_parts_for_the_current_body_need_a_version_and_others_do_not() -> None:
    """Under a seed's body the whole experts are not registered."""
    parts = [Parts(expert=digit * 64, body=digit * 64, fitted=False) for digit in "01"]
    experts = [expert("law", "a", parts[0]), expert("art", "b", parts[1])]
    assert late(*experts, there=["c" * 64]) == ["The newest version has no expert for law"]


def test_a_seed_s_body_is_chosen_before_the_experts_are_ready() -> None:
    owner = Owner(name="law", domains=["law", "art"], keys=[], created=NOW, seen=None, revoked=None)
    seed = BODY.model_copy(update={"method": "seed", "source": "seed"})
    ready = expert("law", "a", Parts(expert="b" * 64, body=seed.digest, fitted=True))
    steps = {step.what: step for step in first_steps([owner], [ready], seed, [], [])}
    assert steps["Choose a body"].done
    assert not steps["Wait for the owners' experts"].done, "art's is missing"
    merged = {step.what: step for step in first_steps([owner], [expert("law", "a")], BODY, [], [])}
    assert merged["Wait for the owners' experts"].done, "the body was merged without art's"


def test_a_retired_body_and_a_short_round_need_attention() -> None:
    round_ = Round.model_validate(
        {
            "number": 1,
            "name": "spring",
            "kind": "router",
            "body": None,
            "minimum": 2,
            "deadline": NOW,
            "state": "short",
            "contributed": ["law"],
            "missing": ["art"],
            "created": NOW,
        }
    )
    figures = {"shards_done": 0, "shards_total": 0, "tokens_per_second": 0, "seconds_left": None}
    about = {"domain": "art", "owner": "art", "number": 1, "heard": NOW, "stage": "waiting", "obstacle": "body-refused"}
    progress = DomainProgress.model_validate({**about, **figures})
    retired = BODY.model_copy(update={"retired": NOW})
    result = [item.what for item in needs(None, [], retired, [], [round_], [], None, [progress])]
    assert result == [
        "The current body is retired", "Round spring ended without enough contributions; missing: art",
        "Worker of art: refuses the body: by its policy, its owner's seed, or a comparison with the expert",
    ]  # fmt: skip
