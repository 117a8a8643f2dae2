"""An idle worker: it calls the coordinator rarely, and answers a demand soon."""

import re
import time
from pathlib import Path

import httpx
import pytest

from support.federation import eventually, federation_of
from support.models import expert, texts
from support.processes import Coordinator, ended, start_worker

POLICY = """[policy]
head_contributions = false
min_documents = 50
evaluation_sums = true
redistribute = true
progress = true
"""
IDLE_SECONDS, SOON = 12, 20
"""Seconds of observation; and far below a wait, in which an answer comes on a busy machine."""


def calls(server: Coordinator) -> dict[str, float]:
    """Route -> answered calls under /v1."""
    text = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.operator_token}"}).text
    found = re.findall(r'^moerge_requests_total\{method="(\w+)",route="(/v1/.*?)".*?\} (\S+)$', text, re.MULTILINE)
    return {f"{method} {route}": float(count) for method, route, count in found}


@pytest.mark.slow
def test_idle_worker_makes_few_calls_and_answers_soon(tmp_path: Path) -> None:
    with federation_of(tmp_path) as made:
        member, home, log = made.join("law", expert(tmp_path / "law", 1)), tmp_path / "worker", tmp_path / "log"
        home.mkdir()
        (home / "worker.toml").write_text(POLICY)
        data = texts(tmp_path / "texts.jsonl", seed=1, documents=300)
        places = [f"--expert={member.folder}", f"--seed={made.seed}", f"--data={data}", f"--home={home}"]
        environment = made.server.environment(member.token)
        command = ["worker", "run", "--domain=law", "--held-out-share=0.3", *places]
        worker = start_worker(command, environment, log)
        eventually(lambda: "waiting for the next body" in log.read_text(), 120)
        time.sleep(11)  # the last progress report
        before = calls(made.server)
        time.sleep(IDLE_SECONDS)
        after = calls(made.server)
        assert sum(after.values()) - sum(before.values()) <= 1, (before, after)
        number = made.solve().number
        begin = time.monotonic()
        eventually(lambda: f"evaluated version {number}" in log.read_text(), SOON)
        print(f"the worker evaluated the version {time.monotonic() - begin:.2f} s after it")
        worker.terminate()
        assert ended(worker, 60) == 0
