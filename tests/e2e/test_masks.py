"""Masked sums: a coordinator, two keepers and five owners' workers as processes; files go between them by hand."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from moerge.blobs.local import LocalBlobs
from moerge.errors import CoordinatorError
from moerge.versions.version_plan import plan_version
from moerge_coordinator.domain.version_inputs import version_inputs
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.folders import Folders
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.version_files import ROUTER_FILE
from moerge_proto.versions import Version
from moerge_workers.outgoing.owner_key import join_request
from support.federation import Federation, federation_of
from support.keepers import KeeperHome
from support.models import expert
from support.processes import Coordinator, moerge
from support.worker import Worker, worker_of

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
SENT = "sent"
KILLED = {"art": "*.exact", "code": "*.seeds", "law": "*-1.safetensors", "music": SENT, "trade": None}
"""Domain -> the file at whose appearance its worker is killed, or `SENT`: when the coordinator has the contribution."""
PIECE = 64
PLAIN: dict[str, Any] = {"options": {"domain_weights": {}}}


@dataclass
class Masked:
    """The federation with its keepers, and the owners' workers by domain."""

    made: Federation
    keepers: list[KeeperHome]
    workers: dict[str, Worker]
    stack: ExitStack

    def settings(self, domain: str, **change: Any) -> dict[str, Any]:
        masks = {"keepers": [keeper.key for keeper in self.keepers], "owners": 4}
        how = {
            "policy": {"head_contributions": False, "redistribute": True},
            "fit": False,
            "domain": domain,
            "masks": masks,
        }
        return {**how, **change}

    def contribute(self, domain: str) -> None:
        """Runs a worker, after a kill where the table has one."""
        worker = self.workers[domain]
        if (step := KILLED[domain]) is not None:
            worker.process.send(worker.given(**self.settings(domain)))
            until(lambda: self.reached(domain, step) or worker.process.poll(), step)
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(EOFError):
                worker.process.recv()  # once it has ended
            worker = self.workers[domain] = self.stack.enter_context(
                worker_of(self.made.server, worker.member, worker.folder, self.made.seed)
            )
        assert worker.run(**self.settings(domain)) == "ran"

    def reached(self, domain: str, step: str) -> bool:
        if step == SENT:
            return any(row.domain == domain for row in self.made.operator.contributions())
        return bool(list((self.workers[domain].home / "contributions").glob(step)))

    def plain(self, domain: str) -> Path:
        """The file that the worker would send without masks."""
        worker, home = self.workers[domain], self.workers[domain].folder / "plain"
        assert worker.run(**self.settings(domain, masks=None, home=str(home), dry_run=True)) == "ran"
        [path] = (home / "contributions").glob("*.safetensors")
        return path


@pytest.fixture
def masked(tmp_path: Path) -> Iterator[Masked]:
    with ExitStack() as stack:
        keepers = [KeeperHome(tmp_path / name) for name in ("auditor", "university")]
        made = stack.enter_context(federation_of(tmp_path, **SMALL))
        result = Masked(made, keepers, {}, stack)
        for number, domain in enumerate(KILLED):
            (folder := tmp_path / f"{domain}-owner").mkdir()
            member = made.join(domain, expert(tmp_path / domain, number + 2, **SMALL))
            worker = stack.enter_context(worker_of(made.server, member, folder, made.seed))
            worker.write("a.jsonl", 200 * number, 150 + 10 * number)
            request = join_request(worker.home / f"{member.name}.pem", member.name, [domain])
            made.operator.approve(request, replace=True)
            for keeper in keepers:
                keeper.approve(request)
            result.workers[domain] = worker
        yield result


def refusal(made: Federation, **new: Any) -> str:
    with pytest.raises(CoordinatorError) as refused:
        made.solve(**new)
    return str(refused.value)


