"""A run: one stage after another, and again under every later trunk."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from moerge.errors import CoordinatorError, MoergeError
from moerge.progress import Progress
from moerge.trunk.merge import DENSE_TRUNK_FILE
from moerge_proto.contributions import Contribution, NewContribution
from moerge_proto.messages import FileEntry
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import Obstacle
from moerge_proto.trunks import Trunk
from moerge_proto.uploads import Stored
from moerge_workers.leaving.history import History
from moerge_workers.loop import run_stages
from support.stages import MemoryClient, context_of, trunk


def test_once_it_registers_contributes_and_ends(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, trunk_contribution=True) as context:
        run_stages(context)
    assert len(client.known) == 1
    assert [row.kind for row in client.rows.values()] == ["trunk", "router"]


def test_law_1_an_expert_that_stays_ends_the_run(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, policy={"mode": "ask"}) as context:
        run_stages(context)
        assert [item.kind for item in context.outbox.history.asked()] == ["expert"]
    assert client.uploaded == []


def test_a_dry_run_shows_every_stage_sends_nothing_and_needs_no_trunk(
    folder: Path, home: Path, client: MemoryClient, capsys: pytest.CaptureFixture[str]
) -> None:
    with context_of(folder, home, client, dry_run=True, trunk_contribution=True) as context:
        run_stages(context)
        shown = capsys.readouterr().err
        for kind in ("expert, ", "trunk contribution", "router contribution"):
            assert kind in shown
        client.current = None
        run_stages(context)
        assert "there is no trunk" in capsys.readouterr().err
    assert client.uploaded == []


def test_without_router_contributions_nothing_else_is_to_do(folder: Path, home: Path, client: MemoryClient) -> None:
    policy = {"router_contributions": False}
    with context_of(folder, home, client, once=False, policy=policy) as context:
        run_stages(context)
    assert client.known
    assert not client.rows


class _Watched(MemoryClient):
    """A coordinator that takes a file only while the owner's history has one as leaving."""

    history: History

    def upload(self, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
        assert [each for each in self.history.sendings() if not each.became], f"{path} left by another way"
        return super().upload(path, progress, title=title, compress=compress)


def test_law_1_a_file_leaves_only_after_it_is_written_down(folder: Path, home: Path) -> None:
    client = _Watched(folder / DENSE_TRUNK_FILE)
    with context_of(folder, home, client, trunk_contribution=True, fit=True, tuning_share=0.3) as context:
        client.history = context.outbox.history
        run_stages(context)
        arrived = [(each.item.kind, each.became) for each in client.history.sendings()]
    kinds = ["expert", "trunk", "expert", "router", "router"]
    assert arrived == [(kind, "arrived") for kind in kinds]


class _EndedError(Exception):
    """Ends a worker that waits."""


class _Harmful(MemoryClient):
    """A coordinator whose first trunk is harmful, and whose third trunk never comes."""

    def current_trunk(self) -> Trunk | None:
        if self.current is None or self.rows:
            raise _EndedError
        return self.current

    def download(self, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
        came = super().download(path, files, folder, progress, title=title)
        if self.current == trunk():
            tensors = load_file(self.weights)
            tensors["model.norm.weight"] *= 300
            save_file(tensors, folder / DENSE_TRUNK_FILE)
            self.current = trunk("8" * 64)
        return came


def test_after_a_trunk_that_is_refused_the_worker_goes_on_with_the_next(folder: Path, home: Path) -> None:
    client = _Harmful(folder / DENSE_TRUNK_FILE)
    policy = {"min_documents": 5, "min_tokens": 1, "max_stray": 1000}
    with context_of(folder, home, client, once=False, policy=policy) as context, pytest.raises(_EndedError):
        run_stages(context)
    assert [row.trunk for row in client.rows.values()] == ["8" * 64]


def test_once_a_trunk_that_is_refused_ends_it_and_the_coordinator_may_know_why(folder: Path, home: Path) -> None:
    client = _Harmful(folder / DENSE_TRUNK_FILE)
    for policy, obstacle in ({"max_stray": 1000}, Obstacle.TRUNK_HARMS), ({}, Obstacle.TRUNK_STRAYS):
        client.current = trunk()
        with context_of(folder, home, client, policy=policy) as context:
            with pytest.raises(MoergeError):
                run_stages(context)
            assert context.events.status.state.progress.obstacle is obstacle
    assert not client.rows


class _Replaced(MemoryClient):
    """A coordinator whose trunk is replaced while the worker computes under it."""

    def contribute(self, new: NewContribution) -> Contribution:
        if self.current == trunk():
            self.current = trunk("8" * 64)
            raise CoordinatorError(Problem.of(ProblemType.WRONG_TRUNK, "not the current trunk"))
        return super().contribute(new)


def test_law_2_a_trunk_that_is_replaced_meanwhile_is_left_for_the_next(folder: Path, home: Path) -> None:
    client = _Replaced(folder / DENSE_TRUNK_FILE)
    with context_of(folder, home, client) as context:
        run_stages(context)
    assert [row.trunk for row in client.rows.values()] == ["8" * 64]
