"""Recipes of mixtures: what training moves, what it leaves bit for bit, and that it resumes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from moerge.errors import MoergeError
from moerge.scoring.perplexity import Rows
from moerge_lab.mixtures.base import Mixture
from moerge_lab.mixtures.bts import Bts
from moerge_lab.mixtures.heterogeneous import Heterogeneous
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.mixtures import members
from moerge_lab.recipes.models import Loaded, load
from moerge_lab.training import checkpoint
from moerge_lab.training.job import Job, train
from moerge_lab.training.loop import Run
from support.progress import Stopped
from support.recipes import fleet, logits, only, state

HELD = Rows(torch.tensor([[3 * column % 250 for column in range(30)]]), [30], "")


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return fleet(tmp_path_factory.mktemp("fleet"))


@pytest.mark.parametrize(
    ("spec", "moves"),
    [
        ("bam", None),
        ("bam:routing=top2", None),
        ("bam-adapters", {"router", "adapters"}),
        ("bts", {"gate", "projections"}),
        ("bts:hub=2,stitches=1,alternating=0", {"gate", "projections"}),
    ],
)
def test_what_is_frozen_stays_bit_for_bit(on: Fleet, spec: str, moves: set[str] | None) -> None:
    options = f"{spec}{',' if ':' in spec else ':'}train=96,batch=2"
    before, model = state(only(f"{options},rate=0", on)), only(options, on)
    after = state(model)
    changed = {name for name, old in before.items() if not torch.equal(old, after[name])}
    assert isinstance(model, Loaded)
    assert model.trained is not None
    assert isinstance(model.model, Mixture)
    added = model.model.added()
    if moves is None:
        assert changed == after.keys()
        assert model.trained.parameters == sum(item.numel() for item in after.values())
    else:
        assert changed == added.keys()
        assert {part for name in changed for part in moves if f".{part}." in name} == moves
        assert model.trained.parameters == sum(item.numel() for item in added.values())


def test_the_seed_is_the_hub_unless_another_is_named(on: Fleet) -> None:
    hubs = [only(f"bts:hub={hub},train=32,batch=2,rate=0", on) for hub in (0, 2)]
    assert [hub.model.config.members for hub in hubs if isinstance(hub, Loaded)] == [
        ["seed", "d0", "d1", "d2"],
        ["d1", "seed", "d0", "d2"],
    ]
    with pytest.raises(MoergeError, match="hub is 4"):
        only("bts:hub=4,train=32,batch=2", on)


def test_domains_are_drawn_by_size_without_upweighting(on: Fleet) -> None:
    one, other = (state(only(f"bts:train=96,batch=2,upweight={value}", on)) for value in (1, 0))
    assert all(torch.equal(one[name], other[name]) for name in one), "all domains have as many rows"


@pytest.mark.parametrize("kind", [Bts, Heterogeneous])
def test_a_training_that_is_cut_goes_on_to_the_same_bytes(
    on: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Bts | Heterogeneous]
) -> None:
    """Also with the gates' dropout."""
    monkeypatch.setattr(checkpoint, "SECONDS", 0)
    sources = [domain.training for domain in on.domains]

    def trained(folder: Path, stop: int = 0) -> dict[str, Tensor]:
        model = Bts.of(members(on, {})) if kind is Bts else Heterogeneous.of(members(on, {}), 0, 2)
        run, progress = Run(6, 2, 3e-3), Stopped(stop * 2 * 16)
        train(Job(model, run, sources, trains="added", folder=folder, progress=progress))
        return model.state_dict()

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", 4)
    whole, again = trained(tmp_path / "whole"), trained(tmp_path / "cut")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_before_training_open_gates_share_equally(on: Fleet) -> None:
    """So the hub's state behind the only stitch layer is the mean of all members' last states."""
    untrained = only("bts:stitches=1,train=32,batch=2,rate=0", on)
    hub = load(on.seed_model)
    norm, head = hub.get_submodule("model.norm"), hub.get_submodule("lm_head")
    states: list[Tensor] = []
    for folder in members(on, {}).values():
        model = load(folder)
        model.get_submodule("model.norm").register_forward_pre_hook(lambda module, inputs: states.append(inputs[0]))
        with torch.inference_mode():
            model(HELD.ids)
    with torch.inference_mode():
        wanted = head(norm(torch.stack(states).mean(0)))
        torch.testing.assert_close(logits(untrained, HELD), wanted)
