"""Router statistics behind public text, and the context gram: the same tokens count, and integers add up as ever."""

from collections.abc import Sequence
from functools import reduce
from itertools import permutations
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
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
from moerge.routers.system import ridge_system
from moerge.statistics.accumulate import ShardSums, Sum
from moerge.statistics.contribution import Computing, body_contribution, head_contribution, router_contribution
from moerge.statistics.integers import pack, square_of, to_floats
from moerge.statistics.passes import RouterPass, need_of
from moerge.statistics.streamed import Streamed, saved
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import (
    MAX_CONTEXT_WEIGHT,
    MAX_TOKENS,
    BodyManifest,
    HeadManifest,
    Int64,
    RouterManifest,
    StatisticsFile,
    StatisticsSettings,
    TextBefore,
    exponent,
)
from support.models import expert, on_body, tokenizer
from support.passes import visit_features
from support.statistics import LAYERS, manifest_of, written

KEY, WEIGHT, HIDDEN = b"the owner's key", 16.0, 32
BEFORE = TextBefore(tokens=16, piece=16, context_weight=WEIGHT)
SETTINGS = StatisticsSettings(context=64, batch_tokens=150, before=BEFORE)
DOCUMENTS = [Tokens([(11 * row + 3 * place) % 250 for place in range(4 + 9 * row)]) for row in range(8)]
WEIGHTS = st.floats(0.01, MAX_CONTEXT_WEIGHT)
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
    weight=st.sampled_from([0.0, WEIGHT]),
)
def test_each_token_counts_once_and_public_text_never(
    documents: list[Tokens], tokens: int, piece: int, weight: float
) -> None:
    before = TextBefore(tokens=tokens, piece=piece, context_weight=weight)
    shards, plain = planned(documents, before, hidden=1), planned(documents, None, piece, hidden=1)
    assert [(item.name, item.tokens, item.documents) for item in shards] == [
        (item.name, item.tokens, item.documents) for item in plain
    ]
    for shard, own in zip(shards, plain, strict=True):
        views = [shard.rows, shard.again] if weight else [shard.rows]
        assert weight or not shard.again
        for rows in views:
            assert counted(rows) == counted(own.rows)
            for row, after in zip(rows, own.rows, strict=True):
                length = len(row) - len(after)
                assert row[length:].signed == after.signed
                assert length == min(tokens, len(after))
                assert row.count == after.count
                assert any(list(row.ids[:length]) == text[:length] for text in TEXTS)


def test_key_chooses_the_texts_whatever_stands_around_a_piece() -> None:
    [shard], [other] = planned(DOCUMENTS, BEFORE), planned(DOCUMENTS[::-1], BEFORE)
    pairs = {tuple(one.ids): tuple(two.ids) for one, two in zip(shard.rows, shard.again, strict=True)}
    assert pairs == {tuple(one.ids): tuple(two.ids) for one, two in zip(other.rows, other.again, strict=True)}
    assert all(one != two for one, two in pairs.items())
    assert planned(DOCUMENTS, BEFORE) == [shard]
    [unlike] = planned(DOCUMENTS, BEFORE, key=b"another key")
    assert {tuple(row.ids) for row in unlike.rows}.isdisjoint(pairs)


