"""The features' model is the trunk with the domain's own MLPs, and a trunk that strays is refused by tensor."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.errors import IncompatibleExpertError
from moerge.models.dense import domain_model
from moerge.trunk.stray import require_near
from support.models import expert
from support.versions import logits, trunk_file

NORM = "model.layers.1.input_layernorm.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def changed(folder: Path, name: str, tensor: Tensor | None) -> Path:
    """A trunk file like the expert's own, but with another tensor under `name`, or none."""
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if tensor is None else {**tensors, name: tensor}, folder / "trunk", metadata={"format": "pt"})
    return folder / "trunk"


@pytest.mark.parametrize("tied", [(True, False), (False, True)])
def test_a_tied_expert_beside_an_untied_one_keeps_the_trunk_s_embedding(
    tmp_path: Path, tied: tuple[bool, bool]
) -> None:
    """Their trunk has a head of its own, which must not replace the embedding of a model whose config says tied."""
    experts = [expert(tmp_path / str(i), seed=i, tie_word_embeddings=tie) for i, tie in enumerate(tied)]
    trunk = trunk_file(experts, tmp_path / "trunk")
    tensors = load_file(trunk)
    assert not torch.equal(tensors[HEAD], tensors[EMBEDDING])
    for folder in experts:
        model, _ = domain_model(folder, trunk)
        assert torch.equal(model.get_parameter(EMBEDDING), tensors[EMBEDDING])
        assert torch.equal(model.get_parameter(HEAD), tensors[HEAD])


def test_a_tied_expert_with_a_head_in_its_file_computes_as_transformers_does(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, HEAD: torch.randn(300, 32)}, folder / "model.safetensors", metadata={"format": "pt"})
    model, _ = domain_model(folder, folder / "model.safetensors")
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(logits(model), logits(stock), atol=1e-4, rtol=0)


def test_a_bfloat16_expert_is_computed_in_float32(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    path = folder / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path, metadata={"format": "pt"})
    model, gains = domain_model(folder, path)
    assert {parameter.dtype for parameter in model.parameters()} == {gains.dtype} == {torch.float32}
    assert not model.training


def test_an_expert_whose_vocabulary_is_longer_than_the_trunk_s_is_told_so(tmp_path: Path) -> None:
    short, long = expert(tmp_path / "short", 1), expert(tmp_path / "long", 1, vocab_size=304)
    with pytest.raises(IncompatibleExpertError, match="another shape") as caught:
        require_near(long, short / "model.safetensors", 1.0)
    assert "merge a trunk that your expert is in" in caught.value.todo
    assert require_near(short, long / "model.safetensors", 10.0) >= 0


def test_the_distance_is_that_of_the_furthest_tensor(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    assert require_near(folder, folder / "model.safetensors", 0.0) == 0.0
    own = load_file(folder / "model.safetensors")[NORM]
    assert require_near(folder, changed(folder, NORM, own * 1.25), 0.3) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda own: own * 1.5, "strays by 0.5"),
        (lambda own: own * torch.nan, "strays by nan"),
        (lambda own: own[:-1].clone(), "another shape"),
        (lambda own: None, "lacks it"),
    ],
)
def test_a_trunk_that_is_not_near_is_refused_by_tensor(tmp_path: Path, change: object, what: str) -> None:
    assert callable(change)
    folder = expert(tmp_path / "expert", seed=1)
    own = load_file(folder / "model.safetensors")[NORM]
    with pytest.raises(IncompatibleExpertError, match=what) as caught:
        require_near(folder, changed(folder, NORM, change(own)), 0.4)
    assert caught.value.where == NORM
