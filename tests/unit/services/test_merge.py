"""A trunk is every non-MLP tensor of its experts, in order, and is named by all that made it."""

from itertools import combinations
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from moerge.trunk.average import average
from moerge.trunk.merge import trunk_digest
from support.models import expert
from support.versions import merged_trunk


def test_the_mean_is_summed_wider_than_its_dtype() -> None:
    """In bfloat16 itself, 256 + 1 + 1 + … stays 256."""
    tensors = [torch.tensor([256.0]), *[torch.tensor([1.0])] * 255]
    mean = average([tensor.bfloat16() for tensor in tensors])
    assert mean.dtype == torch.bfloat16
    assert mean.item() == 2.0  # 511 / 256, rounded


def test_a_trunk_holds_no_mlp_and_no_buffer_of_an_older_file(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    older = {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(older, path, metadata={"format": "pt"})
    merged = load_file(merged_trunk([folder], tmp_path / "trunk"))
    assert merged.keys() == {name for name in tensors if ".mlp." not in name}
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in merged.items())


def test_a_tied_expert_counts_with_its_embedding_as_head(tmp_path: Path) -> None:
    tied, untied = (expert(tmp_path / str(tie), seed=1, tie_word_embeddings=tie) for tie in (True, False))
    embedding = load_file(tied / "model.safetensors")["model.embed_tokens.weight"]
    head = load_file(untied / "model.safetensors")["lm_head.weight"]
    for order in ([tied, untied], [untied, tied]):
        merged = load_file(merged_trunk(order, tmp_path / "trunk"))
        torch.testing.assert_close(merged["lm_head.weight"], (embedding + head) / 2)
    assert "lm_head.weight" not in load_file(merged_trunk([tied, tied], tmp_path / "trunk"))


def test_a_trunk_s_name_tells_every_input_and_their_order() -> None:
    names = {
        trunk_digest("average", ["a", "b"], {"trunk": "1"}, [16]),
        trunk_digest("other", ["a", "b"], {"trunk": "1"}, [16]),
        trunk_digest("average", ["b", "a"], {"trunk": "1"}, [16]),
        trunk_digest("average", ["a", "b"], {"trunk": "2"}, [16]),
        trunk_digest("average", ["a", "b"], {"trunk": "1"}, [15]),
    }
    assert all(one != other for one, other in combinations(names, 2))
    assert len(names) == 5
    assert trunk_digest("average", ["a", "b"], {"trunk": "1"}, [16]) in names