def test_every_text_of_the_pool_is_used() -> None:
    pool = Pool.of(BEFORE, tokenizer(), KEY)
    assert pool is not None
    pieces = [Tokens([number % 256, number // 256] * 8) for number in range(1000)]
    for view in (0, 1):
        assert {tuple(pool.behind(piece)[view].ids[:16]) for piece in pieces} == {tuple(text[:16]) for text in TEXTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("expert"), 1, num_hidden_layers=LAYERS)


def router_pass(folder: Path, before: TextBefore | None = BEFORE) -> RouterPass:
    bits = StatisticsSettings(before=before).exponents(feature_exponents(DenseFiles(folder)))
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


def views_of(folder: Path, shard: Shard) -> list[list[Tensor]]:
    """Per view and layer, the features of the tokens that count, divided by the gains: [n, H] float64."""
    model, gains = expert_model(DenseFiles(folder)), feature_gains(DenseFiles(folder)).double()
    views = []
    for rows in (shard.rows, shard.again):
        seen: list[tuple[int, Tensor]] = []
        for row in rows:
            [batch] = batches([row], 64)
            visit_features(model, batch, lambda *found: seen.append(found))  # noqa: B023  # called at once
        views.append([torch.cat([x.double() / gains[at] for at, x in seen if at == layer]) for layer in range(LAYERS)])
    return views


def test_sums_are_the_mean_gram_of_both_views_and_the_weighted_gram_of_their_difference(folder: Path) -> None:
    [shard] = planned(DOCUMENTS, BEFORE)
    work, [first, second] = router_pass(folder), views_of(folder, shard)
    sums = summed(work, [shard])
    assert sums.tokens == sum(len(document) for document in DOCUMENTS)
    for layer, (u, v) in enumerate(zip(first, second, strict=True)):
        difference = u - v
        assert difference.norm() > 0.01 * u.norm()
        gram = (u.T @ u + v.T @ v + WEIGHT * difference.T @ difference) / 2
        found = square_of(sums.arrays[f"layers.{layer}.gram"], work.exponents[layer])
        torch.testing.assert_close(found, gram, atol=2e-3, rtol=1e-4)
        cross = torch.from_numpy(to_floats(sums.arrays[f"layers.{layer}.cross"], work.exponents[layer]))
        torch.testing.assert_close(cross, (u + v).sum(dim=0) / 2, atol=2e-3, rtol=1e-4)


def test_views_alike_give_no_context_gram(folder: Path) -> None:
    [shard] = planned(DOCUMENTS, BEFORE)
    alike, once = Shard("one", shard.rows, shard.documents, shard.rows), Shard("one", shard.rows, shard.documents)
    work = router_pass(folder)
    for name, array in summed(work, [alike]).arrays.items():
        np.testing.assert_allclose(array, summed(work, [once]).arrays[name], atol=4)


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


def test_saved_states_of_both_views_continue_with_the_same_integers(folder: Path, tmp_path: Path) -> None:
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


# --- bounds


@given(hidden=st.integers(1, 2**15), weight=WEIGHTS)
def test_exponents_leave_room_for_the_most_tokens(hidden: int, weight: float) -> None:
    limits = StatisticsSettings(before=TextBefore(context_weight=weight))
    [bits] = limits.exponents([exponent(hidden)])
    assert MAX_TOKENS * hidden * limits.growth * 2.0**bits <= 2**62
    assert limits.growth <= 2 ** (exponent(hidden) - bits) < 2 * limits.growth


def pair_sums(first: Tensor, second: Tensor, weight: float, bits: int) -> ShardSums:
    """The sums of features behind two texts, [n, H] float32 each, the same in every layer."""
    one = Sum()
    one.add_twice(torch.cat([first, second]), weight)
    cross, gram = one.cross(bits, None), one.gram(bits, None)
    parts = {
        f"layers.{layer}.{name}": array for layer in range(LAYERS) for name, array in (("gram", gram), ("cross", cross))
    }
    return ShardSums(parts, len(first), 1)


def pair_manifest(sums: ShardSums, weight: float, shards: int = 1) -> RouterManifest:
    limits = StatisticsSettings(before=TextBefore(context_weight=weight))
    plain = manifest_of(sums, shards)
    return plain.model_copy(update={"settings": limits, "exponents": limits.exponents(plain.exponents)})


def check(path: Path, hidden: int) -> list[str]:
    with StatisticsFile(path) as file:
        return validate(file, [exponent(hidden)] * LAYERS, [hidden] * LAYERS)


def normed(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(dim=1, keepdim=True) + 1e-9).sqrt()


@settings(max_examples=80, deadline=None)
@given(
    hidden=st.integers(1, 40),
    tokens=st.integers(1, 300),
    rank=st.integers(1, 40),
    apart=st.sampled_from([0.0, 0.1, 1.0, 100.0]),
    weight=WEIGHTS,
    shards=st.integers(1, 3),
    seed=st.integers(0, 2**30),
)
def test_every_honest_contribution_with_a_context_gram_passes(
    tmp_path_factory: pytest.TempPathFactory,
    hidden: int,
    tokens: int,
    rank: int,
    apart: float,
    weight: float,
    shards: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(min(rank, hidden), hidden, generator=generator)
    [bits] = StatisticsSettings(before=TextBefore(context_weight=weight)).exponents([exponent(hidden)])
    parts = []
    for _ in range(shards):
        x, noise = (torch.randn(tokens, len(directions), generator=generator) @ directions for _ in range(2))
        parts.append(pair_sums(normed(x), normed(x + apart * noise), weight, bits))
    sums = reduce(add, parts)
    assume(sums.arrays["layers.0.cross"].any())
    path = written(tmp_path_factory.mktemp("honest") / "file", pair_manifest(sums, weight, shards), sums)
    assert [line for line in check(path, hidden) if "trace" not in line] == []


def opposite(tokens: int, hidden: int) -> tuple[Tensor, Tensor]:
    """Features that public text turns around, as far as norms allow; some stay, so that the cross isn't zero."""
    u = normed(torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(0)))
    return u, torch.cat([u[:2], -u[2:]])


def test_differences_as_large_as_norms_allow_pass_and_larger_ones_do_not(tmp_path: Path) -> None:
    [bits] = StatisticsSettings(before=BEFORE).exponents([exponent(8)])
    sums = pair_sums(*opposite(400, 8), WEIGHT, bits)
    path = written(tmp_path / "file", pair_manifest(sums, WEIGHT), sums)
    assert not [line for line in check(path, 8) if "trace" not in line]
    for array in (name for name in sums.arrays if name.endswith("gram")):
        sums.arrays[array] += sums.arrays[array] // 50
    with pytest.raises(ContributionError, match="trace") as caught:
        check(written(tmp_path / "more", pair_manifest(sums, WEIGHT), sums), 8)
    assert caught.value.where == "layers.0.gram"


@pytest.mark.parametrize("claimed", [0.0, WEIGHT / 2])
def test_a_smaller_weight_than_the_gram_s_is_refused(tmp_path: Path, claimed: float) -> None:
    [bits] = StatisticsSettings(before=TextBefore(context_weight=claimed)).exponents([exponent(8)])
    sums = pair_sums(*opposite(400, 8), WEIGHT, bits)
    with pytest.raises(ContributionError, match="trace"):
        check(written(tmp_path / "file", pair_manifest(sums, claimed), sums), 8)


def test_exponents_of_another_weight_are_refused(tmp_path: Path) -> None:
    sums = pair_sums(*opposite(400, 8), WEIGHT, exponent(8))
    manifest = pair_manifest(sums, WEIGHT).model_copy(update={"exponents": [exponent(8)] * LAYERS})
    with pytest.raises(ContributionError) as caught:
        check(written(tmp_path / "file", manifest, sums), 8)
    assert caught.value.where == "manifest.exponents"


def test_two_texts_give_a_token_two_directions_and_not_more(tmp_path: Path) -> None:
    """Four tokens behind two texts fill eight dimensions; three can't."""
    [bits] = StatisticsSettings(before=TextBefore(context_weight=1)).exponents([exponent(8)])
    axes = 8**0.5 * torch.eye(8)
    sums = pair_sums(axes[:4], axes[4:], 1, bits)
    assert check(written(tmp_path / "file", pair_manifest(sums, 1), sums), 8) == []
    fewer = pair_manifest(sums, 1).model_copy(update={"tokens": 3})
    for name, array in sums.arrays.items():
        sums.arrays[name] = array * 3 // 4
    with pytest.raises(ContributionError, match="more than its 3 tokens"):
        check(written(tmp_path / "few", fewer, sums), 8)


def test_contributions_of_other_weights_add_up_in_any_order(tmp_path: Path) -> None:
    """Their integers have other exponents."""
    paths, grams = [], []
    for place, weight in enumerate((0.5, WEIGHT, 0.5, 3.0)):
        generator = torch.Generator().manual_seed(place)
        first, second = (normed(torch.randn(50, 8, generator=generator)) for _ in range(2))
        [bits] = StatisticsSettings(before=TextBefore(context_weight=weight)).exponents([exponent(8)])
        sums = pair_sums(first, second, weight, bits)
        manifest = pair_manifest(sums, weight).model_copy(update={"domain": "law" if place < 2 else "art"})
        paths.append(written(tmp_path / str(place), manifest, sums))
        u, v = first.double(), second.double()
        grams.append((u.T @ u + v.T @ v + weight * (u - v).T @ (u - v)) / 2)
    seen = []
    for order in permutations(paths):
        files = [StatisticsFile(path) for path in order]
        seen.append(ridge_system(files, ["law", "art"], 0, torch.ones(8), {"law": 1.0, "art": 0.7}))
        for file in files:
            file.__exit__()
    for gram, cross in seen[1:]:
        assert torch.equal(gram, seen[0][0])
        assert torch.equal(cross, seen[0][1])
    expected = grams[0] + grams[1] + 0.7 * (grams[2] + grams[3])
    torch.testing.assert_close(seen[0][0], expected, atol=0.1, rtol=1e-3)
    assert len(pack(seen[0][0].numpy())) == 36
