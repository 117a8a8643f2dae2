"""MoErged models follow DUME's formulas, as stock transformers loads them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.bodies.least_squares import SHRINKAGE_TO_AVERAGE
from moerge.errors import MoergeError
from moerge.models.dense import domain_model
from moerge.scoring.perplexity import Rows
from moerge.scoring.routers import routers
from moerge.versions.version_plan import solve_lineage
from moerge_lab.recipes.base import Fleet, Shared
from moerge_lab.recipes.models import Loaded
from moerge_lab.recipes.published import assembled
from moerge_lab.recipes.registry import parse
from moerge_proto.statistics_file import StatisticsFile
from support.models import SMALL, VOCAB, on_body
from support.recipes import built, fleet, logits, only, with_average_head
from support.versions import body_file

HELD = torch.tensor([[3 * column % 250 for column in range(30)]])


def weights(model: object) -> list[Tensor]:
    """The routers', [D, H] per layer."""
    assert isinstance(model, Loaded)
    return [router.get_parameter("weight").detach() for router in routers(model.model)]


@torch.inference_mode()
def inputs(model: torch.nn.Module, module: str, documents: Sequence[list[int]]) -> Tensor:
    """[n, in] float64: what a module reads, by a hook of our own."""
    seen: list[Tensor] = []
    model.get_submodule(module).register_forward_pre_hook(lambda _, given: seen.append(given[0][0].double()))
    for document in documents:
        model(torch.tensor([document]), use_cache=False)
    return torch.cat(seen)


def textbook(
    on: Fleet, layer: int, texts: Sequence[Sequence[list[int]]], ridge_lambda: float, merged: int | None = None
) -> Tensor:
    """DUME eq. 7 for one layer, with unit columns: [D, H] float64. By default all experts are in the body."""
    body = body_file([domain.expert for domain in on.domains[:merged]], on.work / "expected-body")
    models = [domain_model(*on_body(domain.expert, body))[0] for domain in on.domains]
    item = [inputs(m, f"model.layers.{layer}.mlp", text) for m, text in zip(models, texts, strict=True)]
    x = torch.cat(item)
    y = torch.cat([torch.eye(len(item), dtype=torch.float64)[[d] * len(part)] for d, part in enumerate(item)])
    w: Tensor = torch.linalg.solve(x.T @ x + ridge_lambda * torch.eye(x.shape[1]), x.T @ y)
    columns: Tensor = w / w.norm(dim=0)
    return columns.T


@pytest.mark.parametrize(
    ("spec", "ridge_lambda", "tokens"), [("dume", 0.01, None), ("dume:lambda=5", 5.0, None), ("dume:tokens=7", 0.01, 7)]
)
def test_dume_solves_the_paper_s_ridge_regression(
    tmp_path: Path, spec: str, ridge_lambda: float, tokens: int | None
) -> None:
    on = fleet(tmp_path)
    result = weights(only(spec, on))
    texts = [[document[:tokens] for document in domain.statistics] for domain in on.domains]
    for layer in range(3):
        expected = textbook(on, layer, texts, ridge_lambda).float()
        torch.testing.assert_close(result[layer], expected, atol=2e-3, rtol=0)


