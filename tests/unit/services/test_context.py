"""Context heads: what a trunk's added heads read, write and leave alone."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from moerge.architectures.config import read_config
from moerge.architectures.families import EMBEDDING, FAMILIES, HEAD, family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.checkpoint.writer import write_safetensors
from moerge.errors import IncompatibleExpertError
from moerge.files import atomic_file
from moerge.publish.folder import write_version
from moerge.statistics.local import trunk_contribution
from moerge.trunk.context import SIZE, context_of
from moerge.trunk.domain_model import domain_model, require_near
from moerge.trunk.fit import write_fitted
from moerge.trunk.regmean import ModuleGrams, solved_plan
from moerge_proto.statistics_file import StatisticsFile
from support.models import expert
from support.versions import contributed_rows

CONTEXTUAL = sorted(FAMILIES.keys() - {"olmo2"})
IDS = torch.tensor([[3 * column * column % 250 for column in range(24)]])


def trunks(folder: Path, family: str, vocabularies: Sequence[int] = (300, 300, 300)) -> tuple[list[Path], Path, Path]:
    """Experts, and their trunk without context heads and with them."""
    sizes = enumerate(vocabularies, 1)
    experts = [expert(folder / str(seed), seed=seed, family=family, vocab_size=size) for seed, size in sizes]
    config = read_config(experts[0])
    with ExitStack() as stack:
        parts = []
        for slot, each in enumerate(experts):
            sent = trunk_contribution("law", each, contributed_rows(slot), folder / f"sent-{slot}")
            parts.append(
                ModuleGrams(Checkpoint(each), stack.enter_context(StatisticsFile(sent)), family_of(config), config)
            )
        for name, context in (("plain", False), ("context", True)):
            with atomic_file(folder / name) as out:
                write_safetensors(out, solved_plan(parts, family_of(config), config, turned=context, context=context))
    return experts, folder / "plain", folder / "context"


def test_evidence_is_the_logarithm_of_how_much_likelier_a_token_is() -> None:
    """With fewer tokens than dimensions a linear readout is exact."""
    generator = torch.Generator().manual_seed(0)
    embedding, gain = torch.randn(6, 16, generator=generator), torch.rand(16, generator=generator) + 0.5
    counts = torch.tensor([[90, 40, 20, 9, 5, 1], [1, 5, 9, 20, 40, 90]]).double()
    lane, evidence, written = context_of(embedding, gain, counts, 8, 0.0)
    assert lane.shape == written.shape == (16, 1)
    assert float((embedding.double() @ lane).abs().max()) < 1e-6
    read = embedding.double() / embedding.double().pow(2).mean(dim=1, keepdim=True).sqrt()
    found = (read * gain) @ evidence.T
    chances = (counts + 1) / (counts + 1).sum(dim=1, keepdim=True)
    ratio = (chances[0] / chances[1]).log()
    torch.testing.assert_close(found[:, 0] / found[0, 0], ratio / ratio[0], rtol=0, atol=2e-3)
    means = chances @ found
    assert float((means - means.mean()).abs().mean()) == pytest.approx(1.0, abs=1e-3)
    size = float((chances.mean(dim=0)[:, None] * embedding.double().pow(2)).sum()) ** 0.5
    assert float(written.norm()) == pytest.approx(SIZE * size)


def test_domains_with_the_same_tokens_write_nothing() -> None:
    embedding = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([[9, 4, 2, 9, 5, 1]]).double().expand(3, 6)
    assert not context_of(embedding, torch.ones(16), counts, 8, 0.0).evidence.any()


@torch.inference_mode()
def attended(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """What the first layer's attention reads and adds, [T, H]."""
    seen: list[Tensor] = []
    layer = model.model.layers[0]
    handles = [
        layer.input_layernorm.register_forward_hook(lambda _, given, out: seen.append(out[0])),
        layer.self_attn.register_forward_hook(lambda _, given, out: seen.append(out[0][0])),
    ]
    model(IDS, use_cache=False)
    for handle in handles:
        handle.remove()
    return seen[0], seen[1]


@pytest.mark.parametrize("family", CONTEXTUAL)
def test_the_heads_add_the_mean_evidence_so_far(tmp_path: Path, family: str) -> None:
    experts, plain, context = trunks(tmp_path, family)
    tensors = load_file(context)
    counts = torch.stack(
        [torch.bincount(torch.tensor(contributed_rows(slot)).flatten(), minlength=300) for slot in range(3)]
    )
    gain = Checkpoint(plain).tensor("model.layers.0.input_layernorm.weight")
    config = read_config(experts[0])
    lane, evidence, written = context_of(
        Checkpoint(plain).tensor(EMBEDDING), gain, counts.double(), 8, config.rms_norm_eps
    )
    own = Checkpoint(plain).tensor(EMBEDDING).double()
    torch.testing.assert_close(tensors[EMBEDDING].double(), own - own @ lane @ lane.T, rtol=0, atol=1e-6)
    save_file({**load_file(plain), EMBEDDING: tensors[EMBEDDING]}, tmp_path / "plain-embedded")
    _, before = attended(domain_model(experts[0], tmp_path / "plain-embedded", torch.float64)[0])
    read, after = attended(domain_model(experts[0], context, torch.float64)[0])
    window = getattr(config, "sliding_window", None) or IDS.shape[1]
    told = read @ evidence.T
    mean = torch.stack([told[max(0, at + 1 - window) : at + 1].mean(dim=0) for at in range(len(told))])
    expected = before - before @ lane @ lane.T + mean @ written.T
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert float((mean @ written.T).abs().max()) > 1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("family", CONTEXTUAL)
@torch.inference_mode()
def test_a_version_with_them_is_of_the_stock_class(tmp_path: Path, family: str) -> None:
    experts, _, context = trunks(tmp_path, family)
    routers = [torch.zeros(2, 32) for _ in range(3)]
    folder = write_version([experts[0], experts[0]], context, lambda: routers, tmp_path / "version")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(model).__name__ == FAMILIES[family].published_class
    alone = domain_model(experts[0], context)[0]
    torch.testing.assert_close(model(IDS).logits, alone(IDS).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", CONTEXTUAL)
def test_an_owner_takes_heads_that_attend_to_all_tokens_alike_and_no_others(tmp_path: Path, family: str) -> None:
    experts, plain, context = trunks(tmp_path, family)
    config = read_config(experts[0])
    without = require_near(experts[0], plain, 10.0)
    assert require_near(experts[0], context, 10.0) == pytest.approx(without, abs=0.05)
    tensors, [name, *_] = load_file(context), FAMILIES[family].input_blocks(config, 1)
    added = FAMILIES[family].input_blocks(config, 1)[name][0]
    tensors[f"{name}.weight"][added] = 0.1
    save_file(tensors, tmp_path / "asking")
    with pytest.raises(IncompatibleExpertError, match="don't attend to all tokens alike"):
        require_near(experts[0], tmp_path / "asking", 10.0)


def test_a_family_that_normalises_all_queries_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleExpertError, match="olmo2 normalises the queries of all heads together"):
        trunks(tmp_path, "olmo2")


def test_vocabularies_may_be_of_other_length(tmp_path: Path) -> None:
    experts, _, context = trunks(tmp_path, "llama", [300, 304])
    assert Checkpoint(context).shapes[EMBEDDING] == Checkpoint(context).shapes[HEAD] == (304, 32)
    for each in experts:
        model, _ = domain_model(each, context)
        assert bool(model(IDS).logits.isfinite().all())
        assert require_near(each, context, 10.0) < 10.0


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
