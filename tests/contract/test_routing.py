"""Texts routed through a version: what the stock model says, within memory and time, and in a process that ends."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from moerge.blobs.local import LocalBlobs
from moerge.cli.common import wait
from moerge.errors import MoergeError
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.workflows import text_routing as routing
from moerge_coordinator.workflows.text_routing import TextRouter
from moerge_proto.options import SolveOptions
from moerge_proto.routing import MAX_CHARACTERS
from moerge_proto.versions import NewVersion, Version
from support.fleet import eventually, honest, joined, merge, send
from support.processes import Coordinator, marked, moerge
from support.statistics import written

TEXT = "law é 😀 art"
LIMIT = 2_000_000_000


@dataclass
class House:
    server: Coordinator
    version: Version
    retired: Version

    def ask(self, number: int, text: str = TEXT, seconds: float = 120) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.server.operator_token}"}
        url = f"{self.server.url}/v1/versions/{number}/route"
        return httpx.post(url, headers=headers, json={"text": text}, timeout=seconds)

    def router(self, folder: Path, limit: int | None = LIMIT, **bounds: float) -> TextRouter:
        return TextRouter(LocalBlobs(self.server.home / "blobs"), folder, limit, **bounds)

    def routing(self) -> list[str]:
        """The processes that route for the server, also those that it left behind."""
        return [command for command in marked(str(self.server.home)).values() if "route_text" in command]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A version of law and art, and one that is retired."""
    folder = tmp_path_factory.mktemp("routing")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MOERGE_TEST_MARK", str(folder / "home"))
        server = Coordinator(folder / "home")
        environment.setenv("MOERGE_COORDINATOR_ROUTE_BYTES", str(LIMIT))
        server.start()
    try:
        members = [joined(server, domain, folder, seed) for seed, domain in enumerate(("law", "art"), 1)]
        trunk = merge(server)
        for member in members:
            send(member, written(folder / "contribution", *honest(server, member, trunk)))
            member.client.close()
        with server.client() as operator:
            made = [
                int(wait(operator, operator.solve_version(NewVersion(options=SolveOptions(top_k=top_k)))))
                for top_k in (2, 1)
            ]
            operator.retire_version(made[1])
            yield House(server, operator.version(made[0]), operator.version(made[1]))
    finally:
        server.stop()


async def stays() -> bool:
    return False


def route(router: TextRouter, version: Version, text: str = TEXT) -> bytes:
    return asyncio.run(router.route(version.number, version.files, text, stays))


def test_scores_and_choices_are_the_stock_model_s(house: House) -> None:
    with house.server.client() as operator:
        routed = operator.route_text(house.version.number, TEXT)
    assert "".join(routed.tokens) == TEXT
    assert (routed.domains, routed.top_k) == (["law", "art"], 2)
    folder = house.server.home / "versions" / str(house.version.number)
    ids = AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), output_router_logits=True).router_logits  # [n, D] a layer
    last = [len(TEXT[: end + 1].encode()) - 1 for end in range(len(TEXT))]  # a token a byte
    for layer, expected in enumerate(logits):
        assert torch.tensor(routed.scores[layer]) == pytest.approx(expected[last].float(), abs=1e-4)
        assert routed.experts[layer] == expected[last].argsort(descending=True).tolist()
    assert not (house.server.home / "routing").exists()
    assert TEXT not in (house.server.home / "log").read_text()


def test_the_command_shows_the_text_and_the_domains(house: House, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    environment = house.server.environment()
    shown = moerge("version", "route", house.version.number, "--text", tmp_path / "text", **environment)
    assert shown.splitlines()[0] == TEXT
    assert " law " in shown.splitlines()[-1]


def test_what_can_not_be_routed_is_refused(house: House) -> None:
    assert house.ask(99).status_code == 404
    assert house.ask(house.retired.number).status_code == 410
    for text in ("", "x" * (MAX_CHARACTERS + 1)):
        refused = house.ask(house.version.number, text)
        assert (refused.status_code, refused.json()["field"]) == (422, "text")


@pytest.mark.slow
def test_a_process_ends_when_its_caller_goes_away_and_when_the_coordinator_is_killed(house: House) -> None:
    with pytest.raises(httpx.ReadTimeout):
        house.ask(house.version.number, seconds=1)
    eventually(lambda: not house.routing(), 30)

    def call() -> None:
        with pytest.raises(httpx.TransportError):
            house.ask(house.version.number)

    caller = threading.Thread(target=call)
    caller.start()
    eventually(lambda: bool(house.routing()), 30)
    house.server.kill()
    caller.join()
    eventually(lambda: not house.routing(), 30)


def test_it_is_off_without_a_limit(house: House, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        route(house.router(tmp_path / "routing", None), house.version)
    problem = caught.value.problem()
    assert (problem.status, problem.field) == (409, "route_bytes")


def test_a_version_that_needs_more_is_refused_before_anything_starts(house: House, tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match=r"takes 5\d\d\.\d MB of memory, the limit is 1.0 MB") as caught:
        route(house.router(tmp_path / "routing", 10**6), house.version)
    assert (caught.value.problem().status, caught.value.problem().field) == (413, "route_bytes")


def test_a_process_is_ended_at_its_time_limit(house: House, tmp_path: Path) -> None:
    router = house.router(tmp_path / "routing", seconds=0.5)
    with pytest.raises(MoergeError, match=r"more than 0\.5 s") as caught:
        route(router, house.version)
    assert caught.value.problem().status == 413
    assert not (tmp_path / "routing").exists()


@pytest.mark.slow
def test_a_process_that_exceeds_its_memory_ends_with_a_problem(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is put aside; the process' own limit holds."""
    monkeypatch.setattr(routing, "needed_bytes", lambda weights, config: 0)
    with pytest.raises(MoergeError, match="memory") as caught:
        route(house.router(tmp_path / "routing", 10**8), house.version)
    assert (caught.value.problem().status, caught.value.problem().field) == (413, "route_bytes")


def test_one_text_at_a_time_is_routed_and_others_are_told_when_to_come_again(house: House, tmp_path: Path) -> None:
    router = house.router(tmp_path / "routing", seconds=2, patience=0.2)

    async def both() -> list[bytes | BaseException]:
        calls = [router.route(house.version.number, house.version.files, TEXT, stays) for _ in range(2)]
        return await asyncio.gather(*calls, return_exceptions=True)

    _, second = asyncio.run(both())
    assert isinstance(second, RefusedError)
    assert (second.problem().status, second.retry_after) == (503, 10)