def test_masked_sums(masked: Masked, tmp_path: Path) -> None:
    made, server = masked.made, masked.made.server
    *first, last = KILLED
    for domain in first[:3]:
        masked.contribute(domain)
    assert "contributions of art, code, law count only in a sum" in refusal(made, partial=True, **PLAIN)
    for domain in (*first[3:], last):
        masked.contribute(domain)
    assert "can't have weights of their own" in refusal(made)
    assert "no sums of tuning splits" in refusal(made, options={"domain_weights": {}, "lambda_scale": "auto"})
    assert "count only in a sum" in refusal(made, **PLAIN)

    unmasked(masked, tmp_path / "request.json")
    version = made.solve(**PLAIN)
    assert [len(keeper.cohorts()) for keeper in masked.keepers] == [1, 1]
    assert "law-owner/law" in moerge("keeper", "show", masked.keepers[0].home)
    assert {row.cohort for row in made.operator.contributions()} == {1}

    plain = {domain: masked.plain(domain) for domain in KILLED}
    assert router_file_of(server, version, plain) == digest_of_routers(version)
    require_unseen(server, plain)
    assert "0 damaged" in moerge("coordinator", "verify", server.home, "--solve")
    moerge("coordinator", "inputs", server.home, version.number, "--out", tmp_path / "inputs")
    rebuilt = json.loads(moerge("version", "rebuild", version.number, "--from", tmp_path / "inputs", "--json"))
    assert all(file["equal"] for file in rebuilt["files"].values())

    worker = masked.workers["law"]
    [sent] = worker.active()
    worker.write("b.jsonl", 5000, 150)
    assert worker.run(**masked.settings("law")) == "ran"
    assert worker.active() == [sent]
    assert "changed documents wait for another body" in worker.log()
    worker.member.client.withdraw_contribution(sent.digest)
    assert f"cohort 1 lacks contribution {sent.digest} of law" in refusal(made, partial=True, **PLAIN)


def unmasked(masked: Masked, request: Path) -> None:
    """The way of request and answers, with kills of the coordinator and of a keeper in between."""
    server, (auditor, university) = masked.made.server, masked.keepers
    assert "asks for the masks of art, code, law, music, trade" in moerge(
        "coordinator", "cohort", server.home, "--out", request
    )
    content = request.read_bytes()
    killed(server)
    request.unlink()
    moerge("coordinator", "cohort", server.home, "--out", request)
    assert request.read_bytes() == content, "the same cohort waits"
    assert "the sum of cohort 1 is not known yet" in refusal(masked.made, **PLAIN)
    university.killed_answer(request, "journal.sqlite-journal")  # before or after the journal has the cohort
    answers = [keeper.answer(request) for keeper in (auditor, university)]
    assert answers[0].read_bytes()[:32] == answers[1].read_bytes()[:32]
    moerge("coordinator", "unmask", server.home, *answers)
    killed(server)


def until(condition: Callable[[], object], step: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"never: {step}"
        time.sleep(0.005)


def killed(server: Coordinator) -> None:
    server.kill()
    server.start()


def digest_of_routers(version: Version) -> str:
    [file] = [file for file in version.files if file.name == ROUTER_FILE]
    return file.sha256


def router_file_of(server: Coordinator, version: Version, plain: dict[str, Path]) -> str:
    """The digest of the routers' file that a version has if these files are its contributions."""
    with closing(open_database(server.home / "coordinator.sqlite")) as database:
        blobs = LocalBlobs(server.home / "blobs")
        inputs = version_inputs(database, blobs, Folders(database, blobs, server.home), version.lineage)
    files = [plain[part.domain] for part in inputs.contributed]
    plan = plan_version(version.lineage, replace(inputs, statistics=lambda: files))
    [routers] = [file for file in plan.solved if file.name == ROUTER_FILE]
    return routers.digest()


def require_unseen(server: Coordinator, plain: dict[str, Path]) -> None:
    """Requires that no piece of an owner's gram is in a file of the coordinator, and none of some pieces in memory."""
    pieces, some = set[bytes](), set[bytes]()
    for path in plain.values():
        with StatisticsFile(path) as file:
            for layer in range(file.manifest.layers):
                data = file.gram(layer).tobytes()
                some.add(data[:PIECE])
                pieces |= {data[start : start + PIECE] for start in range(0, len(data) - PIECE, 8)}
    files = [path for path in server.home.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        content = path.read_bytes()
        assert not any(piece in content for piece in pieces), path
    read = 0
    with Path(f"/proc/{server.pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{server.pid}/maps").read_text().splitlines():
            span, mode, *_ = line.split()
            start, end = (int(item, 16) for item in span.split("-"))
            while mode.startswith("rw") and start < end:
                memory.seek(start)
                try:
                    content = memory.read(min(end - start, 2**26))
                except OSError:  # of a device
                    break
                assert not any(piece in content for piece in some), line
                start, read = start + len(content), read + len(content)
    assert read > 2**26
