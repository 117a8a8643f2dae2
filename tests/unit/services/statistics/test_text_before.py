"""Router statistics behind public text: the same tokens count, and integers add up as ever."""

from collections.abc import Sequence
from functools import reduce
from itertools import permutations
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from moerge.documents.pool import Pool, pool_texts
from moerge.documents.shards import Shard, plan
from moerge.errors import ContributionError
from moerge.models.batches import batches
from moerge.models.bounds import feature_bounds, feature_exponents, feature_gains
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import Computing, body_contribution, head_contribution, router_contribution
from moerge.statistics.integers import square_of, to_floats
from moerge.statistics.passes import RouterPass, need_of
from moerge.statistics.streamed import Streamed, saved
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import (
    BodyManifest,
    HeadManifest,
    Int64,
    StatisticsFile,
    StatisticsSettings,
    TextBefore,
)
from support.models import expert, on_body, tokenizer
from support.passes import visit_features
from support.statistics import LAYERS

KEY, HIDDEN = b"the owner's key", 32
BEFORE = TextBefore(tokens=16, piece=16)
SETTINGS = StatisticsSettings(context=64, batch_tokens=150, before=BEFORE)
DOCUMENTS = [Tokens([(11 * row + 3 * place) % 250 for place in range(4 + 9 * row)]) for row in range(8)]
TEXTS = [tokenizer()(text)["input_ids"] for text in pool_texts()]


def planned(
    documents: Sequence[Tokens], before: TextBefore | None, context: int = 512, hidden: int = HIDDEN, key: bytes = KEY
) -> list[Shard]:
    limits, pool = StatisticsSettings(context=context), Pool.of(before, tokenizer(), key)
    return list(plan(documents, lambda tokens: tokens, limits, hidden, key, pool))


def counted(rows: Sequence[Tokens]) -> list[int]:
    return [id_ for row in rows for id_, counts in zip(row.ids, row.mask, strict=True) if counts]


@st.composite
def documents_of(draw: st.DrawFn) -> Tokens:
    ids = draw(st.lists(st.integers(0, 255), min_size=1, max_size=90))
    return Tokens(ids, draw(st.none() | st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))


@settings(deadline=None)
@given(
    documents=st.lists(documents_of(), min_size=1, max_size=8),
    tokens=st.integers(1, 40),
    piece=st.integers(1, 40),
)
def test_each_token_counts_once_and_public_text_never(documents: list[Tokens], tokens: int, piece: int) -> None:
    before = TextBefore(tokens=tokens, piece=piece)
    shards, plain = planned(documents, before, hidden=1), planned(documents, None, piece, hidden=1)
    assert [(item.name, item.tokens, item.documents) for item in shards] == [
        (item.name, item.tokens, item.documents) for item in plain
    ]
    for shard, own in zip(shards, plain, strict=True):
        assert counted(shard.rows) == counted(own.rows)
        for row, after in zip(shard.rows, own.rows, strict=True):
            length = len(row) - len(after)
            assert row[length:].signed == after.signed
            assert length == min(tokens, len(after))
            assert row.count == after.count
            assert any(list(row.ids[:length]) == text[:length] for text in TEXTS)


def test_key_chooses_the_texts_whatever_stands_around_a_piece() -> None:
    [shard], [other] = planned(DOCUMENTS, BEFORE), planned(DOCUMENTS[::-1], BEFORE)
    rows = {tuple(row.ids) for row in shard.rows}
    assert rows == {tuple(row.ids) for row in other.rows}
    assert planned(DOCUMENTS, BEFORE) == [shard]
    [unlike] = planned(DOCUMENTS, BEFORE, key=b"another key")
    assert {tuple(row.ids) for row in unlike.rows}.isdisjoint(rows)


