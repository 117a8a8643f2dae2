"""Webhooks of a real coordinator: every event, a receiver that fails and returns, kills before the confirmation."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from moerge.errors import CoordinatorError
from moerge_proto.progress import Obstacle, Progress, Stage
from moerge_proto.versions import NewVersion
from support.federation import Federation, eventually, federation_of
from support.processes import moerge, run_command
from support.receiver import SECRET, Receiver, receiving


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as result:
        yield result


@pytest.fixture(scope="module")
def federation(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("webhooks")
    (folder / "secret").write_text(SECRET)
    settings = f'[webhook]\nurl = "{receiver.url}"\nsecret_file = "{folder / "secret"}"\n'
    with federation_of(folder, "law", settings=settings) as made:
        yield made


def test_every_event_arrives_with_ids_only(federation: Federation, receiver: Receiver) -> None:
    law, operator = federation.members["law"], federation.operator
    [contribution] = federation.contribute(federation.body())
    version = federation.solve(head="average")
    alias = operator.promote("champion", version.number, note="a note that stays here")
    waits = Progress(
        domain="law", stage=Stage.WAITING, shards_done=0, shards_total=0, tokens_per_second=0, seconds_left=None,
        obstacle=Obstacle.ASKS_OWNER,
    )  # fmt: skip
    progress = [law.client.tell_progress(waits) for _ in range(2)]
    eventually(lambda: len(receiver.notices) == 5)
    assert [(content["type"], content["data"]) for _, content in receiver.notices] == [
        ("expert.joined", {"expert": federation.expert("law").digest}),
        ("contribution.arrived", {"contribution": contribution.digest}),
        ("version.solved", {"version": version.number}),
        ("alias.moved", {"alias": alias.number, "version": version.number}),
        ("owner.waits", {"progress": progress[0].number}),
    ]


def test_a_failed_solve_is_told_once(federation: Federation, receiver: Receiver) -> None:
    count = len(receiver.notices)
    [weights] = [file for file in federation.body().files if file.name == "body.safetensors"]
    path = federation.server.home / "blobs" / weights.sha256[:2] / weights.sha256
    content = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    try:
        workflow = federation.operator.solve_version(NewVersion.model_validate({"options": {"ridge_lambda": 0.5}}))
        with pytest.raises(CoordinatorError):
            federation.operator.wait(workflow)
    finally:
        path.write_bytes(content)
    eventually(lambda: len(receiver.notices) > count)
    [(_, told)] = receiver.notices[count:]
    assert (told["type"], told["data"]) == ("version.failed", {"workflow": workflow.id})


def test_a_receiver_that_fails_while_the_coordinator_is_killed_gets_every_notice(
    federation: Federation, receiver: Receiver
) -> None:
    """Killed before it knows of the confirmation, the coordinator sends the notice again, with the same id."""
    server, operator, count = federation.server, federation.operator, len(receiver.notices)

    def die() -> int:
        server.kill()
        return 204

    receiver.answer = die
    operator.promote("candidate", 1)
    eventually(lambda: not server.runs())
    statuses = iter((503,))
    receiver.answer = lambda: next(statuses, 204)
    server.start()
    eventually(lambda: len(receiver.notices) == count + 3)
    killed, failed, confirmed = receiver.notices[count:]
    assert killed == failed == confirmed
    assert confirmed[1]["type"] == "alias.moved"
    eventually(lambda: "moerge_waiting_notices 0.0" in metrics(federation))


def metrics(federation: Federation) -> str:
    token = {"Authorization": f"Bearer {federation.server.operator_token}"}
    return httpx.get(f"{federation.server.url}/metrics", headers=token).text


def test_nobody_reads_the_path_of_the_receiver(federation: Federation, receiver: Receiver) -> None:
    shown = json.dumps(federation.operator.settings())
    log = (federation.server.home / "log").read_text()
    assert "private-path" not in shown + log
    assert receiver.url.removesuffix("/hooks/private-path") in shown


def test_check_names_a_missing_secret(tmp_path: Path) -> None:
    home = tmp_path / "home"
    moerge("coordinator", "init", home)
    (home / "coordinator.toml").write_text('[webhook]\nurl = "https://hooks.example.org"\nsecret_file = "/missing"\n')
    for command in ("check", "serve"):
        done = run_command("coordinator", command, home)
        assert done.returncode == 1
        assert "/missing: can't be read" in done.stdout + done.stderr
