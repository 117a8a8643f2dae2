"""MergeME's heuristics against its formulas, and its layers against a forward pass written out."""

from math import exp, log
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.scoring.perplexity import Rows
from moerge_lab.recipes.base import Domain, Fleet
from moerge_lab.recipes.likelihoods import Dense
from moerge_lab.recipes.mergeme import RECIPES, alignment, confidence, top_softmax
from support.models import DISTINCT, expert
from support.recipes import logits

SHORT, LONG = [5, 9, 200, 7], [40, 41, 42, 43, 44, 250, 7]
IDS = torch.tensor([[*SHORT, 0, 0, 0], LONG])
ROWS = Rows(IDS, [4, 7], "")
BY_NAME = {recipe.name: recipe for recipe in RECIPES}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("experts")
    return [
        expert(folder / str(seed), seed, apart=0.02, num_hidden_layers=1, initializer_range=0.2) for seed in range(3)
    ]


@pytest.fixture(scope="module")
def models(folders: list[Path]) -> list[PreTrainedModel]:
    return [expert_model(DenseFiles(folder)) for folder in folders]


def fleet(folders: list[Path], work: Path, base: Path | None = None) -> Fleet:
    return Fleet([Domain(str(n), folder, []) for n, folder in enumerate(folders)], base, 0, work)


def test_weights_are_the_softmax_of_the_k_largest_scores() -> None:
    first = 1 / (1 + exp(-0.5))  # softmax of 1 and 0.5
    result = top_softmax(torch.tensor([[0.5, 0.1, 1.0]], dtype=torch.float64), k=2)
    torch.testing.assert_close(result, torch.tensor([[1 - first, 0, first]], dtype=torch.float64))
    assert top_softmax(torch.tensor([[0.5, 0.1, 1.0]]), k=1).tolist() == [[0, 0, 1]]
    torch.testing.assert_close(top_softmax(torch.zeros(1, 2), k=5), torch.full((1, 2), 0.5))


def test_confidence_is_inverse_perplexity_of_unpadded_tokens(
    folders: list[Path], models: list[PreTrainedModel]
) -> None:
    dense = [Dense(folder, "cpu", {}) for folder in folders]
    with torch.inference_mode():
        result = confidence(dense)(ROWS)
        for row, ids in enumerate((SHORT, LONG)):
            for slot, model in enumerate(models):
                chances = model(input_ids=torch.tensor([ids])).logits[0].double().softmax(dim=1)
                logs = [log(chances[t - 1, ids[t]]) for t in range(1, len(ids))]
                perplexity = exp(-sum(logs) / len(logs))
                assert float(result[row, slot]) == pytest.approx(1 / perplexity, rel=1e-5)


def gradient(base: PreTrainedModel, ids: list[int]) -> dict[str, Tensor]:
    """Of the base model's mean loss on a text, by transformers' own loss."""
    names, parameters = zip(*base.named_parameters(), strict=True)
    loss = base(input_ids=torch.tensor([ids]), labels=torch.tensor([ids])).loss
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_alignment_with_own_gradient_step_has_cosine_one(folders: list[Path]) -> None:
    base = expert_model(DenseFiles(folders[0]))
    steps = {ids[0]: gradient(base, ids) for ids in (SHORT, LONG)}
    experts = []
    for step in steps.values():
        experts.append(expert_model(DenseFiles(folders[0])))
        with torch.no_grad():
            for name, parameter in experts[-1].named_parameters():
                parameter.sub_(step[name], alpha=0.1)
    with torch.inference_mode():  # as recipes are scored
        result = alignment(base, experts)(Rows(IDS.clone(), [4, 7], ""))
    short, long = (torch.cat([item.flatten() for item in step.values()]).double() for step in steps.values())
    cosine = float(short @ long / (short.norm() * long.norm()))
    wanted = torch.tensor([[1, cosine], [cosine, 1]], dtype=torch.float64)
    torch.testing.assert_close(result, wanted, atol=1e-3, rtol=0)
    assert abs(cosine) < 0.9


def written_out(body: PreTrainedModel, models: list[PreTrainedModel], weights: list[float], ids: list[int]) -> Tensor:
    """[T, V]: one layer, its attention by `models` if the body has none of its own, and its MLP."""
    layer = body.model.layers[0]
    states = body.model.embed_tokens(torch.tensor([ids]))
    rope = body.model.rotary_emb(states, torch.arange(len(ids))[None])
    inner = layer.input_layernorm(states)
    attended = [
        model.model.layers[0].self_attn(inner, position_embeddings=rope, attention_mask=None) for model in models
    ]
    states = states + sum(weight * output for weight, (output, _) in zip(weights, attended, strict=True))
    inner = layer.post_attention_layernorm(states)
    states = states + sum(w * model.model.layers[0].mlp(inner) for w, model in zip(weights, models, strict=True))
    logits: Tensor = body.lm_head(body.model.norm(states))[0]
    return logits


