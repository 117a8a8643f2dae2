"""Other devices, precisions and layouts of a pass give the sums of the plain one, within their rounding."""

import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from moerge.documents.shards import Shard
from moerge.errors import ContributionError
from moerge.models.batches import batches
from moerge.models.bounds import feature_bounds, feature_exponents, head_exponents, input_exponents
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.families.registry import FAMILIES
from moerge.models.tokens import Tokens
from moerge.statistics import transfers
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.features import ready, run
from moerge.statistics.integers import to_floats
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.passes import BodyPass, HeadPass, Pass, RouterPass
from moerge.statistics.streamed import Streamed, saved
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import Int64, StatisticsFile
from support.models import DISTINCT, GEMMA4_SMALL, expert, on_body
from support.passes import sums_of, visit_features, whole_sums
from support.statistics import LAYERS, manifest_of, written

ROWS = [Tokens([(11 * row + 3 * column) % 256 for column in range(4 + 9 * row)]) for row in range(6)]
KINDS: list[tuple[str, dict[str, object]]] = [
    *[(family, {}) for family in sorted(FAMILIES)],
    ("mistral", {"sliding_window": 8}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def features(folder: Path, *, packed: bool) -> list[Tensor]:
    model = expert_model(DenseFiles(folder))
    if packed:
        model.set_attn_implementation(PACKED)
    seen: list[list[Tensor]] = [[] for _ in range(model.config.num_hidden_layers)]
    for batch in batches(ROWS, 150):
        visit_features(model, batch, lambda layer, x: seen[layer].append(x))
    return [torch.cat(item) for item in seen]


@pytest.mark.parametrize(("family", "settings"), [kind for kind in KINDS if not FAMILIES[kind[0]].mixers])
def test_packed_documents_don_t_see_each_other(tmp_path: Path, family: str, settings: dict[str, object]) -> None:
    folder = expert(tmp_path / "expert", 1, family, **settings)
    for plain, packed in zip(features(folder, packed=False), features(folder, packed=True), strict=True):
        torch.testing.assert_close(packed, plain, atol=2e-5, rtol=0)


def require_alike(result: ShardSums, expected: ShardSums, exponents: list[int], tolerance: float) -> None:
    """Relative to the size of each sum as a whole."""
    if (counts := expected.arrays.get("token_counts")) is not None:
        np.testing.assert_array_equal(result.arrays["token_counts"], counts)
    sums = [item for item in expected.arrays.items() if item[0] != "token_counts"]
    for place, (name, array) in enumerate(sums):
        exponent = exponents[place // 2 if len(sums) == 2 * len(exponents) else place]
        left, right = to_floats(result.arrays[name], exponent), to_floats(array, exponent)
        assert np.linalg.norm(left - right) < tolerance * np.linalg.norm(right), name


def every_pass(folder: Path, precision: str = "float32", device: str = "cpu") -> list[Pass]:
    own = DenseFiles(folder)
    return [
        RouterPass(*on_body(folder, folder / "model.safetensors"), feature_exponents(own), precision, device),
        BodyPass(own, input_exponents(own), precision, device),
        HeadPass(own, head_exponents(own), precision, device),
    ]


@pytest.mark.parametrize("family", DISTINCT)
@pytest.mark.parametrize(
    ("precision", "device", "tolerance"),
    [
        ("bfloat16", "cpu", 0.02),
        pytest.param("float32", "cuda", 1e-4, marks=needs_gpu),
        pytest.param("bfloat16", "cuda", 0.02, marks=needs_gpu),
    ],
)
def test_sums_agree_with_float32_on_the_processor(
    tmp_path: Path, family: str, precision: str, device: str, tolerance: float
) -> None:
    folder = expert(tmp_path / "expert", 1, family, num_hidden_layers=LAYERS, num_attention_heads=2, head_dim=16)
    for work, plain in zip(every_pass(folder, precision, device), every_pass(folder), strict=True):
        require_alike(sums_of(work, ROWS, 150), sums_of(plain, ROWS, 150), list(work.exponents), tolerance)


@pytest.mark.parametrize(("family", "settings"), KINDS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_streamed_layers_give_the_integers_of_the_whole_model(
    tmp_path: Path, family: str, settings: dict[str, object], device: str
) -> None:
    folder = expert(tmp_path / "expert", 1, family, **settings)
    for work in every_pass(folder, device=device):
        require_same(sums_of(work, ROWS, 150), whole_sums(work, ROWS, 150))


@pytest.mark.parametrize("family", DISTINCT)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_streamed_layers_in_bfloat16_give_the_integers_of_the_whole_model(
    tmp_path: Path, family: str, device: str
) -> None:
    for work in every_pass(expert(tmp_path / "expert", 1, family), "bfloat16", device):
        require_same(sums_of(work, ROWS, 150), whole_sums(work, ROWS, 150))


def test_layer_inputs_shared_keys_and_two_widths_give_the_sums_of_the_whole_model(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1, "gemma4_text", **GEMMA4_SMALL)
    for work in every_pass(folder):  # a layer's rows of the projection are computed alone, so roundings differ
        require_alike(sums_of(work, ROWS, 150), whole_sums(work, ROWS, 150), list(work.exponents), 1e-6)


def require_same(result: ShardSums, expected: ShardSums) -> None:
    assert (list(result.arrays), result.tokens, result.documents) == (
        list(expected.arrays),
        expected.tokens,
        expected.documents,
    )
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(result.arrays[name], array, err_msg=name)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["router", "body", "head"])
@pytest.mark.parametrize("threads", [1, 3])
def test_windows_threads_and_saved_states_keep_the_integers(tmp_path: Path, place: int, threads: int) -> None:
    work = every_pass(expert(tmp_path / "expert", 1, "qwen2"))[place]
    shards = [Shard(str(number), ROWS[number::2], 3) for number in (0, 1)]
    alone = [sums_of(work, shard.rows, 150) for shard in shards]
    streamed, arrays, expected = Streamed(work, 150, threads), dict[str, Int64](), alone[0] + alone[1]
    for layer in range(streamed.begin(shards), streamed.layers):
        result = streamed.sums({"0", "1"})
        assert result is not None
        assert (result.tokens, result.documents) == (expected.tokens, expected.documents)
        arrays |= result.arrays
        if layer == 0:
            streamed.save(tmp_path / "window.states", "work")
            streamed = Streamed(work, 150, threads)
            assert saved(tmp_path / "window.states", "other work") is None
            one = saved(tmp_path / "window.states", "work")
            assert one is not None
            assert (one.shards, one.layer) == (frozenset({"0", "1"}), 1)
            assert streamed.begin(shards, one.path) == 1
    require_same(replace(expected, arrays=arrays), expected)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["router", "body", "head"])
@pytest.mark.parametrize("room", [None, 0])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_hidden_states_stay_in_their_place(tmp_path: Path, place: int, room: int | None, device: str) -> None:
    streamed = Streamed(every_pass(expert(tmp_path / "expert", 1), device=device)[place], 150, room=room)
    layers = range(streamed.begin([Shard("one", ROWS, len(ROWS))]), streamed.layers)
    states = streamed._states
    places = [item.data_ptr() for item in states]
    for _ in layers:
        streamed.sums({"one"})
    assert [item.data_ptr() for item in states] == places


def slow(target: Tensor, source: Tensor, after: Future[None], copied: Callable[..., None]) -> None:
    time.sleep(0.002)
    copied(target, source, after)


@pytest.mark.parametrize("family", DISTINCT)
@pytest.mark.parametrize("room", [0, 5000], ids=["none", "some"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_hidden_states_in_host_memory_and_shards_ahead_keep_the_integers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, room: int, device: str
) -> None:
    """On a CPU copies run in threads, later than anything that doesn't wait for them."""
    monkeypatch.setattr(transfers, "_copied", partial(slow, copied=transfers._copied))
    precision = "bfloat16" if device == "cuda" else "float32"
    shards = [Shard(str(number), ROWS[number::3], 2) for number in range(3)]
    for work in every_pass(expert(tmp_path / "expert", 1, family), precision, device):
        result, expected = (sums_of_window(work, shards, room=some) for some in (room, None))
        require_same(result, expected)


def sums_of_window(work: Pass, shards: Sequence[Shard], room: int | None) -> ShardSums:
    """Without room, a shard of each next layer is computed ahead, and the second shard isn't wanted in the first."""
    streamed, arrays, every = Streamed(work, 40, room=room), dict[str, Int64](), {shard.name for shard in shards}
    wanted = [every - {"1"}, *[every] * streamed.layers]
    for layer in range(streamed.begin(shards), streamed.layers):
        result = streamed.sums(wanted[layer], None if room is None else wanted[layer + 1])
        assert result is not None
        arrays |= result.arrays
    return ShardSums(arrays, 0, 0)


def test_states_behind_a_shard_ahead_are_not_saved(tmp_path: Path) -> None:
    streamed = Streamed(every_pass(expert(tmp_path / "expert", 1))[0], 150)
    streamed.begin([Shard("one", ROWS, len(ROWS))])
    streamed.sums({"one"}, {"one"})
    with pytest.raises(ValueError, match="passed the next layer already"):
        streamed.save(tmp_path / "window.states", "work")


def test_an_error_ends_the_pass_and_gives_the_threads_back(tmp_path: Path) -> None:
    folder, before = expert(tmp_path / "expert", 1), torch.get_num_threads()
    own, many = DenseFiles(folder), 80  # fractional bits
    streamed = Streamed(RouterPass(*on_body(folder, folder / "model.safetensors"), [16, many, 16]), 150)
    streamed.begin(shards := [Shard("one", ROWS, len(ROWS))])
    assert streamed.sums({"one"}, {"one"}) is not None
    with pytest.raises(ContributionError, match="not a finite number"):
        streamed.sums({"one"}, {"one"})
    assert torch.get_num_threads() == before
    assert streamed.begin(shards) == 0
    assert own.config.num_hidden_layers == streamed.layers


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """While open, a longer file meets what a full disk gives."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_states_without_disk_space_are_not_saved(
    tmp_path: Path,
) -> None:
    streamed, path = Streamed(every_pass(expert(tmp_path / "expert", 1))[0], 150), tmp_path / "states" / "[a].states"
    streamed.begin([Shard("one", ROWS, len(ROWS))])
    path.parent.mkdir()
    path.with_name(".[a].states.01234567.tmp").write_bytes(b"of a killed run")
    assert streamed.save(path, "work")
    before = path.read_bytes()
    with files_of_at_most(len(before) // 2):
        assert not streamed.save(path, "work")
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_dynamic_rope_does_not_carry_over_from_longer_shards(tmp_path: Path) -> None:
    """Transformers keeps the frequencies of the longest text so far, if it is longer than the model's context."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    work, *_ = every_pass(expert(tmp_path / "expert", 1, rope_parameters=rope, max_position_embeddings=16))
    longer, own = (Shard(name, [Tokens(range(tokens))], 1) for name, tokens in (("longer", 60), ("own", 30)))
    streamed, expected = Streamed(work, 150), sums_of(work, own.rows, 150)
    for layer in range(streamed.begin([longer, own]), streamed.layers):
        result = streamed.sums({"own"})
        assert result is not None
        part = {name: array for name, array in expected.arrays.items() if name.startswith(f"layers.{layer}.")}
        require_same(result, replace(expected, arrays=part))


@pytest.mark.parametrize("threads", [1, 2])
def test_measuring_the_pace_changes_no_integer(tmp_path: Path, threads: int) -> None:
    for work in every_pass(expert(tmp_path / "expert", 1)):
        streamed, shard = Streamed(work, 150, threads), Shard("one", ROWS, len(ROWS))
        assert streamed.pace(shard) > 0
        assert streamed.begin([shard]) == 0
        result, expected = streamed.sums({"one"}), sums_of(work, ROWS, 150)
        assert result is not None
        require_same(result, replace(expected, arrays={name: expected.arrays[name] for name in result.arrays}))


def test_unwanted_layers_are_skipped_and_the_last_not_computed(tmp_path: Path) -> None:
    router, *_ = every_pass(expert(tmp_path / "expert", 1))
    expected = sums_of(router, ROWS, 150)
    streamed = Streamed(router, 150)
    assert streamed.begin([Shard("one", ROWS, len(ROWS))]) == 0
    assert streamed.sums(frozenset()) is None
    result = streamed.sums({"one"})
    assert result is not None
    require_same(result, replace(expected, arrays={name: expected.arrays[name] for name in result.arrays}))
    assert streamed.sums(frozenset()) is None


def test_nothing_from_the_last_needed_module_on_is_computed(tmp_path: Path) -> None:
    model, computed = expert_model(DenseFiles(expert(tmp_path / "expert", 1))), list[str]()
    for layer, module in enumerate(model.model.layers):
        for part in ("self_attn.o_proj", "mlp"):
            name = f"{layer}.{part}"
            module.get_submodule(part).register_forward_hook(lambda *_, name=name: computed.append(name))
    [batch] = batches(ROWS[:1], 150)
    read = ready(model, batch, model.device)
    run(model, read, {"input_ids": read.ids}, {}, lambda place, x: None, model.model.layers[1].mlp)
    assert computed == ["0.self_attn.o_proj", "0.mlp", "1.self_attn.o_proj"]


def test_bfloat16_sums_pass_the_coordinator_s_checks(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1, num_hidden_layers=LAYERS)
    work, *_ = every_pass(folder, "bfloat16")
    sums = sums_of(work, ROWS, 150)
    with StatisticsFile(written(tmp_path / "file", manifest_of(sums, 1), sums)) as file:
        assert validate(file, list(work.exponents), feature_bounds(work.expert)) == []
