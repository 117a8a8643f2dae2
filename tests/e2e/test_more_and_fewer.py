"""Documents come and go between runs of a worker: what counts at the coordinator is what the data holds, once."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from moerge.documents.shards import enough
from moerge_workers.leaving.history import History
from support.fleet import joined, merge
from support.house import House, house_of
from support.models import SMALL
from support.processes import coordinator

pytestmark = pytest.mark.slow

ANY = {"min_documents": 1, "min_tokens": 1}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with coordinator(tmp_path / "home") as server:
        member = joined(server, "law", tmp_path, seed=1)
        merge(server)
        with house_of(server, member, tmp_path) as made:
            yield made


def test_law_4_more_documents_are_a_further_contribution_and_fewer_take_the_place_of_all(house: House) -> None:
    house.write("b.jsonl", 0, 150)
    assert house.run() == "ran"
    [first] = house.active()
    assert first.documents == 150

    house.write("b.jsonl", 0, 151)  # less than a shard's worth waits
    assert house.run() == "ran"
    assert house.active() == [first]

    house.write("b.jsonl", 0, 200)
    house.write("a.jsonl", 500, 60)  # sorts before what was sent
    with house.server.client() as operator:
        operator.withdraw_contribution(first.digest)  # so the first must come again, as the same file
    assert house.run() == "ran"
    one, second = house.active()
    assert (one.digest, one.documents, second.documents) == (first.digest, 150, 110)
    assert second.tokens >= enough(int(SMALL["hidden_size"]))
    assert not house.shards(one) & house.shards(second)

    (house.folder / "data" / "a.jsonl").rename(house.folder / "data" / "z.jsonl")  # the same documents
    for kept in (house.folder / "worker" / "contributions").glob("*.safetensors"):  # to save space: they count already
        kept.unlink()
    assert house.run() == "ran"
    assert house.active() == [one, second]

    house.write("z.jsonl", 500, 40)
    house.write("c.jsonl", 900, 10)
    assert house.run() == "ran"
    assert house.active() == [one, second]  # the difference would be over 30 documents
    assert "only 30 documents" in house.log()
    assert house.run(policy=ANY) == "ran"
    [whole] = house.active()
    assert whole.documents == 250
    states = {row.digest: row.active for row in house.member.client.contributions()}
    assert states == {first.digest: False, second.digest: False, whole.digest: True}
    with closing(History(house.home)) as history:
        left = [(each.item.digest, each.became) for each in history.sendings()]
    assert left == [
        (first.digest, "withdrawn"),
        (first.digest, "superseded"),
        (second.digest, "superseded"),
        (whole.digest, "arrived"),
    ]


def test_shares_move_documents_between_splits_and_no_document_is_in_two(house: House) -> None:
    house.write("a.jsonl", 0, 300)
    assert house.run() == "ran"
    assert house.documents() == 300
    assert house.run(tuning_share=0.3, held_out_share=0.2, trunk_contribution=True, policy=ANY) == "ran"
    tuning, rest = house.documents("tuning"), house.documents()
    assert 60 <= tuning <= 120
    assert 110 <= rest <= 190
    assert 30 <= 300 - tuning - rest <= 90
    [own] = house.member.client.trunk_contributions()
    assert own.documents == rest  # nothing is sent of what is held out

    assert house.run(trunk_contribution=True, policy=ANY) == "ran"
    assert (house.documents("tuning"), house.documents()) == (0, 300)
    assert sum(row.documents for row in house.member.client.trunk_contributions() if row.active) == 300