@pytest.mark.parametrize("separate", [True, False])
def test_the_chosen_experts_outputs_are_summed_in_every_layer(
    folders: list[Path], models: list[PreTrainedModel], tmp_path: Path, *, separate: bool
) -> None:
    name = "mergeme-ppl-separate" if separate else "mergeme-ppl"
    ((row, model),) = BY_NAME[name].build(fleet(folders, tmp_path), {"k": 2, "seed": 0})
    assert row == name
    dense = [Dense(folder, "cpu", {}) for folder in folders]
    result = logits(model, ROWS)
    with torch.inference_mode():
        merged = expert_model(DenseFiles(folders[0]))  # every parameter is the mean
        for key, parameter in merged.named_parameters():
            parameter.copy_(torch.stack([dict(item.named_parameters())[key] for item in models]).mean(dim=0))
        weights = top_softmax(confidence(dense)(ROWS), 2)
        chosen = models
        if not separate:
            chosen = [expert_model(DenseFiles(folder)) for folder in folders]
            for item in chosen:
                item.model.layers[0].self_attn.load_state_dict(merged.model.layers[0].self_attn.state_dict())
        for ids, one, shares in zip((SHORT, LONG), result, weights.tolist(), strict=True):
            assert sum(share == 0 for share in shares) == 1
            wanted = written_out(merged, chosen, shares, ids)
            torch.testing.assert_close(one[: len(ids)], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", DISTINCT)
def test_equal_experts_compute_what_each_of_them_does(tmp_path: Path, family: str) -> None:
    folder = expert(tmp_path / "e", 1, family, initializer_range=0.2)
    with torch.inference_mode():
        wanted = expert_model(DenseFiles(folder))(input_ids=IDS).logits
    for recipe in RECIPES:
        base = expert(tmp_path / "base", 2, family) if recipe.needs_base else None
        ((_, model),) = recipe.build(fleet([folder] * 3, tmp_path, base), recipe.options)
        result = logits(model, ROWS)
        torch.testing.assert_close(result[0, :4], wanted[0, :4], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(result[1], wanted[1], rtol=1e-4, atol=1e-4)


def test_routing_counts_among_the_active_parameters(folders: list[Path], tmp_path: Path) -> None:
    attention, mlp = 32 * (32 + 16 + 16 + 32), 3 * 32 * 48
    dense = attention + mlp + 3 * 32 + 300 * 32
    counts = {}
    for recipe in RECIPES:
        ((_, model),) = recipe.build(fleet(folders, tmp_path, folders[0]), recipe.options)
        counts[recipe.name] = model.active_parameters
    assert counts == {
        "mergeme-ppl": dense + mlp + 3 * dense,
        "mergeme-ppl-separate": dense + mlp + attention + 3 * dense,
        "mergeme-task-vector": dense + mlp + 3 * dense,
        "mergeme-task-vector-separate": dense + mlp + attention + 3 * dense,
    }


def test_a_base_model_that_is_missing_is_asked_for(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match="`base`: the seed model is missing"):
        next(BY_NAME["mergeme-task-vector"].build(fleet(folders, tmp_path), {"k": 2}))


def test_invalid_base_model_and_expert_count_are_refused(folders: list[Path], tmp_path: Path) -> None:
    wide = expert(tmp_path / "wide", 3, num_hidden_layers=1, intermediate_size=64)
    with pytest.raises(MoergeError, match=r"\[64, 32\], an expert's \[48, 32\]"):
        next(BY_NAME["mergeme-task-vector"].build(fleet(folders, tmp_path, wide), {"k": 2}))
    with pytest.raises(MoergeError, match="k is 0"):
        next(BY_NAME["mergeme-ppl"].build(fleet(folders, tmp_path), {"k": 0, "seed": 0}))


def test_the_seed_model_is_one_of_the_experts_if_asked_for(folders: list[Path], tmp_path: Path) -> None:
    """With the seed of two experts as a third, all is as with three experts."""
    *two, seed = folders
    for name in ("mergeme-ppl", "mergeme-ppl-separate"):
        ((_, wanted),) = BY_NAME[name].build(fleet(folders, tmp_path), {"k": 2, "seed": 0})
        ((_, result),) = BY_NAME[name].build(fleet(two, tmp_path, seed), {"k": 2, "seed": 1})
        torch.testing.assert_close(logits(result, ROWS), logits(wanted, ROWS))
        assert result.active_parameters == wanted.active_parameters
