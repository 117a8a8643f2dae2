"""Context heads: what a trunk's added head reads, writes and leaves alone."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from moerge.errors import IncompatibleExpertError
from moerge.experts.fitting import write_fitted
from moerge.files import atomic_file
from moerge.models.config import read_config
from moerge.models.dense import domain_model
from moerge.models.expert_folder import DenseExpert
from moerge.models.families import EMBEDDING, FAMILIES, HEAD, family_of
from moerge.models.reader import Checkpoint
from moerge.models.tokens import Tokens
from moerge.models.writer import write_safetensors
from moerge.statistics.contribution import trunk_contribution
from moerge.trunk.context_head import SIZE, WIDTH, by_distance, context_head_of
from moerge.trunk.regmean import ModuleGrams, solved_plan
from moerge.trunk.stray import Stray, require_near
from moerge_proto.statistics_file import StatisticsFile
from support.models import SMALL, expert
from support.versions import contributed_rows, of_routers

CONTEXTUAL = sorted(FAMILIES.keys() - {"olmo2", "qwen3"})
IDS = torch.tensor([[3 * column * column % 250 for column in range(60)]])


def distinct_rows(slot: int) -> list[list[int]]:
    """Texts of domains that share half of their tokens with the next one."""
    return [[id_ % 100 + 50 * slot for id_ in row] for row in contributed_rows(slot)]


def trunks(
    folder: Path,
    family: str,
    vocabularies: Sequence[int] = (300, 300, 300),
    first: int | None = None,
    rows: Callable[[int], list[list[int]]] = contributed_rows,
) -> tuple[list[Path], Path, Path]:
    """Experts, and their trunk without context heads and with them, from the first tokens of each document."""
    sizes = enumerate(vocabularies, 1)
    experts = [expert(folder / str(seed), seed=seed, family=family, vocab_size=size) for seed, size in sizes]
    config = read_config(experts[0])
    with ExitStack() as stack:
        parts = []
        for slot, each in enumerate(experts):
            sent = trunk_contribution(
                DenseExpert("law", each),
                [Tokens(row[:first]) for row in rows(slot)],
                folder / f"sent-{slot}",
            )
            parts.append(
                ModuleGrams(Checkpoint(each), stack.enter_context(StatisticsFile(sent)), family_of(config), config)
            )
        for name, context in (("plain", False), ("context", True)):
            with atomic_file(folder / name) as out:
                write_safetensors(
                    out, solved_plan(parts, family_of(config), config, for_fitted_mlps=context, context_head=context)
                )
    return experts, folder / "plain", folder / "context"


def test_evidence_is_the_logarithm_of_how_much_likelier_a_token_is() -> None:
    """With fewer tokens than dimensions a linear readout is exact, up to a constant that the embedding's allows."""
    generator = torch.Generator().manual_seed(0)
    embedding, gain = torch.randn(6, 16, generator=generator), torch.rand(16, generator=generator) + 0.5
    counts = torch.tensor([[90, 40, 20, 9, 5, 1], [1, 5, 9, 20, 40, 90]]).double()
    query = torch.tensor([2.0, 0.0])
    head = context_head_of(embedding, gain, counts, query, 0.0, 1)
    assert (head.reserved.shape, head.values.shape, head.output.shape) == ((16, 2), (1, 16), (16, 1))
    rows = head.embedded(embedding).double()
    assert float((rows @ head.reserved[:, 1]).abs().max()) < 1e-6
    read = rows / rows.pow(2).mean(dim=1, keepdim=True).sqrt() * gain
    torch.testing.assert_close(read @ head.query_key.T, query.double().expand(6, 2), rtol=0, atol=1e-5)
    found = (read @ head.values.T)[:, 0]
    probabilities = (counts + 1) / (counts + 1).sum(dim=1, keepdim=True)
    ratio = (probabilities[0] / probabilities[1]).log()
    torch.testing.assert_close(found / found[0], ratio / ratio[0], rtol=0, atol=2e-3)
    means = probabilities @ found
    assert float((means - means.mean()).abs().mean()) == pytest.approx(1.0, abs=1e-3)
    size = float((probabilities.mean(dim=0)[:, None] * rows.pow(2)).sum()) ** 0.5
    assert float(head.output.norm()) == pytest.approx(SIZE * size, rel=1e-3)


def test_domains_with_the_same_tokens_write_nothing() -> None:
    embedding = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([[9, 4, 2, 9, 5, 1]]).double().expand(3, 6)
    assert not context_head_of(embedding, torch.ones(16), counts, torch.ones(2), 0.0, 2).values.any()


