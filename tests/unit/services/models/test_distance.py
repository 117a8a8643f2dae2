"""Honest experts of every family pass; a tensor or a row that lies apart is found, whoever came first."""

from collections.abc import Callable
from pathlib import Path
from shutil import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moerge.errors import IncompatibleExpertError
from moerge.models.dense_files import DenseFiles
from moerge.models.distance import Distance, distance, require_near_others
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.models.families.registry import FAMILIES
from moerge.models.reader import Checkpoint
from moerge_coordinator.settings import Settings
from support.federation import SILENT
from support.models import expert

LIMIT = Settings(home=Path()).expert_max_distance
QUERY = "model.layers.1.self_attn.q_proj.weight"


def near(folder: Path, *others: Path, limit: float = LIMIT) -> None:
    with SILENT.track("", 1, "B") as tracker:
        named = {f"the expert of {other.name!r}": Checkpoint(other) for other in others}
        require_near_others(DenseFiles(folder), named, limit, "the newcomer", tracker)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_honest_experts_are_near_each_other(tmp_path: Path, family: str) -> None:
    one, other, further = (expert(tmp_path / str(seed), seed=seed, family=family) for seed in (1, 2, 3))
    near(one, other)
    near(further, one, other)


def test_unequal_vocabularies_are_compared_on_common_rows(tmp_path: Path) -> None:
    tied = expert(tmp_path / "tied", seed=2, tie_word_embeddings=True)
    short = expert(tmp_path / "short", seed=1)
    longer = changed(short, tmp_path / "longer", EMBEDDING, lambda rows: torch.cat([rows, 9 * rows[:10]]))
    for one, other in ((short, longer), (longer, short), (tied, longer), (longer, tied)):
        near(one, other)


def changed(folder: Path, to: Path, name: str, change: Callable[[Tensor], Tensor]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    to.mkdir()
    copy(folder / "config.json", to)
    save_file({**tensors, name: change(tensors[name]).contiguous()}, to / "model.safetensors", {"format": "pt"})
    return to


def one_row(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[:7], 30 * tensor[7:8], tensor[8:]])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (QUERY, lambda tensor: 10 * tensor),
        (QUERY, torch.zeros_like),
        (QUERY, lambda tensor: -tensor),
        (EMBEDDING, lambda tensor: tensor + 2 * tensor.std() * torch.randn_like(tensor)),
        (EMBEDDING, one_row),
        (HEAD, one_row),
        ("model.norm.weight", lambda tensor: 3 * tensor),
    ],
    ids=["scaled", "zero", "negated", "noised", "row", "head row", "gain"],
)
def test_a_tensor_that_lies_apart_is_refused_by_name(
    tmp_path: Path, name: str, change: Callable[[Tensor], Tensor]
) -> None:
    one, other, third = (expert(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3))
    odd = changed(one, tmp_path / "odd", name, change)
    with pytest.raises(IncompatibleExpertError, match="the newcomer") as caught:
        near(odd, third)
    assert caught.value.where == name
    assert "expert_max_distance" in caught.value.todo
    near(odd, third, limit=100 if change is not torch.zeros_like else 1e40)
    near(other, odd, third)
    near(other, odd, third, one)
    with pytest.raises(IncompatibleExpertError):
        near(other, odd)


def test_distance_is_relative_to_the_smaller_norm() -> None:
    ones = torch.ones(4, 9)
    assert distance(3 * ones, ones) == distance(ones, 3 * ones) == Distance(2.0)
    assert distance(ones, -ones).whole == 2.0
    assert distance(torch.zeros(3, 3), torch.zeros(3, 3)).whole == 0.0
    assert distance(torch.zeros(9), torch.full((9,), 0.01)).whole == pytest.approx(0.2), "a bias of 0.05 is small"
    unused = torch.cat([torch.zeros(1, 9), ones])
    assert distance(unused, torch.ones(5, 9), rows=True).row == pytest.approx((5 / 4) ** 0.5)
    assert distance(ones, torch.ones(6, 9), rows=True) == Distance(0.0, 0.0)
