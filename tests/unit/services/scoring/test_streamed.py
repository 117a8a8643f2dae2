"""A streamed model's scores are those of the whole model, byte for byte."""

import gc
from pathlib import Path

import pytest
import torch

from moerge.memory.shapes import layer_parameters
from moerge.models.dense import domain_weights, expert_weights
from moerge.models.dense_files import DenseFiles
from moerge.models.published import published_weights
from moerge.models.tokens import Tokens
from moerge.models.weights import Weights
from moerge.scoring.perplexity import BATCH_TOKENS, Window, load, score, total, windows
from moerge.scoring.routers import RouterHook, RoutingCounter, avoiding, forced, forcing
from moerge.scoring.streamed import StreamedModel
from support.models import DISTINCT, GEMMA4_SMALL, adapter, allowed, expert, on_body
from support.progress import Silent
from support.versions import published

TEXTS = [Tokens([(7 * row + 3 * column) % 256 for column in range(5 + 9 * row)]) for row in range(9)]
TEXTS[3] = Tokens(TEXTS[3].ids, [place % 3 > 0 for place in range(len(TEXTS[3]))])
BLOCKS = [windows(TEXTS[:5], 32, 16), windows(TEXTS[5:], 32, 16)]
PLENTY = 2**30
KINDS: list[tuple[str, dict[str, object]]] = [
    *[(family, {}) for family in DISTINCT],
    ("mistral", {"sliding_window": 8}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("llama", {"tie_word_embeddings": True}),
]


def streamed(
    weights: Weights,
    states: int = PLENTY,
    hook: RouterHook | None = None,
    dtype: torch.dtype = torch.float32,
    room: int | None = None,
) -> StreamedModel:
    return StreamedModel(weights, dtype, "cpu", states, room, hook)


@pytest.mark.parametrize(("family", "settings", "top_k"), [(*kind, allowed(kind[0])[-1]) for kind in KINDS])
def test_scores_and_routing_are_those_of_the_whole_model(
    tmp_path: Path, family: str, settings: dict[str, object], top_k: int
) -> None:
    experts = [expert(tmp_path / str(seed), seed, family, **settings) for seed in (1, 2)]
    version = published(experts, tmp_path, top_k)
    whole = load(version)
    counter = RoutingCounter(whole)
    with counter.counting():
        expected = [score(whole, block, Silent(), [counter.count]) for block in BLOCKS]
    with forced(whole, 1):
        oracle = [score(whole, block, Silent()) for block in BLOCKS]
    model = streamed(published_weights(version))
    assert list(model.scores(BLOCKS, Silent())) == expected
    assert torch.equal(model.routed, counter.counts)
    one = streamed(published_weights(version), hook=forcing(1, 2))
    assert list(one.scores(BLOCKS, Silent())) == oracle
    assert one.routed.tolist() == [[0, item.tokens] for item in [total(oracle)] * 3]
    dense = load(experts[0])
    assert streamed(expert_weights(DenseFiles(experts[0]))).score(BLOCKS[0], Silent()) == score(
        dense, BLOCKS[0], Silent()
    )


@pytest.mark.parametrize("family", DISTINCT)
def test_a_version_of_two_without_one_scores_as_the_other(tmp_path: Path, family: str) -> None:
    experts = [expert(tmp_path / str(seed), seed, family) for seed in (1, 2)]
    version = published_weights(published(experts, tmp_path, allowed(family)[0]))
    without, one = streamed(version, hook=avoiding(0)), streamed(version, hook=forcing(1, 2))
    found, expected = (model.score(BLOCKS[0], Silent()).nll for model in (without, one))
    assert found == pytest.approx(expected, rel=1e-6), "LFM2's weight of one expert is 1 / (1 + 1e-6)"
    assert not without.routed[:, 0].any()


def test_the_next_best_expert_takes_the_place_of_the_avoided_one() -> None:
    logits, weights = torch.tensor([[4.0, 3, 2, 1], [1, 2, 3, 4]]), torch.tensor([[0.7, 0.3]] * 2)
    _, kept, chosen = avoiding(0)(torch.nn.Identity(), (), (logits, weights, torch.tensor([[0, 1], [3, 2]])))
    assert chosen.tolist() == [[2, 1], [3, 2]]
    assert kept is weights


@pytest.mark.parametrize("family", DISTINCT)
def test_bfloat16_scores_are_those_of_the_whole_model(tmp_path: Path, family: str) -> None:
    version, coarse = (
        published([expert(tmp_path / str(seed), seed, family) for seed in (1, 2)], tmp_path),
        torch.bfloat16,
    )
    result = streamed(published_weights(version), dtype=coarse).score(BLOCKS[0], Silent())
    assert result == score(load(version, coarse), BLOCKS[0], Silent())


def test_layer_inputs_shared_keys_and_two_widths_give_the_scores_of_the_whole_model(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed, "gemma4_text", **GEMMA4_SMALL) for seed in (1, 2)]
    version = published(experts, tmp_path, top_k=2)
    result = streamed(published_weights(version), states=1).score(BLOCKS[0], Silent())
    expected = score(load(version), BLOCKS[0], Silent())
    assert result.tokens == expected.tokens
    assert result.nll == pytest.approx(expected.nll, rel=1e-7)  # a layer's rows of the projection are computed alone