@torch.inference_mode()
def attended(model: PreTrainedModel) -> tuple[Tensor, Tensor, Tensor]:
    """What the first layer's attention reads and adds, [T, H], and its weights, [heads, T, T]."""
    seen: list[Tensor] = []
    layer = model.model.layers[0]
    handles = [
        layer.input_layernorm.register_forward_hook(lambda _, given, out: seen.append(out[0])),
        layer.self_attn.register_forward_hook(lambda _, given, out: seen.append(out[0][0])),
    ]
    model.set_attn_implementation("eager")
    weights = model(IDS, use_cache=False, output_attentions=True).attentions[0][0]
    for handle in handles:
        handle.remove()
    return seen[0], seen[1], weights


@pytest.mark.parametrize("family", CONTEXTUAL)
def test_the_head_adds_the_mean_evidence_of_the_tokens_before_by_their_distance(tmp_path: Path, family: str) -> None:
    experts, plain, path = trunks(tmp_path, family)
    config, tensors = read_config(experts[0]), load_file(path)
    counted = [torch.bincount(torch.tensor(contributed_rows(slot)).flatten(), minlength=300) for slot in range(3)]
    gain, embedding = (Checkpoint(plain).tensor(name) for name in ("model.layers.0.input_layernorm.weight", EMBEDDING))
    counts, epsilon = torch.stack(counted).double(), config.rms_norm_eps
    head = context_head_of(embedding, gain, counts, by_distance(config), epsilon, 2)
    torch.testing.assert_close(tensors[EMBEDDING], head.embedded(embedding), rtol=0, atol=1e-6)
    save_file({**load_file(plain), EMBEDDING: tensors[EMBEDDING]}, tmp_path / "plain-embedded")
    _, before, _ = attended(domain_model(experts[0], tmp_path / "plain-embedded", torch.float64)[0])
    read, after, weights = attended(domain_model(experts[0], path, torch.float64)[0])
    heads = config.num_attention_heads
    assert len(weights) == heads + heads // config.num_key_value_heads
    distances = torch.arange(IDS.shape[1])[:, None] - torch.arange(IDS.shape[1])
    bell = torch.where((distances >= 0) & (weights[heads] > 0), (-(distances**2) / (2 * WIDTH**2)).exp(), 0.0)
    bell /= bell.sum(dim=1, keepdim=True)
    assert float((weights[heads] - bell).abs().sum(dim=1).max()) < 0.02
    expected = head.without_reserved(before.T).T + weights[heads] @ read @ head.values.T @ head.output.T
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert float((after - before).norm()) > 0.01 * float(before.norm())


