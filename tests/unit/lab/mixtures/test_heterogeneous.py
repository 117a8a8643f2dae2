"""Experts of different architectures: formula, matched tokens, causality, and the same model after a load."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from moerge.errors import IncompatibleExpertError
from moerge_lab.mixtures.heterogeneous import Heterogeneous, HeterogeneousConfig, Projector, averaged, matching_rows
from moerge_lab.recipes.models import Loaded
from support.models import expert
from support.recipes import fleet, only

IDS = torch.arange(2 * 20).view(2, 20) * 7 % 250


def folders(place: Path) -> dict[str, Path]:
    """A Llama, and a narrower Qwen2 with more layers."""
    qwen2 = expert(place / "b", 2, "qwen2", hidden_size=16, intermediate_size=24, num_hidden_layers=4)
    return {"a": expert(place / "a", 1, apart=0.02), "b": qwen2}


@torch.inference_mode()
def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    result: Tensor = model(input_ids=ids).logits
    return result


class Multiplied(nn.Module):
    """An expert with x -> factor x."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs_embeds: Tensor, **settings: Any) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.factor * inputs_embeds)


def by_hand(k: int) -> Heterogeneous:
    """Experts x -> x of width 2, and x -> 10 x of width 1, which sees the first coordinate alone."""
    dense = [
        LlamaConfig(hidden_size=width, num_attention_heads=1, head_dim=2, num_hidden_layers=1, intermediate_size=2)
        for width in (2, 1)
    ]
    config = HeterogeneousConfig(
        members=["a", "b"],
        dense=[item.to_dict() for item in dense],
        vocab_size=3,
        hidden_size=2,
        num_experts_per_tok=k,
        skip=True,
    )
    model = Heterogeneous(config)
    model.members = nn.ModuleList([Multiplied(1.0), Multiplied(10.0)])
    for projector in (*model.inputs, *model.outputs):
        projector.down_proj.weight.data.zero_()
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    model.embed_tokens.weight.data, model.lm_head.weight.data = table, table.clone()
    model.router.weight.data = torch.log(torch.tensor(4.0)) * torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    return model


def test_the_formula_on_two_tokens() -> None:
    """e_1 = (1, 0) and e_2 = (0, 1). Their means are (1, 0) and (1/2, 1/2), so experts have 4 : 1 and 2 : 1."""
    first = (4 / 5 * 1 + 1 / 5 * 10, 0.0)
    second = (0.0, 2 / 3 * 1 + 1 / 3 * 0)  # the narrow expert sees nothing of (0, 1)
    expected = torch.tensor([[[*first, sum(first)], [*second, sum(second)]]])
    torch.testing.assert_close(logits(by_hand(2), torch.tensor([[0, 1]])), expected)