@pytest.mark.parametrize("room", [0, 3000])
def test_scores_are_the_same_with_hidden_states_in_host_memory(tmp_path: Path, room: int) -> None:
    version = published_weights(published([expert(tmp_path / str(seed), seed) for seed in (1, 2)], tmp_path))
    own, other = streamed(version), streamed(version, room=room)
    assert list(other.scores(BLOCKS, Silent())) == list(own.scores(BLOCKS, Silent()))
    assert torch.equal(other.routed, own.routed)


def test_body_and_mlps_and_adapters_are_scored_too(tmp_path: Path) -> None:
    base = expert(tmp_path / "base", 1)
    tuned, weights = (
        adapter(tmp_path / "tuned", base, 2),
        domain_weights(*on_body(base, base / "model.safetensors")),
    )
    for given, whole in ((expert_weights(DenseFiles(tuned)), load(tuned)), (weights, weights.model())):
        assert streamed(given).score(BLOCKS[1], Silent()) == score(whole, BLOCKS[1], Silent())


def test_window_block_size_keeps_scores_and_one_read_per_block(tmp_path: Path) -> None:
    folder, long = expert(tmp_path / "expert", 1), windows([Tokens([5] * 200)] * 50, 200, 100)
    assert sum(len(window.tokens) for window in long) > 2 * BATCH_TOKENS
    read = list[int]()

    class Counted(type(expert_weights(DenseFiles(folder)))):  # type: ignore[misc]
        def copy(self, name: str, out: torch.Tensor) -> None:
            if name.endswith(".input_layernorm.weight"):
                read.append(int(name.split(".")[2]))
            super().copy(name, out)

    given = expert_weights(DenseFiles(folder))
    blocks: list[list[Window]] = [long, *BLOCKS]
    expected = list(streamed(given).scores(blocks, Silent()))
    advanced = list[int]()

    class Told:
        def advance(self, n: int) -> None:
            advanced.append(n)

    model = streamed(Counted(given.config, given.places), 4 * 32 * BATCH_TOKENS)
    assert list(model.scores(blocks, Told())) == expected
    assert read == [0, 1, 2] * 3
    assert sum(advanced) == sum(item.tokens for item in expected)


def alive() -> list[torch.Tensor]:
    return [item for item in gc.get_objects() if type(item) is torch.Tensor]


def logits() -> int:
    return sum(item.shape[-2:] in ((49, 331), (50, 331)) for item in alive())


def layers(parameters: int) -> int:
    """The number of blocks of memory for the tensors of a layer."""
    return sum(item.dim() == 1 and parameters <= len(item) < 2 * parameters for item in alive())


def test_scoring_holds_one_micro_batch_logits_and_two_layers(tmp_path: Path) -> None:
    own = DenseFiles(expert(tmp_path / "expert", 1, vocab_size=331, intermediate_size=37))
    model, parameters = streamed(expert_weights(own)), layer_parameters(own.config)
    scores = model.scores([windows([Tokens([5] * 50)], 50, 25)] * 3, Silent())
    assert next(scores).tokens == 49
    assert (logits(), layers(parameters)) == (0, 2)
    assert len(list(scores)) == 2
    assert layers(parameters) == 0
