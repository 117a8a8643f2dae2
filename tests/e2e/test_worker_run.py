"""A real worker with a token for another domain, and one whose seed is replaced while it computes."""

from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from moerge.models.expert_folder import DenseExpert
from moerge_proto.experts import ExpertState
from support.federation import Federation, Member, eventually, federation_of
from support.models import adapter, expert, texts
from support.processes import ended, start_worker, worker_command


def started(made: Federation, member: Member, domain: str, seed: Path | None = None) -> ForkServerProcess:
    """A worker of the member's for a domain, by default with the first seed; its log is beside the expert."""
    place = member.folder.parent
    data = texts(place / "texts.jsonl", seed=1, documents=150)
    command = worker_command(domain, member.folder, seed or made.seed, data, place / "worker")
    return start_worker(command, made.server.environment(member.token), place / "log")


def test_a_token_for_another_domain_is_told_so(tmp_path: Path) -> None:
    with federation_of(tmp_path) as made:
        member = made.join("law", expert(tmp_path / "law" / "expert", 1))
        assert ended(started(made, member, "art"), 120) == 1
        log = (tmp_path / "law" / "log").read_text()
        assert "the token is law-owner's, for law, not for 'art'" in log
        assert "Traceback" not in log


def test_sigterm_ends_a_worker_with_status_0(tmp_path: Path) -> None:
    folder, data = expert(tmp_path / "expert", 1), texts(tmp_path / "texts.jsonl", seed=1, documents=2)
    command = [item for item in worker_command("law", folder, folder, data, tmp_path / "worker") if item != "--once"]
    worker = start_worker(command, {"MOERGE_COORDINATOR": "http://127.0.0.1:9", "MOERGE_TOKEN": "x"}, tmp_path / "log")
    eventually(lambda: "no answer from" in (tmp_path / "log").read_text(), 120)
    worker.terminate()
    assert ended(worker, 60) == 0


@pytest.mark.slow
def test_a_seed_replaced_during_work_gets_nothing_until_the_owner_has_its_copy(tmp_path: Path) -> None:
    """The worker's expert is an adapter. What is registered are parts of the dense expert that it makes of the seed."""
    other = expert(tmp_path / "other", 1)
    with federation_of(tmp_path) as made:
        folder = adapter(tmp_path / "law" / "expert", made.seed, 2)
        member = made.join("law", folder)
        worker, log = started(made, member, "law"), tmp_path / "law" / "log"
        eventually(lambda: [row.state for row in made.operator.experts()] == [ExpertState.READY], 120)
        first = made.body()
        made.register_seed(other)  # Ray starts now, which takes longer
        assert ended(worker, 120) == 1
        said = log.read_text()
        assert f"body {first.digest[:12]} was replaced during the work" in said
        assert "the coordinator's body isn't your seed's" in said
        assert list(made.operator.contributions()) == []
        [dense] = (tmp_path / "law" / "worker" / "expert").iterdir()
        assert [row.parts.expert for row in made.operator.experts()] == [DenseExpert("law", dense).digest]

        member = replace(member, folder=adapter(folder.with_name("new"), other, 2))
        assert ended(started(made, member, "law", other), 120) == 0
        assert [row.body for row in made.operator.contributions()] == [made.body().digest]