def test_one_expert_has_all_of_the_weight() -> None:
    expected = torch.tensor([[[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]])
    torch.testing.assert_close(logits(by_hand(1), torch.tensor([[0, 1]])), expected)


def test_unweighted_expert_has_zero_gradients_in_training() -> None:
    """Optimizers keep no state for parameters without gradients, so checkpoints would lack it."""
    model, ids = by_hand(1), torch.tensor([[0, 1]])
    model.train()
    model(ids, labels=ids).loss.backward()
    assert [parameter.grad is not None and not parameter.grad.any() for parameter in model.inputs[1].parameters()] == [
        True,
        True,
    ]


def test_a_projector_is_a_two_layer_mlp() -> None:
    projector = Projector(2, 1, skip=False)
    projector.up_proj.weight.data = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
    projector.down_proj.weight.data = torch.tensor([[10.0, 1.0]])
    x = torch.tensor([1.0, 2.0])  # W1 x = (3, 2), and silu(u) = u / (1 + exp(-u))
    expected = 10 * 3 / (1 + torch.exp(torch.tensor(-3.0))) + 2 / (1 + torch.exp(torch.tensor(-2.0)))
    torch.testing.assert_close(projector(x), expected[None])


def test_embeddings_are_padded_and_averaged_over_members() -> None:
    wide, narrow = torch.tensor([[2.0, 2.0], [4.0, 4.0]]), torch.tensor([[6.0], [8.0]])
    rows = [torch.tensor([0, 1]), torch.tensor([1, -1])]
    torch.testing.assert_close(averaged([wide, narrow], rows, 2), torch.tensor([[5.0, 1.0], [4.0, 4.0]]))


def test_tokens_of_other_tokenizers_are_matched_by_string(tmp_path: Path) -> None:
    one = expert(tmp_path / "one", 1, tokens=["<tool>", "<user>"])
    other = expert(tmp_path / "other", 2, tokens=["<user>"])
    same, different = matching_rows([one, one], [300, 290])[1], matching_rows([one, other], [300, 300])[1]
    assert same.tolist() == [*range(290), *[-1] * 10], "all rows that both have, also without a token"
    ours, theirs = 260, 259  # of <user>, after 256 bytes and three special tokens
    assert different[ours] == theirs
    assert different[:259].tolist() == [*range(259)]
    assert set(different.tolist()) == {*range(260), -1}


def test_no_token_looks_ahead(tmp_path: Path) -> None:
    model = Heterogeneous.of(folders(tmp_path), seed=0)
    model.router.weight.data *= 100
    changed = IDS.clone()
    changed[:, 12] = 251
    before, after = logits(model), logits(model, changed)
    torch.testing.assert_close(after[:, :12], before[:, :12], rtol=0, atol=1e-6)
    assert (after[:, 12:] - before[:, 12:]).abs().amax(-1).min() > 1e-4, "later ones read it"


def test_equal_experts_with_skips_are_the_dense_model(tmp_path: Path) -> None:
    dense = expert(tmp_path / "dense", 1, apart=0.02)
    model = Heterogeneous.of({"a": dense, "b": dense}, seed=3, skip=True)
    wanted = logits(AutoModelForCausalLM.from_pretrained(dense))
    torch.testing.assert_close(logits(model), wanted, rtol=1e-5, atol=1e-5)


def test_it_is_saved_loaded_and_generates_the_same(tmp_path: Path) -> None:
    model: Any = Heterogeneous.of(folders(tmp_path), seed=0, k=1)
    model.save_pretrained(tmp_path / "saved")
    again: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert again.config.model_type == HeterogeneousConfig.model_type
    assert torch.equal(logits(again), logits(model))
    wanted = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(again.generate(IDS, max_new_tokens=6, do_sample=False, use_cache=True), wanted)
    by_logits = torch.stack([logits(model, wanted[:, :end])[:, -1].argmax(-1) for end in range(20, 26)], 1)
    assert torch.equal(wanted[:, 20:], by_logits)
    padded = torch.cat([torch.zeros_like(IDS[:, :3]), IDS], 1)
    mask = (torch.arange(23) >= 3).expand(2, 23).long()
    behind = again.generate(padded, attention_mask=mask, max_new_tokens=6, do_sample=False)
    assert torch.equal(behind[:, 3:], wanted)


@pytest.mark.parametrize("options", ["k=3,skip=1", "k=4,frozen=1,seed=1"])
def test_training_changes_all_layers_or_only_added_if_frozen(tmp_path: Path, options: str) -> None:
    every = fleet(tmp_path)
    other = replace(every.domains[1], expert=folders(tmp_path)["b"])
    on = replace(every, domains=[every.domains[0], other, every.domains[2]])
    still, model = (only(f"mergeme-heterogeneous:{options},train=96,batch=2,rate={rate}", on) for rate in (0, 0.01))
    assert isinstance(still, Loaded)
    assert isinstance(model, Loaded)
    before, after = still.model.state_dict(), model.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    added = {name for name in before if not name.startswith("members.")}
    assert moved == added if "frozen" in options else moved > added
    assert model.trained is not None
    assert ("frozen" in options) == (model.trained.parameters == sum(before[name].numel() for name in added))
    assert model.model.config.members == ["d0", "d1", "d2", *(["seed"] if "seed" in options else [])]


def test_active_parameters_are_those_of_k_average_experts(tmp_path: Path) -> None:
    llama = 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 32
    qwen2 = 4 * (2 * 16 * 16 + 2 * 16 * 8 + 32 + 3 * 16 * 24 + 2 * 16) + 16  # with biases of q, k and v
    projectors = 4 * 32 * 32 + (32 * 32 + 32 * 16) + (16 * 16 + 16 * 32)
    model = Heterogeneous.of(folders(tmp_path), seed=0, k=1)
    assert model.active_parameters() == 300 * 32 + 2 * 32 + (llama + qwen2 + projectors) / 2


def test_unknown_families_are_refused(tmp_path: Path) -> None:
    members = folders(tmp_path)
    config = members["b"] / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"gpt2"'))
    with pytest.raises(IncompatibleExpertError, match="gpt2"):
        Heterogeneous.of(members, seed=0)
