"""The shard plan is a pure function of documents, settings and key."""

from hypothesis import given
from hypothesis import strategies as st

from moerge.documents.shards import Shard, plan
from moerge.models.batches import batches
from moerge.models.tokens import Tokens, all_counted
from moerge_proto.statistics_file import StatisticsSettings

HIDDEN = 2
ENOUGH = 64 * HIDDEN


def planned(lengths: list[int], **settings: int) -> list[Shard]:
    texts = ["x" * length for length in lengths]
    return list(
        plan(texts, lambda text: Tokens(range(len(text))), StatisticsSettings.model_validate(settings), HIDDEN, b"key")
    )


@given(st.lists(st.integers(0, 200), max_size=30), st.integers(1, 64))
def test_every_document_is_in_one_shard_and_none_is_small(lengths: list[int], context: int) -> None:
    shards = planned(lengths, context=context)
    assert sum(shard.tokens for shard in shards) == sum(lengths)
    assert sum(shard.documents for shard in shards) == sum(length > 0 for length in lengths)
    assert all(len(row) <= context for shard in shards for row in shard.rows)
    assert len(shards) <= 1 or all(shard.tokens >= ENOUGH for shard in shards)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.lists(st.integers(1, 200), max_size=20))
def test_documents_that_come_later_change_only_the_last_shard(lengths: list[int], later: list[int]) -> None:
    before, after = planned(lengths), planned(lengths + later)
    assert [shard.name for shard in after][: len(before) - 1] == [shard.name for shard in before][:-1]


def test_tokens_per_document_is_honoured() -> None:
    [shard] = planned([50, 3], tokens_per_document=10, context=4)
    assert [len(row) for row in shard.rows] == [4, 4, 2, 3]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 100))
def test_batches_hold_every_row_once_within_their_bound(lengths: list[int], batch_tokens: int) -> None:
    rows = [[number] * length for number, length in enumerate(lengths)]
    seen = []
    for batch in batches(all_counted(rows), batch_tokens):
        assert batch.input_ids.numel() <= batch_tokens or len(batch.input_ids) == 1
        for ids, real in zip(batch.input_ids, batch.real, strict=True):
            seen.append(ids[real].tolist())
    assert sorted(seen) == sorted(rows)
