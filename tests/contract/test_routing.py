"""Texts routed through a version: what the stock model says, within memory and time, and in a process that ends."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from moerge.blobs.local import LocalBlobs
from moerge.errors import MoergeError
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.workflows import text_routing as routing
from moerge_coordinator.workflows.text_routing import TextRouter
from moerge_proto.options import SolveOptions
from moerge_proto.routing import MAX_CHARACTERS
from moerge_proto.versions import Version
from support.federation import Federation, eventually, federation_of
from support.processes import marked

TEXT = "law é 😀 art"
LIMIT = 2_000_000_000


@dataclass
class Routed:
    """A coordinator with a version of law and art, and one that is retired."""

    federation: Federation
    version: Version
    retired: Version

    @property
    def home(self) -> Path:
        return self.federation.server.home

    def ask(self, number: int, text: str = TEXT, seconds: float = 120) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.federation.server.operator_token}"}
        url = f"{self.federation.server.url}/v1/versions/{number}/route"
        return httpx.post(url, headers=headers, json={"text": text}, timeout=seconds)

    def router(self, folder: Path, limit: int | None = LIMIT, **bounds: float) -> TextRouter:
        return TextRouter(LocalBlobs(self.home / "blobs"), folder, limit, **bounds)

    def routing(self) -> list[str]:
        """The processes that route for the server, also those that it left behind."""
        return [command for command in marked(str(self.home)).values() if "route_text" in command]


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    folder = tmp_path_factory.mktemp("routing")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("MOERGE_TEST_MARK", str(folder / "home"))
            environment.setenv("MOERGE_COORDINATOR_ROUTE_BYTES", str(LIMIT))
            made = stack.enter_context(federation_of(folder, "law", "art"))
        made.contribute(made.merge())
        version, retired = (made.solve(options=SolveOptions(top_k=top_k)) for top_k in (2, 1))
        yield Routed(made, version, made.operator.retire_version(retired.number))


async def stays() -> bool:
    return False


def route(router: TextRouter, version: Version, text: str = TEXT) -> bytes:
    return asyncio.run(router.route(version.number, version.files, text, stays))


def test_scores_and_choices_are_the_stock_model_s(routed: Routed) -> None:
    found = routed.federation.operator.route_text(routed.version.number, TEXT)
    assert "".join(found.tokens) == TEXT
    assert (found.domains, found.top_k) == (["law", "art"], 2)
    folder = routed.federation.version(routed.version.number)
    ids = AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    with torch.inference_mode():
        logits = model(torch.tensor([ids]), output_router_logits=True).router_logits  # [n, D] a layer
    last = [len(TEXT[: end + 1].encode()) - 1 for end in range(len(TEXT))]  # a token a byte
    for layer, expected in enumerate(logits):
        assert torch.tensor(found.scores[layer]) == pytest.approx(expected[last].float(), abs=1e-4)
        assert found.experts[layer] == expected[last].argsort(descending=True).tolist()
    assert not (routed.home / "routing").exists()
    assert TEXT not in (routed.home / "log").read_text()


def test_the_command_shows_the_text_and_the_domains(routed: Routed, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    shown = routed.federation.moerge("version", "route", routed.version.number, "--text", tmp_path / "text")
    assert shown.splitlines()[0] == TEXT
    assert " law " in shown.splitlines()[-1]


def test_what_can_not_be_routed_is_refused(routed: Routed) -> None:
    assert routed.ask(99).status_code == 404
    assert routed.ask(routed.retired.number).status_code == 410
    for text in ("", "x" * (MAX_CHARACTERS + 1)):
        refused = routed.ask(routed.version.number, text)
        assert (refused.status_code, refused.json()["field"]) == (422, "text")


@pytest.mark.slow
def test_a_process_ends_when_its_caller_goes_away_and_when_the_coordinator_is_killed(routed: Routed) -> None:
    with pytest.raises(httpx.ReadTimeout):
        routed.ask(routed.version.number, seconds=1)
    eventually(lambda: not routed.routing(), 30)

    def call() -> None:
        with pytest.raises(httpx.TransportError):
            routed.ask(routed.version.number)

    caller = threading.Thread(target=call)
    caller.start()
    eventually(lambda: bool(routed.routing()), 30)
    routed.federation.server.kill()
    caller.join()
    eventually(lambda: not routed.routing(), 30)


def test_it_is_off_without_a_limit(routed: Routed, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        route(routed.router(tmp_path / "routing", None), routed.version)
    problem = caught.value.problem()
    assert (problem.status, problem.field) == (409, "route_bytes")


def test_a_version_that_needs_more_is_refused_before_anything_starts(routed: Routed, tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match=r"needs 5\d\d\.\d MB of memory; the limit is 1.0 MB") as caught:
        route(routed.router(tmp_path / "routing", 10**6), routed.version)
    assert (caught.value.problem().status, caught.value.problem().field) == (413, "route_bytes")


def test_a_process_is_ended_at_its_time_limit(routed: Routed, tmp_path: Path) -> None:
    router = routed.router(tmp_path / "routing", seconds=0.5)
    with pytest.raises(MoergeError, match=r"more than 0\.5 s") as caught:
        route(router, routed.version)
    assert caught.value.problem().status == 413
    assert not (tmp_path / "routing").exists()


@pytest.mark.slow
def test_a_process_that_exceeds_its_memory_ends_with_a_problem(
    routed: Routed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is put aside; the process' own limit holds."""
    monkeypatch.setattr(routing, "needed_bytes", lambda weights, config: 0)
    with pytest.raises(MoergeError, match="memory") as caught:
        route(routed.router(tmp_path / "routing", 10**8), routed.version)
    assert (caught.value.problem().status, caught.value.problem().field) == (413, "route_bytes")


def test_one_text_at_a_time_is_routed_and_others_are_told_when_to_come_again(routed: Routed, tmp_path: Path) -> None:
    router = routed.router(tmp_path / "routing", seconds=2, patience=0.2)

    async def both() -> list[bytes | BaseException]:
        calls = [router.route(routed.version.number, routed.version.files, TEXT, stays) for _ in range(2)]
        return await asyncio.gather(*calls, return_exceptions=True)

    _, second = asyncio.run(both())
    assert isinstance(second, RefusedError)
    assert (second.problem().status, second.retry_after) == (503, 10)