def test_every_text_of_the_pool_is_used() -> None:
    pool = Pool.of(BEFORE, tokenizer(), KEY)
    assert pool is not None
    pieces = [Tokens([number % 256, number // 256] * 8) for number in range(1000)]
    assert {tuple(pool.behind(piece).ids[:16]) for piece in pieces} == {tuple(text[:16]) for text in TEXTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("expert"), 1, num_hidden_layers=LAYERS)


def router_pass(folder: Path, before: TextBefore | None = BEFORE) -> RouterPass:
    bits = feature_exponents(DenseFiles(folder))
    return RouterPass(*on_body(folder, folder / "model.safetensors"), bits, before=before)


def summed(work: RouterPass, shards: Sequence[Shard], wanted: Sequence[Shard] | None = None) -> ShardSums:
    streamed, arrays = Streamed(work, SETTINGS.batch_tokens), dict[str, Int64]()
    names = {shard.name for shard in wanted or shards}
    for _ in range(streamed.begin(shards), streamed.layers):
        result = streamed.sums(names)
        assert result is not None
        arrays |= result.arrays
    counts = wanted or shards
    return ShardSums(arrays, sum(item.tokens for item in counts), sum(item.documents for item in counts))


def require_same(one: ShardSums, other: ShardSums) -> None:
    assert (one.tokens, one.documents, one.arrays.keys()) == (other.tokens, other.documents, other.arrays.keys())
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)


def features_of(folder: Path, shard: Shard) -> list[Tensor]:
    """Per layer, the features of the tokens that count, divided by the gains: [n, H] float64."""
    model, gains = expert_model(DenseFiles(folder)), feature_gains(DenseFiles(folder)).double()
    seen: list[tuple[int, Tensor]] = []
    for row in shard.rows:
        [batch] = batches([row], 64)
        visit_features(model, batch, lambda *found: seen.append(found))
    return [torch.cat([x.double() / gains[at] for at, x in seen if at == layer]) for layer in range(LAYERS)]


def test_sums_are_of_the_features_behind_public_text(folder: Path) -> None:
    [shard], [plain] = planned(DOCUMENTS, BEFORE), planned(DOCUMENTS, None, 16)
    work, unlike = router_pass(folder), features_of(folder, plain)
    sums = summed(work, [shard])
    assert sums.tokens == sum(len(document) for document in DOCUMENTS)
    for layer, u in enumerate(features_of(folder, shard)):
        assert (u - unlike[layer]).norm() > 0.01 * u.norm()
        found = square_of(sums.arrays[f"layers.{layer}.gram"], work.exponents[layer])
        torch.testing.assert_close(found, u.T @ u, atol=2e-3, rtol=1e-4)
        cross = torch.from_numpy(to_floats(sums.arrays[f"layers.{layer}.cross"], work.exponents[layer]))
        torch.testing.assert_close(cross, u.sum(dim=0), atol=2e-3, rtol=1e-4)


def test_a_contribution_is_the_sum_of_its_shards_in_any_order_bit_by_bit(folder: Path) -> None:
    documents = [Tokens([(7 * row + 3 * place) % 250 for place in range(60)]) for row in range(9)]
    shards, work = planned(documents, BEFORE, hidden=2), router_pass(folder)
    assert len(shards) == 3
    alone = [summed(work, [shard]) for shard in shards]
    expected = reduce(add, alone)
    for order in permutations(range(3)):
        require_same(reduce(add, [alone[place] for place in order]), expected)
        require_same(summed(work, [shards[place] for place in order]), expected)
    require_same(summed(work, shards, shards[1:2]), alone[1])


def test_saved_states_continue_with_the_same_integers(folder: Path, tmp_path: Path) -> None:
    [shard] = planned(DOCUMENTS, BEFORE)
    work, path = router_pass(folder), tmp_path / "window.states"
    expected, streamed = summed(work, [shard]), Streamed(router_pass(folder), SETTINGS.batch_tokens)
    streamed.begin([shard])
    assert streamed.sums([shard.name]) is not None
    streamed.save(path, "work")
    begun, streamed = saved(path, "work"), Streamed(work, SETTINGS.batch_tokens)
    assert begun is not None
    assert streamed.begin([shard], begun.path) == 1
    result = streamed.sums([shard.name])
    assert result is not None
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array, expected.arrays[name])


def test_a_router_contribution_behind_public_text_is_streamed_in_any_memory(folder: Path, tmp_path: Path) -> None:
    """Windows of one shard and of all give the same file, which passes the coordinator's checks."""
    own = DenseExpert("law", folder)
    documents = [Tokens([(7 * row + 3 * place) % 250 for place in range(60)]) for row in range(90)]
    least = need_of(router_pass(folder), SETTINGS).least

    class Facts:
        checkpoint, config, family = own.checkpoint, own.config, own.family
        digest, hidden_size, layers, exponents = "b" * 64, HIDDEN, LAYERS, feature_exponents(own)

    paths = [
        router_contribution(own, Facts(), documents, tmp_path / name, SETTINGS, Computing(host_memory=memory, key=KEY))
        for name, memory in (("little", least), ("much", 100 * least))
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with StatisticsFile(paths[0]) as file:
        assert file.manifest.settings == SETTINGS
        assert file.manifest.tokens == 90 * 60
        assert len(file.manifest.shards) > 1
        assert validate(file, feature_exponents(own), feature_bounds(own)) == []


def test_heads_and_bodies_have_no_text_before(folder: Path, tmp_path: Path) -> None:
    own = DenseExpert("law", folder)
    for contribution, manifest in ((body_contribution, BodyManifest), (head_contribution, HeadManifest)):
        with StatisticsFile(contribution(own, DOCUMENTS, tmp_path / manifest.__name__, SETTINGS)) as file:
            assert file.manifest.settings == SETTINGS.model_copy(update={"before": None})
            fields = file.manifest.model_dump() | {"settings": SETTINGS.model_dump()}
        with pytest.raises(ValidationError, match="only router contributions"):
            manifest.model_validate(fields)


def test_another_pool_is_refused() -> None:
    with pytest.raises(ContributionError, match="expected the pool of this moerge") as caught:
        Pool.of(TextBefore(pool="0" * 64), tokenizer(), KEY)
    assert caught.value.where == "settings.before.pool"


def test_pieces_and_text_before_must_fit_into_the_context() -> None:
    with pytest.raises(ValidationError, match="expected at most `context`, 255"):
        StatisticsSettings(context=255, before=TextBefore())
    assert StatisticsSettings(context=256, before=TextBefore()).batch == 2048
