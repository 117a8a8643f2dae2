"""A hostile coordinator forges a body under which sums tell an owner's text: the worker contributes nothing."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from moerge.models.families.family import EMBEDDING
from moerge_proto.public_log import body_content
from support.federation import Federation, federation_of
from support.worker import Worker, worker_of

Tensors = dict[str, Tensor]
LAYERS = range(3)
MANY = {"bodies_per_month": 100}
"""Else the worker compares three of these bodies only."""
ATTENTION = "model.layers.{}.self_attn.{}_proj.weight"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("coordinator"), "law", "art") as made:
        made.merge()
        yield made


@pytest.fixture(scope="module")
def worker(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """The worker of law, with the default policy but for the budget."""
    folder = tmp_path_factory.mktemp("law")
    with worker_of(federation.server, federation.members["law"], folder) as made:
        made.write("a.jsonl", 0, 130)
        yield made


@pytest.fixture(scope="module")
def honest(federation: Federation) -> Tensors:
    """The honest body."""
    weights = [file for file in federation.body().files if file.name == "body.safetensors"]
    return load_file(federation.server.home / "blobs" / weights[0].sha256[:2] / weights[0].sha256)


def forge(federation: Federation, tensors: Tensors) -> None:
    """Puts other tensors into the place of the current body's: blobs, database and public log have them."""
    data = save(tensors, metadata={"format": "pt"})
    sha256 = hashlib.sha256(data).hexdigest()
    path = federation.server.home / "blobs" / sha256[:2] / sha256
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite")) as database, database:
        [(files,)] = database.execute("SELECT files FROM bodies WHERE current").fetchall()
        changed = [
            file if file["name"] != "body.safetensors" else {**file, "sha256": sha256, "size": len(data)}
            for file in json.loads(files)
        ]
        database.execute("UPDATE bodies SET digest = ?, files = ? WHERE current", (sha256, json.dumps(changed)))
    forged, head = federation.body(), federation.operator.log_head()
    entry = (head.size + 1, "body", sha256, body_content(forged), "2026-01-01 00:00:00.000000", head.hash)
    with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite")) as database, database:
        columns = "number, kind, name, digest, created, previous"
        database.execute(f"INSERT OR IGNORE INTO public_log ({columns}) VALUES (?, ?, ?, ?, ?, ?)", entry)  # noqa: S608


def refused(federation: Federation, worker: Worker, tensors: Tensors) -> str:
    """The worker's answer to a forged body, under which nothing arrived."""
    forge(federation, tensors)
    answer = worker.run(policy=MANY)
    body = federation.body().digest
    assert not [row for row in worker.active() if row.body == body]
    return answer


def with_heads(tensors: Tensors) -> Tensors:
    """A body with one more group of attention heads, which write nothing."""
    more = dict(tensors)
    for layer in LAYERS:
        for module, rows in (("q", 16), ("k", 8), ("v", 8)):
            name = ATTENTION.format(layer, module)
            more[name] = torch.cat([tensors[name], torch.zeros(rows, 32)])
        more[ATTENTION.format(layer, "o")] = torch.cat([tensors[ATTENTION.format(layer, "o")], torch.zeros(32, 16)], 1)
    return more


def scaled(factor: float, *names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor * factor if name in names else tensor for name, tensor in tensors.items()}


def cleared(tensors: Tensors) -> Tensors:
    """A direction of the residual is only one token's."""
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    changed[EMBEDDING][:, 5] = 0
    changed[EMBEDDING][97, 5] = 0.1
    for layer in LAYERS:
        changed[ATTENTION.format(layer, "o")][5] = 0
    return changed


OUTPUTS = [ATTENTION.format(layer, "o") for layer in LAYERS]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(scaled(0.0, *OUTPUTS), id="no attention"),
        pytest.param(scaled(0.05, *OUTPUTS), id="little attention"),
        pytest.param(scaled(0.0, OUTPUTS[0]), id="no attention in one layer"),
        pytest.param(scaled(0.0, ATTENTION.format(0, "q")), id="equal attention"),
        pytest.param(scaled(0.0, ATTENTION.format(0, "k")), id="equal keys"),
        pytest.param(scaled(0.0, ATTENTION.format(0, "v")), id="no values"),
        pytest.param(scaled(0.0, "model.layers.0.input_layernorm.weight"), id="attention reads nothing"),
        pytest.param(scaled(20.0, EMBEDDING), id="attention next to nothing"),
        pytest.param(cleared, id="a direction of one token's"),
        pytest.param(lambda tensors: tensors | {"model.extra.weight": torch.zeros(3)}, id="an unknown tensor"),
    ],
)
def test_sums_under_a_body_that_hides_the_context_are_not_made(
    federation: Federation, worker: Worker, honest: Tensors, change: Callable[[Tensors], Tensors]
) -> None:
    """Features would be functions of the token alone, so that grams give all counts: attack (a)."""
    answer = refused(federation, worker, change(honest))
    assert "strays" in answer or "your expert has no such tensor" in answer


def test_a_body_has_no_further_heads(federation: Federation, worker: Worker, honest: Tensors) -> None:
    """Such a head could read the token before: attack (b)."""
    assert "the body lacks it, or has another shape" in refused(federation, worker, with_heads(honest))


def test_under_the_honest_body_the_worker_contributes(federation: Federation, worker: Worker, honest: Tensors) -> None:
    forge(federation, honest)
    assert worker.run(policy=MANY) == "ran"
    assert [row.body for row in worker.active()] == [federation.body().digest]