@pytest.mark.parametrize("base", [1e4, 5e5])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_far_tokens_weigh_next_to_nothing_however_long_the_text(width: int, base: float) -> None:
    config = AutoConfig.for_model(
        "llama", **SMALL, head_dim=width, rope_parameters={"rope_theta": base, "rope_type": "default"}
    )
    query, distances = by_distance(config), torch.arange(100_000).double()
    frequencies = base ** (-torch.arange(0, width, 2).double() / width)
    scores = (query[: width // 2] ** 2 / width**0.5) @ torch.cos(torch.outer(frequencies, distances))
    weights = (scores - scores[0]).exp()
    assert float(weights[: int(3 * WIDTH)].sum() / weights.sum()) > 0.9
    spread = float((weights[:200] * distances[:200] ** 2).sum() / weights[:200].sum()) ** 0.5
    assert spread == pytest.approx(WIDTH, rel=0.15)


@pytest.mark.parametrize("family", CONTEXTUAL)
@torch.inference_mode()
def test_a_version_with_them_is_of_the_stock_class(tmp_path: Path, family: str) -> None:
    experts, _, context = trunks(tmp_path, family)
    routers = [torch.zeros(2, 32) for _ in range(3)]
    folder = of_routers([experts[0], experts[0]], context, routers, tmp_path / "version")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(model).__name__ == FAMILIES[family].published_class
    alone = domain_model(experts[0], context)[0]
    torch.testing.assert_close(model(IDS).logits, alone(IDS).logits, rtol=0, atol=1e-4)


def near(expert: Path, trunk: Path, *, context_head: bool = True) -> Stray:
    """The check by the owner of the first expert; random embeddings use all directions, so its limit is wide."""
    return require_near(expert, trunk, 2.0, trunk.with_name("sent-0"), context_head=context_head)


@pytest.mark.parametrize("family", CONTEXTUAL)
def test_an_owner_takes_a_context_head_where_its_policy_allows_one(tmp_path: Path, family: str) -> None:
    experts, plain, context = trunks(tmp_path, family, rows=distinct_rows)
    assert near(experts[0], context).tensor.value == pytest.approx(near(experts[0], plain).tensor.value, abs=0.3)
    with pytest.raises(IncompatibleExpertError, match="attention heads that your expert lacks") as caught:
        near(experts[0], context, context_head=False)
    assert caught.value.where == "model.layers.0.self_attn.o_proj.weight"


@pytest.mark.parametrize(
    ("module", "layer", "change", "what"),
    [
        ("q", 0, lambda rows: rows + 0.5 * torch.eye(*rows.shape), "attend by more than distance"),
        ("q", 0, lambda rows: rows * 3, "attend to fewer tokens"),
        ("k", 0, lambda rows: -rows, "attend to fewer tokens"),
        ("k", 1, lambda rows: rows + 1, "further heads are not zero"),
        ("v", 0, lambda rows: rows * 100, "a single token writes"),
        ("v", 1, lambda rows: rows + 1, "further heads are not zero"),
        ("o", 0, lambda rows: rows * 100, "a single token writes"),
        ("o", 1, lambda rows: rows + 1, "further heads are not zero"),
    ],
)
def test_other_heads_are_refused(
    tmp_path: Path, module: str, layer: int, change: Callable[[Tensor], Tensor], what: str
) -> None:
    experts, plain, context = trunks(tmp_path, "llama", rows=distinct_rows)
    name = f"model.layers.{layer}.self_attn.{module}_proj.weight"
    tensors, own = load_file(context), Checkpoint(plain).shapes[name]
    added = tensors[name][:, own[1] :] if module == "o" else tensors[name][own[0] :][:8]
    added.copy_(change(added))
    save_file(tensors, tmp_path / "changed")
    with pytest.raises(IncompatibleExpertError, match=what) as caught:
        near(experts[0], tmp_path / "changed")
    assert caught.value.where == ("model.layers.0.self_attn.o_proj.weight" if "single" in what else name)


def test_a_family_that_normalises_queries_has_none(tmp_path: Path) -> None:
    _, plain, context = trunks(tmp_path, "qwen3")
    assert Checkpoint(context).shapes == Checkpoint(plain).shapes


def test_a_family_whose_mlps_can_t_be_fitted_gets_no_such_trunk(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleExpertError, match="olmo2 normalises the outputs of its MLPs"):
        trunks(tmp_path, "olmo2")


def test_vocabularies_may_be_of_other_length(tmp_path: Path) -> None:
    experts, _, context = trunks(tmp_path, "llama", [300, 304])
    assert Checkpoint(context).shapes[EMBEDDING] == Checkpoint(context).shapes[HEAD] == (304, 32)
    for each in experts:
        model, _ = domain_model(each, context)
        assert bool(model(IDS).logits.isfinite().all())


def test_documents_that_are_cut_short_give_none(tmp_path: Path) -> None:
    _, plain, context = trunks(tmp_path, "llama", first=8)
    assert Checkpoint(context).shapes == Checkpoint(plain).shapes


def test_of_one_expert_the_trunk_has_none(tmp_path: Path) -> None:
    _, plain, context = trunks(tmp_path, "llama", [300])
    assert plain.read_bytes() == context.read_bytes()


@torch.inference_mode()
def test_an_expert_fitted_to_such_a_trunk_loads_as_its_dense_class(tmp_path: Path) -> None:
    experts, plain, context = trunks(tmp_path, "llama")
    mlps = load_file(experts[0] / "model.safetensors")
    mlps = {name: tensor for name, tensor in mlps.items() if ".mlp." in name}
    folder = write_fitted(experts[0], context, mlps, tmp_path / "fitted")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trunk, tensors = load_file(context), load_file(plain)
    output = "model.layers.0.self_attn.o_proj.weight"
    tensors |= {HEAD: trunk[HEAD], EMBEDDING: trunk[EMBEDDING], output: trunk[output][:, :32].contiguous()}
    save_file(tensors, tmp_path / "without")
    alone = domain_model(experts[0], tmp_path / "without")[0]
    torch.testing.assert_close(model(IDS).logits, alone(IDS).logits, rtol=0, atol=1e-4)
