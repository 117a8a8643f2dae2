"""The stages of a run: one after another, and again under every later body."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moerge.errors import CoordinatorError, MoergeError
from moerge.models.families.family import EMBEDDING
from moerge.models.stored import SINGLE
from moerge.progress import Progress
from moerge.trunk.merge import DENSE_BODY_FILE
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.experts import ExpertState
from moerge_proto.messages import FileEntry
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import Obstacle
from moerge_proto.uploads import Stored
from moerge_workers.contributing.stages import run_stages
from moerge_workers.leaving.history import History
from support.stages import NOW, MemoryClient, body, context_of

POLICY = {"min_documents": 5, "min_tokens": 1}


def routers(client: MemoryClient) -> list[Contribution]:
    return [row for row in client.rows.values() if row.kind == "router"]


def test_once_it_registers_contributes_and_ends(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, body_contribution=True) as context:
        run_stages(context)
    assert len(client.known) == 1
    assert [row.kind for row in client.rows.values()] == ["body", "head", "router"]


def test_law_1_an_expert_that_stays_ends_the_run(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, policy={"mode": "ask", "min_documents": 5, "min_tokens": 1}) as context:
        run_stages(context)
        assert [item.kind for item in context.outbox.history.asked()] == ["expert"]
    assert client.uploaded == []


def test_dry_run_shows_every_stage_and_sends_nothing(
    folder: Path, home: Path, client: MemoryClient, capsys: pytest.CaptureFixture[str]
) -> None:
    with context_of(folder, home, client, dry_run=True, body_contribution=True) as context:
        run_stages(context)
        shown = capsys.readouterr().err
        for kind in ("expert, ", "body contribution", "head contribution", "router contribution"):
            assert kind in shown
        client.current = None
        run_stages(context)
        shown = capsys.readouterr().err
        assert "data: 40 documents read" in shown
        assert "no body yet" in shown
    assert client.uploaded == []


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"text_field": "content"}, "no document in the field 'content'"),
        ({"policy": {}}, "too little data: 40 documents; the policy's min_documents is 1,000"),
        ({"held_out_share": 0.999}, "no document has a token that counts"),
    ],
)
def test_unusable_data_ends_worker_before_sending_the_expert(
    folder: Path, home: Path, client: MemoryClient, given: dict[str, Any], told: str, dry_run: bool
) -> None:
    client.current = None
    with (
        context_of(folder, home, client, dry_run=dry_run, **given) as context,
        pytest.raises(MoergeError, match=told),
    ):
        run_stages(context)
    assert client.uploaded == []


def test_an_expert_that_does_not_fit_costs_no_upload(folder: Path, home: Path, client: MemoryClient) -> None:
    client.refusal = Problem.of(ProblemType.INCOMPATIBLE_EXPERT, "vocab_size is 380, not 400")
    with context_of(folder, home, client) as context:
        with pytest.raises(CoordinatorError, match="vocab_size is 380"):
            run_stages(context)
        [left] = context.outbox.history.sendings()
    assert left.item.about.startswith("law: config and tokenizer, ")
    assert "config.json" in {path.name for path in client.uploaded}
    assert not [path for path in client.uploaded if path.suffix == ".safetensors"]


def test_without_router_contributions_nothing_else_is_to_do(folder: Path, home: Path, client: MemoryClient) -> None:
    policy = {"router_contributions": False, "head_contributions": False}
    with context_of(folder, home, client, once=False, policy=policy) as context:
        run_stages(context)
    assert client.known
    assert not client.rows


class _Watched(MemoryClient):
    """A coordinator that takes a file only while the owner's history has one as leaving."""

    history: History

    def upload(self, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
        assert [sending for sending in self.history.sendings() if not sending.became], f"{path} left by another way"
        return super().upload(path, progress, title=title, compress=compress)


def test_law_1_a_file_leaves_only_after_it_is_written_down(folder: Path, home: Path) -> None:
    client = _Watched(folder / DENSE_BODY_FILE)
    with context_of(folder, home, client, body_contribution=True, fit=True, tuning_share=0.3) as context:
        client.history = context.outbox.history
        run_stages(context)
        arrived = [(sending.item.kind, sending.became) for sending in client.history.sendings()]
    kinds = ["expert", "expert", "body", "head", "expert", "expert", "router", "router"]  # config and tokenizer first
    assert arrived == [(kind, "arrived") for kind in kinds]


class _EndedError(Exception):
    """Ends a worker that waits."""


class _Harmful(MemoryClient):
    """A coordinator whose first body is harmful, and whose third body never comes."""

    def current_body(self) -> Body | None:
        if self.current is None or routers(self):
            raise _EndedError
        return self.current

    def download(self, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
        came = super().download(path, files, folder, progress, title=title)
        if self.current == body():
            tensors = load_file(self.weights)
            tensors[EMBEDDING][:, 0] *= -1  # what letters are known by
            save_file(tensors, folder / DENSE_BODY_FILE)
            self.current = body("8" * 64)
        return came


def test_worker_continues_with_next_body_after_a_refused_one(folder: Path, home: Path) -> None:
    client = _Harmful(folder / DENSE_BODY_FILE)
    policy = {**POLICY, "max_stray": 1000}
    with context_of(folder, home, client, once=False, policy=policy) as context, pytest.raises(_EndedError):
        run_stages(context)
    assert [row.body for row in routers(client)] == ["8" * 64]


def test_once_ends_at_refused_body_and_reports_the_obstacle(folder: Path, home: Path) -> None:
    client = _Harmful(folder / DENSE_BODY_FILE)
    for most in (1000.0, 0.6):
        client.current = body()
        policy = {**POLICY, "max_stray": most}
        with context_of(folder, home, client, policy=policy) as context:
            with pytest.raises(MoergeError):
                run_stages(context)
            assert context.events.status.state.progress.obstacle is Obstacle.BODY_REFUSED
    assert not routers(client)


class _Withdrawing(MemoryClient):
    """A coordinator whose operator withdraws the expert after its contribution; the next body is without it."""

    def current_body(self) -> Body | None:
        self.looks += bool(routers(self))
        if self.looks > 2:
            self.current = body("8" * 64)
            gone = {"state": ExpertState.WITHDRAWN, "withdrawn": NOW}
            self.known = {digest: row.model_copy(update=gone) for digest, row in self.known.items()}
        return self.current

    looks = 0


def test_waiting_worker_ends_when_its_expert_is_withdrawn(
    folder: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = _Withdrawing(folder / DENSE_BODY_FILE)
    with (
        context_of(folder, home, client, once=False) as context,
        pytest.raises(MoergeError, match=r"the expert was withdrawn 2026-01-01\n  what to do: to let it join again"),
    ):
        run_stages(context)
    shown = capsys.readouterr().err
    assert "waiting for the next body" in shown
    assert "strays" not in shown.rpartition("waiting for")[2]


class _Retraining(MemoryClient):
    """A coordinator of an owner who trains the expert again in its folder, before the next and last body."""

    def current_body(self) -> Body | None:
        if len(routers(self)) > 1:
            raise _EndedError
        return self.current

    def contribute(self, new: NewContribution) -> Contribution:
        row = super().contribute(new)
        if row.kind == "router":
            self.current = body("8" * 64)
            tensors = load_file(self.weights.parent / "retrained" / SINGLE)
            tensors["model.layers.0.mlp.up_proj.weight"] *= 2
            save_file(tensors, self.weights.parent / "retrained" / SINGLE)
        return row


def test_retrained_expert_does_not_contribute_as_the_old_one(folder: Path, home: Path) -> None:
    own = shutil.copytree(folder / "expert", folder / "retrained")
    client = _Retraining(folder / DENSE_BODY_FILE)
    with (
        context_of(folder, home, client, once=False, expert=own) as context,
        pytest.raises(MoergeError, match=r"retrained/model.safetensors: the file was replaced or changed"),
    ):
        run_stages(context)
    assert [row.body for row in routers(client)] == ["7" * 64]


class _Replaced(MemoryClient):
    """A coordinator whose body is replaced while the worker computes under it."""

    def contribute(self, new: NewContribution) -> Contribution:
        if self.current == body() and self.rows:  # it has the head contribution
            self.current = body("8" * 64)
            raise CoordinatorError(Problem.of(ProblemType.WRONG_BODY, "not the current body"))
        return super().contribute(new)


def test_law_2_replaced_body_is_abandoned_for_the_next(folder: Path, home: Path) -> None:
    client = _Replaced(folder / DENSE_BODY_FILE)
    with context_of(folder, home, client) as context:
        run_stages(context)
    assert [row.body for row in routers(client)] == ["8" * 64]


class _Blinking(MemoryClient):
    """A coordinator that has another body for a moment: at the first router contribution, or question about one."""

    home: Path
    looks = questions = away = 0
    refused = False

    def current_body(self) -> Body | None:
        self.looks += 1
        if self.looks > 10:
            raise _EndedError
        with closing(History(self.home)) as history:  # the worker's own is of another thread
            asked = any(item.kind == "router" for item in history.asked())
        if asked:
            self.questions += 1
            if self.questions > 1:
                raise _EndedError
            self.away = 2
        self.away -= 1
        return self.current if self.away < 0 else body("8" * 64)

    def contribute(self, new: NewContribution) -> Contribution:
        if self.rows and not self.refused:
            self.refused = True
            raise CoordinatorError(Problem.of(ProblemType.WRONG_BODY, "not the current body"))
        return super().contribute(new)


def test_worker_contributes_under_a_body_that_is_back_after_a_refusal(folder: Path, home: Path) -> None:
    client = _Blinking(folder / DENSE_BODY_FILE)
    with context_of(folder, home, client) as context:
        client.home = home
        run_stages(context)
    assert [row.body for row in routers(client)] == ["7" * 64]


def test_question_outdated_for_a_moment_is_asked_again(folder: Path, home: Path) -> None:
    client = _Blinking(folder / DENSE_BODY_FILE)
    with context_of(folder, home, client, policy={**POLICY, "router_contributions": False}) as context:
        client.home = home
        run_stages(context)
    with context_of(folder, home, client, once=False, policy={**POLICY, "mode": "ask"}) as context:
        with pytest.raises(_EndedError):
            run_stages(context)
        assert [item.body for item in context.outbox.history.asked()] == ["7" * 64]
