"""An owner's MLPs, fitted to a trunk: behind it they do what they did in the expert."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from moerge.errors import IncompatibleExpertError
from moerge.experts.fitting import SHRINKAGE_TO_EXPERT, fit, fit_mlps
from moerge.models.batches import batches
from moerge.models.dense import domain_model, expert_model
from moerge.models.families import FAMILIES
from moerge.models.reader import Checkpoint
from moerge.models.tokens import all_counted
from support.models import expert
from support.versions import trunk_file

DOCUMENTS = [[(5 * row + 3 * column * (1 + row % 3)) % 256 for column in range(20 + row)] for row in range(40)]
GATE, UP, DOWN = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))


def fitted(folder: Path, trunk: Path) -> dict[str, Tensor]:
    return fit_mlps(folder, trunk, list(batches(all_counted(DOCUMENTS), 200)))


def two(folder: Path, family: str = "llama") -> tuple[Path, Path]:
    """An expert, and the average trunk of it and another."""
    experts = [expert(folder / str(seed), seed=seed, family=family, tie_word_embeddings=False) for seed in (1, 2)]
    return experts[0], trunk_file(experts, folder / "trunk")


@torch.inference_mode()
def reads(model: nn.Module, module: str) -> Tensor:
    """[n, in] float64: what a module reads of the documents, one by one."""
    seen: list[Tensor] = []
    handle = model.get_submodule(module).register_forward_pre_hook(lambda _, given: seen.append(given[0][0].double()))
    for document in DOCUMENTS:
        model(torch.tensor([document]), use_cache=False)
    handle.remove()
    return torch.cat(seen)


def drawn_fit(inputs: Tensor, wanted: Tensor, own: Tensor) -> Tensor:
    """The textbook's ridge towards `own`."""
    shrinkage = (SHRINKAGE_TO_EXPERT * inputs.shape[1] / len(inputs) * inputs.pow(2).sum(dim=0).mean()) ** 0.5
    left = torch.cat([inputs, shrinkage * torch.eye(inputs.shape[1], dtype=torch.float64)])
    right = torch.cat([wanted, shrinkage * own.double().T])
    solution: Tensor = torch.linalg.lstsq(left, right).solution
    return solution.T


def test_it_runs_on_one_thread_and_leaves_as_many_as_there_were(tmp_path: Path) -> None:
    folder, trunk = two(tmp_path)
    threads: list[int] = []
    torch.set_num_threads(2)
    try:
        fit_mlps(
            folder,
            trunk,
            list(batches(all_counted(DOCUMENTS[:3]), 200)),
            done=lambda tokens: threads.append(torch.get_num_threads()),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {1}


def test_the_first_layer_is_the_textbook_s_fit(tmp_path: Path) -> None:
    folder, trunk = two(tmp_path)
    own, behind = expert_model(folder), domain_model(folder, trunk)[0]
    found = fitted(folder, trunk)
    mlp, norm = "model.layers.0.mlp", "model.layers.0.post_attention_layernorm"
    old, new = reads(own, mlp), reads(behind, mlp)
    for name in (GATE, UP):
        weight = Checkpoint(folder).tensor(name)
        expected = drawn_fit(new, old @ weight.double().T, weight)
        torch.testing.assert_close(found[name].double(), expected, rtol=0, atol=1e-4 * float(expected.std()))
    hidden = nn.functional.silu(new @ found[GATE].double().T) * (new @ found[UP].double().T)
    missing = reads(own, "model.layers.1.input_layernorm") - reads(behind, norm)
    expected = drawn_fit(hidden, missing, Checkpoint(folder).tensor(DOWN))
    torch.testing.assert_close(found[DOWN].double(), expected, rtol=0, atol=1e-3 * float(expected.std()))


@torch.inference_mode()
def divergence(one: nn.Module, other: nn.Module) -> float:
    """KL divergence of the next token's probabilities, in nats, averaged over the documents."""
    total, tokens = 0.0, 0
    for document in DOCUMENTS:
        left, right = (model(torch.tensor([document])).logits[0].log_softmax(dim=-1) for model in (one, other))
        total += float((left.exp() * (left - right)).sum())
        tokens += len(document)
    return total / tokens


PRE_NORM = sorted(name for name, family in FAMILIES.items() if family.gain)


@pytest.mark.parametrize("family", PRE_NORM)
def test_behind_the_trunk_the_fitted_mlps_say_more_nearly_what_the_expert_says(tmp_path: Path, family: str) -> None:
    folder, trunk = two(tmp_path, family)
    target = fit(folder, trunk, list(batches(all_counted(DOCUMENTS), 200)), tmp_path / "fitted")
    after = AutoModelForCausalLM.from_pretrained(target)
    own, before = expert_model(folder), domain_model(folder, trunk)[0]
    assert divergence(own, after) < 0.9 * divergence(own, before)


@pytest.mark.parametrize("family", PRE_NORM)
def test_behind_the_expert_s_own_trunk_nothing_changes(tmp_path: Path, family: str) -> None:
    folder = expert(tmp_path / "expert", seed=1, family=family)
    trunk = trunk_file([folder], tmp_path / "trunk")
    fit(folder, trunk, list(batches(all_counted(DOCUMENTS), 200)), tmp_path / "fitted")
    assert divergence(expert_model(folder), expert_model(tmp_path / "fitted")) < 1e-6


def test_a_fitted_expert_is_the_trunk_with_the_fitted_mlps(tmp_path: Path) -> None:
    folder, trunk = two(tmp_path)
    mlps = fitted(folder, trunk)
    found = Checkpoint(fit(folder, trunk, list(batches(all_counted(DOCUMENTS), 200)), tmp_path / "fitted"))
    merged = Checkpoint(trunk)
    assert found.specs.keys() == merged.specs.keys() | mlps.keys()
    assert all(torch.equal(found.tensor(name), merged.tensor(name)) for name in merged.specs)
    assert all(torch.equal(found.tensor(name), tensor) for name, tensor in mlps.items())
    assert sorted(path.name for path in (tmp_path / "fitted").iterdir()) == kept(folder)


def kept(folder: Path) -> Sequence[str]:
    """An expert's files that are needed to load it."""
    return sorted(path.name for path in folder.iterdir() if path.name != "generation_config.json")


def test_a_family_that_normalises_its_mlps_outputs_is_refused(tmp_path: Path) -> None:
    folder, trunk = two(tmp_path, "olmo2")
    with pytest.raises(IncompatibleExpertError, match="olmo2 normalises the outputs of its MLPs"):
        fitted(folder, trunk)
