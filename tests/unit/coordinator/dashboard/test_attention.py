"""What needs an operator's attention."""

from datetime import UTC, datetime

import pytest

from moerge_coordinator.dashboard.attention import needs
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.rounds import Round
from moerge_proto.trunks import Trunk, TrunkOptions
from moerge_proto.workflows import WorkflowEntry

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def workflow(id_: str, state: str, why: ProblemType = ProblemType.CONFLICT) -> WorkflowEntry:
    problem = Problem.of(why, "why") if state == "failed" else None
    kind = id_.partition("-")[0]
    fields = {"id": id_, "state": state, "problem": problem, "kind": kind, "created": NOW, "updated": NOW}
    return WorkflowEntry.model_validate(fields)


def test_a_failed_workflow_needs_a_hand_until_it_was_started_again() -> None:
    assert [each.what for each in needs(None, None, None, [], [], [workflow("version-a-1", "failed")])] == [
        "Work on a version failed: why"
    ]
    again = [workflow("version-a-2", "done"), workflow("version-a-1", "failed")]
    assert needs(None, None, None, [], [], again) == []


@pytest.mark.parametrize("kind", ["expert", "contribution"])
def test_refused_files_are_their_owner_s_and_work_that_broke_off_the_operator_s(kind: str) -> None:
    assert needs(None, None, None, [], [], [workflow(f"{kind}-a-1", "failed")]) == []
    broken = workflow(f"{kind}-a-1", "failed", ProblemType.INTERNAL)
    assert [each.place for each in needs(None, None, None, [], [], [broken])] == ["/workflows"]


def test_a_retired_trunk_and_a_short_round_need_a_hand() -> None:
    trunk = Trunk(
        digest="0" * 64, method="average", options=TrunkOptions(), experts=[], contributions=[], family="llama",
        hidden_size=8, layers=1, exponents=[1], tensors=1, files=[], current=True, created=NOW, retired=NOW,
    )  # fmt: skip
    asked = Round.model_validate(
        {
            "number": 1,
            "name": "spring",
            "kind": "router",
            "trunk": None,
            "minimum": 2,
            "deadline": NOW,
            "state": "short",
            "contributed": ["law"],
            "missing": ["art"],
            "created": NOW,
        }
    )
    figures = {"shards_done": 0, "shards_total": 0, "tokens_per_second": 0, "seconds_left": None}
    about = {"domain": "art", "owner": "art", "number": 1, "heard": NOW, "stage": "waiting", "obstacle": "trunk-harms"}
    told = DomainProgress.model_validate({**about, **figures})
    found = [each.what for each in needs(None, None, trunk, [], [asked], [], None, [told])]
    assert found == [
        "The current trunk is retired", "Round spring ended short: art did not contribute",
        "Worker of art: refuses the trunk: it predicts the owner's text too badly",
        "There is a trunk, but no version",
    ]  # fmt: skip
