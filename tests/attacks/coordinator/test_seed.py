"""A hostile coordinator forges the seed's body, and gets nothing, not even an answer."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from moerge.errors import MoergeError
from moerge.models.families.family import EMBEDDING, FINAL_NORM, HEAD
from moerge.statistics.passes import Pass
from moerge.statistics.windows import Done, Window
from moerge_proto.bodies import Body
from moerge_proto.demands import Demands
from moerge_proto.experts import ExpertState
from moerge_proto.progress import Obstacle
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.outgoing.history import History
from moerge_workers.outgoing.public_log import LogError, PublicLog
from support.models import expert, texts
from support.outbox import COORDINATOR
from support.stages import NOW, MemoryClient, another, registered, run_of, seeded

TOKEN = 97


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Body]:
    """A folder with an owner's expert and seed, and the coordinator's honest body."""
    folder = tmp_path_factory.mktemp("owner")
    return folder, seeded(folder)


@pytest.fixture
def folder(honest: tuple[Path, Body], tmp_path: Path) -> Path:
    texts(tmp_path / "texts.jsonl", 1, 40)
    return honest[0]


@pytest.fixture
def client(honest: tuple[Path, Body]) -> MemoryClient:
    return MemoryClient(honest[1])


class Unread:
    """Data that fails a test that reads it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("text was read")


def never(work: Pass, given: Iterable[Window]) -> Iterator[Done]:
    raise AssertionError("it computed")


def ran(folder: Path, home: Path, client: MemoryClient) -> None:
    """One run of the owner's worker, over 40 documents."""
    with run_of(folder, home, client, fit=None) as run:
        run.stages()


def refusal(folder: Path, home: Path, client: MemoryClient) -> tuple[str, Obstacle | None]:
    """The error and the obstacle of a run that may neither read text nor compute; nothing leaves, and nothing came."""
    with run_of(folder, home, client, fit=None) as run:
        documents = replace(run.documents, data=Unread())  # type: ignore[arg-type]
        idle = replace(run, statistics=replace(run.statistics, documents=documents, compute=never))
        with pytest.raises(MoergeError) as caught:
            idle.stages()
        assert run.history.sendings() == []
        obstacle = run.documents.events.status.state.obstacle
    assert (client.uploaded, client.rows, client.known) == ([], {}, {})
    return str(caught.value), obstacle


def changed(seed: Path, name: str, change: Callable[[torch.Tensor], object]) -> Path:
    """The seed with one tensor changed in place."""
    tensors = load_file(seed / "model.safetensors")
    change(tensors[name])
    save_file(tensors, seed / "model.safetensors", {"format": "pt"})
    return seed


def one_bit(tensor: torch.Tensor) -> None:
    bits = tensor.view(torch.int32).flatten()
    bits[len(bits) // 2] ^= 1


def one_row(tensor: torch.Tensor) -> None:
    tensor[TOKEN] += tensor[TOKEN].norm() / tensor.shape[1] ** 0.5


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(EMBEDDING, one_row, id="one row of the embedding (P6)"),
        pytest.param("model.layers.1.self_attn.v_proj.weight", one_bit, id="one bit of attention"),
        pytest.param("model.layers.2.input_layernorm.weight", one_bit, id="one bit of a norm"),
    ],
)
def test_forged_body_is_refused_before_text_is_read(
    folder: Path, tmp_path: Path, client: MemoryClient, name: str, change: Callable[[torch.Tensor], None]
) -> None:
    seed = changed(shutil.copytree(folder / "seed", tmp_path / "other"), name, change)
    client.current = registered(seed, tmp_path / "forged")
    assert refusal(folder, tmp_path, client)[1] is Obstacle.BODY_REFUSED


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"digest": "0" * 64}, id="another name"),
        pytest.param({"exponents": [16, 16, 15]}, id="other exponents"),
        pytest.param({"files": []}, id="no file"),
    ],
)
def test_seed_s_body_under_other_facts_is_refused(
    folder: Path, tmp_path: Path, client: MemoryClient, forged: dict[str, Any]
) -> None:
    assert client.current is not None
    client.current = client.current.model_copy(update=forged)
    assert refusal(folder, tmp_path, client)[1] is Obstacle.BODY_REFUSED


class Demanding(MemoryClient):
    """A coordinator that demands a contribution under a body, and serves the seed's."""

    def demands(self, expert: str, seen: Demands | None = None) -> Demands:
        super().demands(expert, seen)
        return Demands.of("0" * 64, None)


def test_seed_s_body_in_place_of_the_demanded_one_is_refused(
    folder: Path, tmp_path: Path, client: MemoryClient
) -> None:
    assert refusal(folder, tmp_path, Demanding(client.current))[1] is Obstacle.LOG_DIFFERS