def test_expert_joining_a_kept_body_is_solved_like_all_others(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    recipe, options, _ = parse("dume")
    assert recipe.parts is not None
    early = assembled(recipe.parts, replace(on, domains=on.domains[:2]), options)
    made = assembled(recipe.parts, on, options, kept=early.parts)
    assert made.lineage.contributions != early.lineage.contributions
    assert set(made.lineage.contributions) > set(early.lineage.contributions)
    result = solve_lineage(made.lineage, made.inputs)[0]
    for layer in range(3):
        expected = textbook(on, layer, [domain.statistics for domain in on.domains], 0.01, merged=2)
        torch.testing.assert_close(result[layer], expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("dume:k=4", "(?s)k is 4.*between 1 and 3"),
        ("dume:k=1.5", "k is 1.5"),
        ("dume:tokens=-1", "tokens is -1"),
        ("dume:lambda=0", "lambda is 0.0: .*greater than 0"),
        ("dume-ties:retain=2", "retain.*less than or equal to 1"),
        ("ties:retain=0", "retain.*greater than 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, spec: str, said: str) -> None:
    with pytest.raises(MoergeError, match=said):
        only(spec, fleet(tmp_path))


def test_out_of_distribution_statistics_use_the_other_text(tmp_path: Path) -> None:
    whole = fleet(tmp_path)
    on = Fleet([*whole.domains[1:]], whole.base, 0, whole.work)  # the first has no other text
    result = weights(only("dume-ood", on))
    expected = textbook(on, 1, [domain.other for domain in on.domains], 0.01).float()
    torch.testing.assert_close(result[1], expected, atol=2e-3, rtol=0)


def test_an_oracle_is_body_and_head_with_the_text_s_own_mlps(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    oracle = only("oracle", on)
    experts = [domain.expert for domain in on.domains]
    body = body_file(experts, tmp_path / "body")
    for domain in on.domains:
        model = with_average_head(domain_model(*on_body(domain.expert, body))[0], experts)
        with torch.inference_mode():
            expected = model(HELD).logits
            result = logits(oracle, Rows(HELD, [30], domain.name))
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=0)


def test_random_routers_are_standard_normal_and_the_seed_s(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    result = torch.stack(weights(only("random", on)))
    assert float(result.std()) == pytest.approx(1, abs=0.15)
    assert float(result.mean()) == pytest.approx(0, abs=0.15)
    again = Fleet(on.domains, on.base, 0, on.work)
    other = Fleet(on.domains, on.base, 1, on.work)
    assert torch.equal(torch.stack(weights(only("random", again))), result)
    assert not torch.equal(torch.stack(weights(only("random", other))), result)


def test_dume_with_full_averaged_task_vectors_equals_dume(tmp_path: Path) -> None:
    """base + 1/3 of three task vectors is the mean; DARE of which nothing falls."""
    on = fleet(tmp_path)
    with torch.inference_mode():
        expected = logits(only("dume:k=2", on), Rows(HELD, [30], ""))
        result = logits(only("dume-dare:retain=1,k=2", on), Rows(HELD, [30], ""))
        ties = logits(only("dume-ties:k=2", on), Rows(HELD, [30], ""))
    torch.testing.assert_close(result, expected, atol=1e-3, rtol=0)
    assert not torch.allclose(ties, expected, atol=1e-2)


def test_regmean_body_is_least_squares_fit_on_expert_inputs(tmp_path: Path) -> None:
    on, module = fleet(tmp_path), "model.layers.1.self_attn.q_proj"
    model = only("regmean", on)
    assert isinstance(model, Loaded)
    result = model.model.get_submodule(module).get_parameter("weight").double()
    total = torch.zeros(32, 32, dtype=torch.float64)
    right, mean, tokens = torch.zeros_like(total), torch.zeros_like(total), 0
    for domain in on.domains:
        expert = AutoModelForCausalLM.from_pretrained(domain.expert, dtype=torch.float32)
        x = inputs(expert, module, domain.statistics)
        gram, own = x.T @ x, expert.get_submodule(module).get_parameter("weight").double()
        gram /= gram.diagonal().mean()
        total, right, mean, tokens = total + gram, right + own @ gram, mean + own / 3, tokens + len(x)
    shrinkage = SHRINKAGE_TO_AVERAGE * 32 / tokens * total.diagonal().mean() * torch.eye(32, dtype=torch.float64)
    expected = torch.linalg.solve(total + shrinkage, (right + mean @ shrinkage).T).T
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=0)


def test_a_table_s_recipes_share_equal_bodies_and_only_these(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    alone = fleet(tmp_path)
    on, rows = replace(alone, shared=Shared(tmp_path / "shared")), Rows(HELD, [HELD.shape[1]], "d1")
    for spec in ("regmean", "recommended", "regmean-oracle", "regmean:rare_below=0", "regmean:tokens=5", "dume"):
        result = logits(only(spec, on), rows)
        torch.testing.assert_close(result, logits(only(spec, alone), rows), msg=spec)
    assert (len(on.shared.bodies), len(on.shared.heads)) == (3, 2)


def test_counts_of_rare_tokens_are_withheld_unless_asked_for(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    for spec, whole in (("regmean-oracle", False), ("regmean-oracle:rare_below=0", True)):
        built(spec, on)
        with StatisticsFile(on.work / "body-d0.safetensors") as file:
            counts = file.array("token_counts")
        assert bool(((counts > 0) & (counts < 10)).any()) is whole, spec


@pytest.mark.parametrize(("spec", "experts"), [("averaging", 1), ("random", 1), ("dume:k=2", 2), ("oracle", 1)])
def test_active_parameters_are_those_multiplied_per_token(tmp_path: Path, spec: str, experts: int) -> None:
    """Per layer: four attention matrices, two norms, k MLPs, and routers; then a norm and a head. No embedding."""
    hidden, mlp, layers = 32, 3 * 32 * 48, SMALL["num_hidden_layers"]
    per_layer = 2 * hidden * hidden + 2 * hidden * hidden // 2 + 2 * hidden + experts * mlp
    if spec != "averaging":
        per_layer += 3 * hidden
    assert only(spec, fleet(tmp_path)).active_parameters == layers * per_layer + hidden + hidden * VOCAB


def test_a_class_with_one_expert_per_token_gets_no_more(tmp_path: Path) -> None:
    on = fleet(tmp_path, 2, family="lfm2")
    with pytest.raises(MoergeError, match="Lfm2MoeForCausalLM weights several by sigmoids"):
        built("dume:k=2", on)
    assert list(on.work.iterdir()) == []
