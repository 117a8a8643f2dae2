"""The stages of a run: one after another, and again under every later body."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moerge.errors import CoordinatorError, MoergeError
from moerge.models.stored import SINGLE
from moerge.progress import Progress
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.uploads import Stored
from moerge_workers.outgoing.history import History
from support.stages import POLICY, MemoryClient, another, run_of


def routers(client: MemoryClient) -> list[Contribution]:
    return [row for row in client.rows.values() if row.kind == "router"]


def test_once_it_registers_contributes_and_ends(folder: Path, home: Path, client: MemoryClient) -> None:
    with run_of(folder, home, client) as run:
        run.stages()
    assert len(client.known) == 1
    assert [row.kind for row in client.rows.values()] == ["head", "router"]


def test_law_1_an_expert_that_stays_ends_the_run(folder: Path, home: Path, client: MemoryClient) -> None:
    with run_of(folder, home, client, policy={**POLICY, "mode": "ask"}) as run:
        run.stages()
        assert [item.kind for item in run.history.asked()] == ["expert"]
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
def test_unusable_data_ends_worker_before_sending_parts(
    folder: Path, home: Path, client: MemoryClient, given: dict[str, Any], told: str, dry_run: bool
) -> None:
    with run_of(folder, home, client, dry_run=dry_run, **given) as run, pytest.raises(MoergeError, match=told):
        run.stages()
    assert client.uploaded == []


def test_an_expert_that_does_not_fit_costs_no_upload(folder: Path, home: Path, client: MemoryClient) -> None:
    client.refusal = Problem.of(ProblemType.INCOMPATIBLE_EXPERT, "vocab_size is 380, not 400")
    with run_of(folder, home, client) as run:
        with pytest.raises(CoordinatorError, match="vocab_size is 380"):
            run.stages()
        [left] = run.history.sendings()
    assert left.item.about.startswith("law: config and tokenizer for body ")
    assert "config.json" in {path.name for path in client.uploaded}
    assert not [path for path in client.uploaded if path.suffix == ".safetensors"]


def test_without_router_contributions_nothing_leaves(folder: Path, home: Path, client: MemoryClient) -> None:
    policy = {"router_contributions": False, "head_contributions": False}
    with run_of(folder, home, client, once=False, policy=policy) as run:
        run.stages()
    assert client.uploaded == []


class _Watched(MemoryClient):
    """A coordinator that takes a file only while the owner's history has one as leaving."""

    history: History

    def upload(self, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
        assert [sending for sending in self.history.sendings() if not sending.became], f"{path} left by another way"
        return super().upload(path, progress, title=title, compress=compress)


def test_law_1_a_file_leaves_only_after_it_is_written_down(folder: Path, home: Path, body: Body) -> None:
    client = _Watched(body)
    with run_of(folder, home, client, fit=True, tuning_share=0.3) as run:
        client.history = run.history
        run.stages()
        arrived = [(sending.item.kind, sending.became) for sending in client.history.sendings()]
    kinds = ["expert", "expert", "head", "router", "router"]  # config and tokenizer first
    assert arrived == [(kind, "arrived") for kind in kinds]


class _EndedError(Exception):
    """Ends a worker that waits."""


class _Retraining(MemoryClient):
    """A coordinator of an owner who trains the expert again in its folder, before the next body."""

    folder: Path

    def contribute(self, new: NewContribution) -> Contribution:
        row = super().contribute(new)
        if row.kind == "router":
            self.current = another(self.folder)
            tensors = load_file(self.folder / "retrained" / SINGLE)
            tensors["model.layers.0.mlp.up_proj.weight"] *= 2
            save_file(tensors, self.folder / "retrained" / SINGLE)
        return row


def test_retrained_expert_does_not_contribute_as_the_old_one(folder: Path, home: Path, body: Body) -> None:
    own = shutil.copytree(folder / "expert", home / "retrained")
    client = _Retraining(body)
    client.folder = home
    with (
        run_of(folder, home, client, once=False, expert=own) as run,
        pytest.raises(MoergeError, match=r"retrained/model.safetensors: the file was replaced or changed"),
    ):
        run.stages()
    assert [row.body for row in routers(client)] == [body.digest]


class _Blinking(MemoryClient):
    """A coordinator that has another body for a moment: at the first router contribution, or question about one."""

    home: Path
    other: Body
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
        return self.current if self.away < 0 else self.other

    def contribute(self, new: NewContribution) -> Contribution:
        if self.rows and not self.refused:
            self.refused = True
            raise CoordinatorError(Problem.of(ProblemType.WRONG_BODY, "not the current body"))
        return super().contribute(new)


def test_worker_contributes_under_a_body_that_is_back_after_a_refusal(folder: Path, home: Path, body: Body) -> None:
    client = _Blinking(body)
    client.home, client.other = home, another(home)
    with run_of(folder, home, client) as run:
        run.stages()
    assert [row.body for row in routers(client)] == [body.digest]


def test_question_outdated_for_a_moment_is_asked_again(folder: Path, home: Path, body: Body) -> None:
    client = _Blinking(body)
    client.home, client.other = home, another(home)
    with run_of(folder, home, client) as run:
        run.register(body)
    asking = {**POLICY, "mode": "ask", "head_contributions": False}
    with run_of(folder, home, client, once=False, policy=asking) as run:
        with pytest.raises(_EndedError):
            run.stages()
        assert [item.body for item in run.history.asked()] == [body.digest]
