"""A bank: its formula, starts, gradients, and the fit of coefficients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from transformers import AutoModelForCausalLM

from moerge.models.reader import Checkpoint
from moerge_lab.soups.bank import HIDDEN, Bank, new_bank
from moerge_lab.soups.training import bank_job, fitted, loss_of, put
from moerge_lab.training.job import LOG, train
from moerge_lab.training.loop import Run, losses
from support.models import DISTINCT, expert

ROWS = torch.tensor([[(7 * row + 3 * column) % 256 for column in range(16)] for row in range(8)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A seed model and two experts."""
    made = tmp_path_factory.mktemp("experts")
    return [expert(made / str(seed), seed, apart=0.02) for seed in (9, 1, 2)]


def seed_model(folders: list[Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.float32)


def bank_of(folders: list[Path], rank: int = 0, start: Any = "experts") -> Bank:
    return new_bank(seed_model(folders), start, [Checkpoint(folder) for folder in folders[1:]], 2, rank, 3, 0)


def state(bank: Bank) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in bank.parameters.items()}


def test_the_formula_by_hand() -> None:
    """S + alpha_1 E_1 + alpha_2 E_2 with alpha = W2 relu(W1 h + b1) + b2; of rank 1, E_i = u_i v_i^T."""
    numbers = {
        "shared.w": [[1.0, 2], [3, 4]],
        "experts.w.u": [[[1.0], [0]], [[0], [2]]],
        "experts.w.v": [[[1.0], [1]], [[0], [1]]],
        "shared.g": [1.0, 1],
        "experts.g": [[1.0, 0], [0, 10]],
        "mlp.0.weight": [[1.0, 2], [-4, 0]],
        "mlp.0.bias": [0.5, 1],
        "mlp.1.weight": [[2.0, 7], [1, 7]],
        "mlp.1.bias": [0.0, -1],
    }
    bank = Bank({name: Parameter(torch.tensor(number)) for name, number in numbers.items()})
    alpha = bank.alpha(torch.tensor([0.5, 0.5]))
    assert alpha.tolist() == [4, 1], "relu([2, -1]) = [2, 0]"
    result = bank.instantiate(alpha)
    assert result["w"].tolist() == [[5, 6], [3, 6]]
    assert result["g"].tolist() == [5, 11]


def test_a_bank_of_experts_starts_from_their_average(folders: list[Path]) -> None:
    bank = bank_of(folders)
    alpha = bank.alpha(torch.tensor([0.5, 0.5, 0]))
    torch.testing.assert_close(alpha, torch.full((2,), 0.5), atol=0.2, rtol=0)
    one, two = (Checkpoint(folder) for folder in folders[1:])
    for name, value in bank.instantiate(torch.tensor([0.5, 0.5])).items():
        torch.testing.assert_close(value, (one.tensor(name) + two.tensor(name)) / 2)


BANKED = [family for family in DISTINCT if family != "nemotron_h"]  # its files don't name tensors as its modules do


@pytest.mark.parametrize(
    ("family", "settings"), [*((family, {}) for family in BANKED), ("llama", {"tie_word_embeddings": True})]
)
def test_single_coefficient_of_1_reproduces_an_expert(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    seed, own = (expert(tmp_path / str(number), number, family, apart=0.02, **settings) for number in (1, 2))
    model, dense = (AutoModelForCausalLM.from_pretrained(item, dtype=torch.float32) for item in (seed, own))
    bank = new_bank(model, "experts", [Checkpoint(own)], 1, 0, 2, 0)
    with torch.no_grad():
        expected = dense(input_ids=ROWS, labels=ROWS).loss
        torch.testing.assert_close(loss_of(model, bank.instantiate(torch.ones(1)), ROWS), expected)
        put(model, bank.instantiate(torch.ones(1)))
        torch.testing.assert_close(model(input_ids=ROWS, labels=ROWS).loss, expected)


def test_matrices_of_low_rank_are_the_nearest_ones(folders: list[Path]) -> None:
    name, base = "model.layers.0.mlp.up_proj.weight", Checkpoint(folders[0])
    vector = Checkpoint(folders[1]).tensor(name) - base.tensor(name)
    values = torch.linalg.svdvals(vector)
    for rank in (8, 31):
        made = bank_of(folders, rank).instantiate(torch.tensor([1.0, 0]))[name] - base.tensor(name)
        assert (vector - made).norm().item() == pytest.approx(values[rank:].norm().item(), rel=1e-3)


@pytest.mark.parametrize("rank", [0, 8])
@pytest.mark.parametrize("start", ["experts", "seed", "scratch"])
def test_the_parameters_of_each_start_have_the_named_shapes(folders: list[Path], start: str, rank: int) -> None:
    bank, expected = bank_of(folders, rank, start), dict[str, tuple[int, ...]]()
    for name, parameter in seed_model(folders).named_parameters():
        expected[f"shared.{name}"] = shape = tuple(parameter.shape)
        low = {f"experts.{name}.u": (2, shape[0], rank), f"experts.{name}.v": (2, shape[-1], rank)}
        expected |= low if rank and len(shape) == 2 else {f"experts.{name}": (2, *shape)}
    expected |= {"mlp.0.weight": (HIDDEN, 3), "mlp.0.bias": (HIDDEN,), "mlp.1.weight": (2, HIDDEN), "mlp.1.bias": (2,)}
    assert {name: tuple(parameter.shape) for name, parameter in bank.parameters.items()} == expected
    shared = bank.parameters["shared.model.embed_tokens.weight"]
    assert torch.equal(shared, Checkpoint(folders[0]).tensor("model.embed_tokens.weight")) == (start != "scratch")


def test_expert_gradient_is_coefficient_times_model_gradient(folders: list[Path]) -> None:
    """SoE section 2.5."""
    model, bank = seed_model(folders), bank_of(folders)
    for parameter in bank.parameters.values():
        parameter.requires_grad_(True)
    alpha = bank.alpha(torch.tensor([0.2, 0.8, 0]))
    loss_of(model, bank.instantiate(alpha), ROWS).backward()
    for name, _ in model.named_parameters():
        gradient = bank.parameters[f"shared.{name}"].grad
        for number in range(2):
            own = bank.parameters[f"experts.{name}"].grad
            assert gradient is not None
            assert own is not None
            torch.testing.assert_close(own[number], alpha[number].detach() * gradient)


def test_a_training_moves_all_of_the_bank_and_lowers_the_loss(folders: list[Path], tmp_path: Path) -> None:
    model, bank = seed_model(folders), bank_of(folders, 4)
    before, own = state(bank), {name: item.clone() for name, item in model.state_dict().items()}
    train(replace(bank_job(model, bank, ROWS.chunk(3), 2, Run(20, 4, 3e-3)), folder=tmp_path))
    first, last = losses(tmp_path / LOG)
    assert not any(torch.equal(before[name], parameter) for name, parameter in bank.parameters.items())
    assert last < first
    assert all(torch.equal(own[name], item) for name, item in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in bank.parameters.values())


def test_a_fit_moves_the_coefficients_alone_and_lowers_the_loss(folders: list[Path]) -> None:
    model, bank = seed_model(folders), bank_of(folders)
    before, alpha = state(bank), bank.alpha(torch.tensor([1.0, 0, 0]))
    start = alpha.clone()
    result = fitted(model, bank, alpha, ROWS, 8, 0)
    assert all(torch.equal(before[name], parameter) for name, parameter in bank.parameters.items())
    assert torch.equal(alpha, start)
    with torch.no_grad():
        one, other = (float(loss_of(model, bank.instantiate(item), ROWS)) for item in (result, start))
    assert one < other
