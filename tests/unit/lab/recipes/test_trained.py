"""Trained recipes: what they start from, what they leave as it was, and that their models are stock."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from moerge.errors import MoergeError
from moerge.scoring.perplexity import Rows
from moerge.scoring.routers import routers
from moerge_lab.recipes.base import Fleet, Model
from moerge_lab.recipes.models import Loaded
from support.recipes import fleet, logits, only, state

HELD = Rows(torch.tensor([[3 * column % 250 for column in range(30)]]), [30], "")
STILL = "train=96,batch=2,rate=0"


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return fleet(tmp_path_factory.mktemp("fleet"))


@torch.inference_mode()
def told(model: Model) -> Tensor:
    return logits(model, HELD)


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        (f"dume-plus:{STILL}", "dume"),
        (f"dume-plus-gate:{STILL}", "dume"),
        (f"btx:start=ridge,{STILL}", "dume:k=2"),
        (f"btx:start=ridge,routing=soft,{STILL}", "dume:k=3"),
        (f"btx:start=ridge,body=ties,scale=0.3,{STILL}", "dume-ties:k=2,scale=0.3"),
        (f"btx:start=recommended,{STILL}", "recommended:k=2"),
        (f"btx:start=fitted,routing=gumbel,{STILL}", "recommended:fit=1"),
    ],
)
def test_a_training_starts_from_the_untrained_recipe(on: Fleet, spec: str, same: str) -> None:
    """With a learning rate of 0 nothing else is left."""
    torch.testing.assert_close(told(only(spec, on)), told(only(same, on)))


@pytest.mark.parametrize("spec", [f"upcycling:{STILL}", f"seed-continued:{STILL}"])
def test_copies_of_the_seed_are_the_seed_before_training(on: Fleet, spec: str) -> None:
    assert on.base is not None
    torch.testing.assert_close(told(only(spec, on)), told(Loaded.of(on.base)))


def test_routers_of_btx_are_random_small_and_of_the_seed(on: Fleet) -> None:
    model = only(f"btx:seed=1,{STILL}", on)
    assert isinstance(model, Loaded)
    weights = torch.cat([router.get_parameter("weight").flatten() for router in routers(model.model)])
    assert len(weights) == 3 * 4 * 32, "three experts and the seed in three layers"
    assert weights.std().item() == pytest.approx(0.02, rel=0.2)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of tensors with other bits; of an expert's gate and up matrix, each half by itself."""
    result = set[str]()
    for name, old in before.items():
        if "gate_up_proj" in name:
            halves = zip(("gate", "up"), old.chunk(2, 1), after[name].chunk(2, 1), strict=True)
            result |= {f"{name} {half}" for half, one, other in halves if not torch.equal(one, other)}
        elif not torch.equal(old, after[name]):
            result.add(name)
    return result


@pytest.mark.parametrize(
    ("spec", "moves"),
    [
        ("dume-plus", {"gate.weight"}),
        ("dume-plus:routing=eq4", {"gate.weight"}),
        ("dume-plus:routing=top2", {"gate.weight"}),
        ("dume-plus-gate", {"gate_up_proj gate"}),
        ("btx-gate", {"gate.weight", "gate_up_proj gate"}),
        ("btx-router", {"gate.weight"}),
    ],
)
def test_the_rest_stays_bit_for_bit(on: Fleet, spec: str, moves: set[str]) -> None:
    with_options = f"{spec}{',' if ':' in spec else ':'}train=96,batch=2"
    before, after = (state(only(item, on)) for item in (f"{with_options},rate=0", with_options))
    result = changed(before, after)
    assert {name.rpartition("mlp.")[2].removeprefix("experts.") for name in result} == moves
    layers = {name.split(".")[2] for name in result}
    assert layers == {"0", "1", "2"}


@pytest.mark.parametrize("spec", ["btx:routing=soft,balance=0.1", "btx:routing=gumbel", "upcycling:balance=0.01"])
def test_all_parameters_are_trained_and_counted(on: Fleet, spec: str) -> None:
    before, model = only(f"{spec},train=96,batch=2,rate=0", on), only(f"{spec},train=96,batch=2", on)
    after = state(model)
    assert {name.split()[0] for name in changed(state(before), after)} == after.keys()
    assert model.trained is not None
    assert model.trained.parameters == sum(item.numel() for item in after.values())
    assert model.trained.tokens == 96


def test_gate_training_counts_half_of_the_joined_matrices(on: Fleet) -> None:
    model = only("btx-gate:train=32,batch=2", on)
    assert model.trained is not None
    assert model.trained.parameters == 3 * (3 * 32 + 3 * 48 * 32)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_trained_model_is_saved_loaded_and_generates_the_same(tmp_path: Path, family: str) -> None:
    settings = {"head_dim": 8} if family == "qwen3" else {}
    model = only("btx:train=96,batch=2", fleet(tmp_path, 2, family=family, **settings))
    assert isinstance(model, Loaded)
    model.model.save_pretrained(tmp_path / "saved")
    again: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    torch.testing.assert_close(told(Loaded(again.eval())), told(model))
    ids = HELD.ids[:, :8]
    one, other = (item.generate(ids, max_new_tokens=8, do_sample=False) for item in (again, model.model))  # type: ignore[operator]
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("btx:start=ridge,seed=1", "the seed model has no statistics"),
        ("btx:start=recommended,body=ties", "body of its own"),
        ("btx:routing=top3", "no routing 'top3'.*top1, top2, soft"),
    ],
)
def test_options_that_contradict_each_other_are_refused(on: Fleet, spec: str, said: str) -> None:
    with pytest.raises(MoergeError, match=f"(?s){said}"):
        only(spec, on)


def test_a_domain_without_text_for_training_is_named(tmp_path: Path) -> None:
    on = fleet(tmp_path, 2)
    short = replace(on.domains[1], training=torch.empty(0, 16, dtype=torch.int64))
    with pytest.raises(MoergeError, match=r"d1.*less text for training"):
        only("btx:train=32", replace(on, domains=[on.domains[0], short]))


def test_a_seed_of_the_table_draws_routers_and_text_anew(on: Fleet) -> None:
    one, other = (state(only("btx-router:train=96,batch=2", item)) for item in (on, replace(on, seed=1)))
    again = state(only("btx-router:train=96,batch=2", on))
    name = next(item for item in one if item.endswith("gate.weight"))
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])


def test_a_trained_model_is_ready_for_inference(on: Fleet) -> None:
    model = only("btx:train=32,batch=2", on)
    assert isinstance(model, Loaded)
    assert not model.model.training
    assert not any(parameter.requires_grad for parameter in model.model.parameters())
