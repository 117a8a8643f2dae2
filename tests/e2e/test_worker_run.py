"""A real worker with a token for another domain, and one whose body is replaced while it computes."""

from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from moerge.models.expert_folder import DenseExpert
from support.federation import Member, eventually, federation_of
from support.models import adapter, expert, texts
from support.processes import Coordinator, ended, moerge, start_worker, worker_command


def started(server: Coordinator, member: Member, domain: str) -> ForkServerProcess:
    """A worker of the member's for a domain; its log is beside the expert."""
    place = member.folder.parent
    data = texts(place / "texts.jsonl", seed=1, documents=150)
    command = worker_command(domain, member.folder, data, place / "worker")
    return start_worker(command, server.environment(member.token), place / "log")


def test_a_token_for_another_domain_is_told_so(tmp_path: Path) -> None:
    with federation_of(tmp_path) as made:
        member = made.join("law", expert(tmp_path / "law" / "expert", 1))
        assert ended(started(made.server, member, "art"), 120) == 1
        log = (tmp_path / "law" / "log").read_text()
        assert "the token is law-owner's, for law, not for 'art'" in log
        assert "Traceback" not in log


def test_sigterm_ends_a_worker_with_status_0(tmp_path: Path) -> None:
    folder, data = expert(tmp_path / "expert", 1), texts(tmp_path / "texts.jsonl", seed=1, documents=2)
    command = [item for item in worker_command("law", folder, data, tmp_path / "worker") if item != "--once"]
    worker = start_worker(command, {"MOERGE_COORDINATOR": "http://127.0.0.1:9", "MOERGE_TOKEN": "x"}, tmp_path / "log")
    eventually(lambda: "no answer from" in (tmp_path / "log").read_text(), 120)
    worker.terminate()
    assert ended(worker, 60) == 0


@pytest.mark.slow
def test_body_replaced_during_work_costs_one_more_pass(tmp_path: Path) -> None:
    """The worker's expert is an adapter. What is registered is the dense expert that it makes of its base."""
    with federation_of(tmp_path) as made:
        folder = adapter(tmp_path / "law" / "expert", expert(tmp_path / "base", 1), 2)
        member = made.join("law", folder)
        worker, log = started(made.server, member, "law"), tmp_path / "law" / "log"
        eventually(lambda: "waiting for the first body" in log.read_text(), 120)
        made.moerge("body", "merge")
        eventually(lambda: "the body strays" in log.read_text(), 120)  # Ray starts now, which takes longer
        second = made.moerge("body", "merge", "--method", "weighted", "--weight", "law=2")
        assert ended(worker, 120) == 0
        assert "was replaced during the work" in log.read_text()
        assert f"under body {second[:12]}" in log.read_text()
        assert [contribution.body for contribution in made.operator.contributions()] == [second]
        assert made.expert("law").digest == DenseExpert("law", folder).digest
        [dense] = (tmp_path / "law" / "worker" / "expert").iterdir()
        assert DenseExpert("law", dense).digest == DenseExpert("law", folder).digest
        again = moerge("expert", "add", folder, "--domain", "law", **made.server.environment(member.token))
        assert again == made.expert("law").digest
