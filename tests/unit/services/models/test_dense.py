"""The features' model: the body with the domain's own MLPs and head."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from moerge.models.dense import domain_model
from support.models import expert, on_body
from support.versions import body_file, logits

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize("tied", [(True, False), (False, True)])
def test_a_tied_expert_s_head_stays_its_own_embedding_under_a_body(tmp_path: Path, tied: tuple[bool, bool]) -> None:
    experts = [expert(tmp_path / str(i), seed=i, tie_word_embeddings=tie) for i, tie in enumerate(tied)]
    body = body_file(experts, tmp_path / "body")
    tensors = load_file(body)
    assert HEAD not in tensors
    for folder, tie in zip(experts, tied, strict=True):
        own = load_file(folder / "model.safetensors")[EMBEDDING if tie else HEAD]
        model, _ = domain_model(*on_body(folder, body))
        assert torch.equal(model.get_parameter(EMBEDDING), tensors[EMBEDDING])
        assert torch.equal(model.get_parameter(HEAD), own)


def test_tied_expert_with_a_stored_head_matches_transformers(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, HEAD: torch.randn(300, 32)}, folder / "model.safetensors", metadata={"format": "pt"})
    model, _ = domain_model(*on_body(folder, folder / "model.safetensors"))
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(logits(model), logits(stock), atol=1e-4, rtol=0)


def test_a_bfloat16_expert_is_computed_in_float32(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    path = folder / "model.safetensors"
    save_file({name: t.bfloat16() for name, t in load_file(path).items()}, path, metadata={"format": "pt"})
    model, gains = domain_model(*on_body(folder, path))
    assert {parameter.dtype for parameter in model.parameters()} == {gains.dtype} == {torch.float32}
    assert not model.training
