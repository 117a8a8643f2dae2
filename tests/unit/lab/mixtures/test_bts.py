"""BTS: stitch layers by their formulas, and closed gates."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from moerge_lab.mixtures.base import observed
from moerge_lab.mixtures.bts import Bts, Gates, Stitch, places
from unit.lab.mixtures.test_bam import FAMILIES, folders, logits, require_same_after_a_load, stirred

LN3 = torch.log(torch.tensor(3.0))


def stitch(*, into_hub: bool) -> Stitch:
    """A hub and one expert, H = 1: the projection is 5; the gates' logits are 0 and ln 3 at a hub of 1."""
    made = Stitch(1, 2, into_hub=into_hub)
    made.eval()
    made.projections[0].get_parameter("weight").data.fill_(5)
    made.gate.weight.data = torch.stack([0 * LN3, LN3]).view(2, 1)
    return made


def test_experts_into_hub() -> None:
    """Equation 1: the softmax weights the hub with 1/4 and the projected expert with 3/4."""
    hub, other = stitch(into_hub=True)([torch.ones(1, 1, 1), 2 * torch.ones(1, 1, 1)])
    assert (hub.item(), other.item()) == (pytest.approx(0.25 * 1 + 0.75 * 10), 10)


def test_hub_into_experts() -> None:
    """Equation 2: the sigmoid leaves the expert 1/4 and gives it 3/4 of the projected hub."""
    hub, other = stitch(into_hub=False)([torch.ones(1, 1, 1), 2 * torch.ones(1, 1, 1)])
    assert (hub.item(), other.item()) == (1, pytest.approx(0.25 * 2 + 0.75 * 5))


@pytest.mark.parametrize(
    ("layers", "stitches", "expected"),
    [
        (20, 4, {4: False, 9: True, 14: False, 19: True}),  # section 3.1
        (3, 3, {0: True, 1: False, 2: True}),
        (20, 1, {19: True}),  # section D.3
        (30, 4, {6: False, 13: True, 20: False, 27: True}),
    ],
)
def test_stitch_layers_alternate_and_end_with_experts_into_hub(
    layers: int, stitches: int, expected: dict[int, bool]
) -> None:
    assert places(layers, stitches) == expected
    assert set(places(layers, stitches, alternating=False).values()) == {True}


def closed(gates: nn.Module, inputs: object, weights: Tensor) -> Tensor:
    """All weight for the hub."""
    return (torch.arange(weights.shape[-2]) == 0).float()[:, None].expand_as(weights)


@pytest.mark.parametrize("name", FAMILIES)
def test_with_closed_gates_it_is_the_seed(tmp_path: Path, name: str) -> None:
    family, settings = FAMILIES[name]
    members = folders(tmp_path, family, **settings)
    model = stirred(Bts.of(members))
    assert isinstance(model, Bts)
    wanted = logits(AutoModelForCausalLM.from_pretrained(members["seed"]))
    assert not torch.allclose(logits(model), wanted, atol=0.01)
    for module in filter(lambda module: isinstance(module, Gates), model.modules()):
        module.register_forward_hook(closed)
    assert torch.equal(logits(model), wanted)


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_saved_loaded_and_generates_the_same(tmp_path: Path, name: str) -> None:
    family, settings = FAMILIES[name]
    model = stirred(Bts.of(folders(tmp_path, family, **settings), 2))
    assert isinstance(model, Bts)
    require_same_after_a_load(model, tmp_path / "saved")


def test_gates_are_dense_matrices_for_every_member(tmp_path: Path) -> None:
    """Table 1: 4 x (3 + 4) x 3072^2 = 264 M for three experts; here 3 x (2 + 3) x 32^2."""
    model = Bts.of(folders(tmp_path))
    assert sum(item.numel() for item in model.added().values()) == 3 * (2 + 3) * 32**2
    with observed(model) as seen:
        logits(model)
    assert [tuple(weights.shape) for _, weights in seen] == [(2, 20, 3, 32)] * 3
    torch.testing.assert_close(seen[-1][1], torch.full((2, 20, 3, 32), 1 / 3))
