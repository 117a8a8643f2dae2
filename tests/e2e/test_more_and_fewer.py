"""Documents come and go between runs of a worker: what counts at the coordinator is what the data holds, once."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from moerge.documents.shards import enough
from moerge_workers.outgoing.history import History
from support.federation import federation_of
from support.models import SMALL, expert
from support.worker import Worker, worker_of

pytestmark = pytest.mark.slow

ANY = {"min_documents": 1, "min_tokens": 1}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with federation_of(tmp_path) as made:
        law = made.join("law", expert(tmp_path / "law", 1))
        with worker_of(made.server, law, tmp_path, made.seed) as worker:
            yield worker


def test_law_4_added_documents_add_and_removed_ones_replace(worker: Worker) -> None:
    worker.write("b.jsonl", 0, 150)
    assert worker.run() == "ran"
    [first] = worker.active()
    assert first.documents == 150

    worker.write("b.jsonl", 0, 151)  # less than a shard's worth waits
    assert worker.run() == "ran"
    assert worker.active() == [first]

    worker.write("b.jsonl", 0, 200)
    worker.write("a.jsonl", 500, 60)  # sorts before what was sent
    with worker.server.client() as operator:
        operator.withdraw_contribution(first.digest)  # so the first must come again, as the same file
    assert worker.run() == "ran"
    one, second = worker.active()
    assert (one.digest, one.documents, second.documents) == (first.digest, 150, 110)
    assert second.tokens >= enough(int(SMALL["hidden_size"]))
    assert not worker.shards(one) & worker.shards(second)

    (worker.folder / "data" / "a.jsonl").rename(worker.folder / "data" / "z.jsonl")  # the same documents
    for kept in (worker.folder / "worker" / "contributions").glob("*.safetensors"):  # to save space: they count already
        kept.unlink()
    assert worker.run() == "ran"
    assert worker.active() == [one, second]

    worker.write("z.jsonl", 500, 40)
    worker.write("c.jsonl", 900, 10)
    assert worker.run() == "ran"
    assert worker.active() == [one, second]  # the difference would be over 30 documents
    assert "too small: 30 documents" in worker.log()
    assert worker.run(policy=ANY) == "ran"
    [whole] = worker.active()
    assert whole.documents == 250
    states = {row.digest: row.active for row in worker.member.client.contributions()}
    assert states == {first.digest: False, second.digest: False, whole.digest: True}
    with closing(History(worker.home)) as history:
        left = [
            (sending.item.digest, sending.became) for sending in history.sendings() if sending.item.kind == "router"
        ]
    assert left == [
        (first.digest, "withdrawn"),
        (first.digest, "superseded"),
        (second.digest, "superseded"),
        (whole.digest, "arrived"),
    ]


def test_documents_move_between_splits_and_are_in_only_one(worker: Worker) -> None:
    worker.write("a.jsonl", 0, 300)
    assert worker.run() == "ran"
    assert worker.documents() == 300
    assert worker.run(tuning_share=0.3, held_out_share=0.2, policy=ANY) == "ran"
    tuning, rest = worker.documents("tuning"), worker.documents()
    assert 60 <= tuning <= 120
    assert 110 <= rest <= 190
    assert 30 <= 300 - tuning - rest <= 90
    [own] = [row for row in worker.member.client.contributions("head") if row.active]
    assert own.documents == rest  # nothing is sent of what is held out

    assert worker.run(policy=ANY) == "ran"
    assert (worker.documents("tuning"), worker.documents()) == (0, 300)
    assert sum(row.documents for row in worker.member.client.contributions("head") if row.active) == 300
