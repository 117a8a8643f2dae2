"""An owner's worker: it joins with parts, is evaluated, and leaves without a trace."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from safetensors.torch import load_file

from moerge.models.families.family import FINAL_NORM, HEAD
from moerge_proto.evaluations import Perplexity
from moerge_workers.outgoing.history import History
from support.federation import Federation, federation_of, files_below
from support.models import expert
from support.versions import loaded
from support.worker import Worker, worker_of

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
EVALUATED = {"policy": {"evaluation_sums": True, "redistribute": True, "min_documents": 20}, "held_out_share": 0.3}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Version 1 is of art and code, whose owners are done."""
    with federation_of(tmp_path_factory.mktemp("seed"), "art", "code", **SMALL) as made:
        for member in made.members.values():
            member.allow()
        made.contribute(made.body())
        made.contribute_heads()
        made.solve()
        yield made


@pytest.fixture(scope="module")
def worker(federation: Federation) -> Iterator[Worker]:
    """law's, with its own copy of the seed."""
    law = federation.join("law", expert(federation.folder / "law", 9, **SMALL))
    with worker_of(federation.server, law, federation.folder, federation.seed) as worker:
        worker.write("a.jsonl", 0, 200)
        yield worker


def sent(federation: Federation, *domains: str) -> set[str]:
    rows = [*federation.operator.contributions(), *federation.operator.contributions("head")]
    return {row.digest for row in rows if row.active and row.domain in domains}


def test_newcomer_joins_with_parts_and_leaves_without_a_trace(federation: Federation, worker: Worker) -> None:
    body, before, operator = federation.body(), sent(federation, "art", "code"), federation.operator
    assert worker.run(dry_run=True, **EVALUATED) == "ran"
    assert worker.run(**EVALUATED) == "ran"
    assert not (worker.home / "bodies").exists(), "no body was downloaded"
    [row] = [item for item in worker.member.client.experts() if item.domain == "law"]
    assert row.parts is not None
    assert (row.parts.body, row.parts.expert, row.parts.fitted) == (body.digest, worker.member.dense, True)
    [weights] = [file for file in row.files if file.name == "model.safetensors"]
    tensors = load_file(federation.server.home / "blobs" / weights.sha256[:2] / weights.sha256)
    assert {name for name in tensors if ".mlp." not in name} == {FINAL_NORM, HEAD}
    with closing(History(worker.home)) as history:
        kinds = [sending.item.kind for sending in history.sendings()]
    assert sorted(set(kinds)) == ["expert", "head", "router"]

    joined = federation.solve()
    assert (joined.lineage.domains, joined.lineage.head.method) == (["art", "code", "law"], "regmean")
    assert sent(federation, "art", "code") == before, "nobody else's worker did anything"
    loaded(federation.version(joined.number))
    files = set(files_below(federation.server))
    assert worker.run(**EVALUATED) == "ran"
    [evaluation] = operator.evaluations(joined.number)
    assert isinstance(evaluation.score, Perplexity)
    assert evaluation.score.expert == worker.member.dense
    assert {path for path in set(files_below(federation.server)) - files if path.startswith("blobs")} == set()

    done = worker.member.client.withdraw_expert(row.digest)
    assert done.versions == [joined.number]
    left = federation.solve()
    assert left.number == 1, "the same version"
    assert sent(federation, "art", "code", "law") == before