def test_second_body_after_a_contribution_gets_nothing(folder: Path, tmp_path: Path, client: MemoryClient) -> None:
    """P2, P5 and P6 need sums under two bodies. There is one: another seed's and forged ones are refused."""
    ran(folder, tmp_path, client)
    sent, kept = list(client.uploaded), dict(client.rows)
    more = texts(tmp_path / "more.jsonl", 2, 1).read_text()
    (tmp_path / "texts.jsonl").write_text((tmp_path / "texts.jsonl").read_text() + more)
    twin = changed(shutil.copytree(folder / "seed", tmp_path / "twin"), EMBEDDING, one_row)
    for other in (registered(twin, tmp_path / "b"), another(tmp_path)):
        client.current = other
        with pytest.raises(MoergeError):
            ran(folder, tmp_path, client)
    assert (client.uploaded, client.rows) == (sent, kept)


def test_seed_with_another_head_is_the_same_body(folder: Path, tmp_path: Path, client: MemoryClient) -> None:
    """P2: a change of the final norm gave a second contribution over all documents."""
    ran(folder, tmp_path, client)
    sent = list(client.uploaded)
    seed = shutil.copytree(folder / "seed", tmp_path / "other")
    for name in (FINAL_NORM, HEAD):
        changed(seed, name, lambda tensor: tensor.mul_(1.0001))
    before, client.current = client.current, registered(seed, tmp_path / "served")
    assert before is not None
    assert client.current.digest == before.digest
    with pytest.raises(LogError, match="the public log has"):
        ran(folder, tmp_path, client)
    client.entries.clear()
    with closing(History(tmp_path)) as history:
        PublicLog(history, COORDINATOR).accept(client)  # the owner believes that coordinator
    ran(folder, tmp_path, client)
    assert client.uploaded == sent


def test_refusals_answer_nothing_about_text(folder: Path, tmp_path: Path, client: MemoryClient) -> None:
    """P3: refusals of forged bodies told a bit each about grams that never leave. Now any text gets the same."""
    seed = changed(shutil.copytree(folder / "seed", tmp_path / "other"), EMBEDDING, one_row)
    client.current = registered(seed, tmp_path / "forged")
    answers = set()
    for number in range(3):
        home = tmp_path / f"home-{number}"
        home.mkdir()
        texts(home / "texts.jsonl", number, 40 * number + 1)
        answers.add(refusal(folder, home, client))
        kept = {path.relative_to(home).parts[0] for path in home.rglob("*") if path.is_file()}
        assert not kept & {"contributions", "parts"}
    assert len(answers) == 1


def test_no_token_counts_leave_under_the_seed(folder: Path, tmp_path: Path, client: MemoryClient) -> None:
    """P1: counts followed from the gram of the first attention's inputs, which are functions of single tokens."""
    ran(folder, tmp_path, client)
    tensors = set()
    for path in client.uploaded:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                tensors |= set(file.keys())
    sums = {name for name in tensors if "mlp" not in name}
    layers = {f"layers.{layer}.{part}" for layer in range(3) for part in ("gram", "cross")}
    assert sums == layers | {"head_input", FINAL_NORM, HEAD}
    manifests = [json.dumps(row.model_dump(mode="json")) for row in client.rows.values()]
    assert not any("rare" in line for line in manifests)


def withdraw_all(client: MemoryClient) -> None:
    for digest in client.rows:
        client.withdraw_contribution(digest)
    for digest, row in client.known.items():
        client.known[digest] = row.model_copy(update={"state": ExpertState.WITHDRAWN, "withdrawn": NOW})


def first_layers(client: MemoryClient) -> dict[int, list[int]]:
    """Documents -> the first layer's cross of each uploaded router contribution."""
    result = {}
    for path in client.uploaded:
        if path.parent.name == "contributions":
            with StatisticsFile(path) as file:
                if file.manifest.kind == "router":
                    result[file.manifest.documents] = file.array("layers.0.cross").tolist()
    return result


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param({"fit": False}, {"fit": True}, id="fitted after own"),
        pytest.param({"fit": True}, {"fit": False}, id="own after fitted"),
        pytest.param({}, {"expert": "trained-again"}, id="of another expert"),
    ],
)
def test_other_mlps_show_no_single_document(
    folder: Path, tmp_path: Path, client: MemoryClient, first: dict[str, Any], then: dict[str, Any]
) -> None:
    """The first layer's sums don't depend on the MLPs, so two contributions differ by that of their documents."""
    given = {"fit": None, **first}
    if "expert" in then:
        then = {"expert": expert(tmp_path / "trained-again", 2)}
    lines = (tmp_path / "texts.jsonl").read_text()

    def run(more: int, **given: Any) -> dict[int, list[int]]:
        (tmp_path / "texts.jsonl").write_text(lines + texts(tmp_path / "more.jsonl", 2, more).read_text())
        with run_of(folder, tmp_path, client, **given) as run:
            run.stages()
        return first_layers(client)

    sums = run(0, **given)
    assert sums.keys() == {40}
    withdraw_all(client)
    given |= then
    assert run(1, **given) == sums
    assert run(4, **given) == sums
    assert not any(row.active for row in client.rows.values() if row.kind == "router")
    assert run(0, **given) == sums
    [row] = [row for row in client.rows.values() if row.kind == "router" and row.active]
    assert row.documents == 40
    assert run(1, **given).keys() == {40}
    assert run(5, **given).keys() == {40, 5}
