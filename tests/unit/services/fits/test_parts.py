"""An expert's parts: its own or fitted MLPs and its head in a folder of their own."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from moerge.errors import CheckpointError
from moerge.fits.parts import part_bytes, write_parts
from moerge.models.dense import domain_model, expert_model, part_names, require_parts
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_small_files, expert_files
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.models.families.registry import FAMILIES
from moerge.models.reader import Checkpoint
from support.models import adapter, expert
from support.versions import logits


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_parts_are_the_expert_s_mlps_and_head_and_nothing_of_its_body(tmp_path: Path, family: str, tied: bool) -> None:
    own = DenseFiles(expert(tmp_path / "expert", 1, family, tie_word_embeddings=tied))
    parts = DenseFiles(write_parts(own, tmp_path / "parts"))
    require_parts(parts)
    assert sorted(parts.checkpoint.specs) == sorted(part_names(own))
    for name, spec in parts.checkpoint.specs.items():
        stored = EMBEDDING if name == HEAD and HEAD not in own.checkpoint.specs else name
        assert spec.dtype == own.checkpoint.specs[stored].dtype
        assert torch.equal(parts.checkpoint.tensor(name), own.checkpoint.tensor(stored)), name
    assert part_bytes(own) == sum(spec.bytes for spec in parts.checkpoint.specs.values())
    model, _ = domain_model(parts, own)
    torch.testing.assert_close(logits(model), logits(expert_model(own)), rtol=0, atol=0)


def test_parts_have_config_tokenizer_and_generation_files(tmp_path: Path) -> None:
    own = DenseFiles(expert(tmp_path / "expert", 1, tie_word_embeddings=True))
    parts = DenseFiles(write_parts(own, tmp_path / "parts"))
    assert (
        sorted(expert_files(parts)) == sorted(expert_files(own)) == sorted(path.name for path in parts.folder.iterdir())
    )
    before, after = (json.loads(item.side_file("config.json").read_text()) for item in (own, parts))
    assert after == {**before, "tie_word_embeddings": False}
    check_small_files(parts, own, "the expert")
    assert len(AutoTokenizer.from_pretrained(parts.folder)) == len(own.tokenizer)


def test_equal_experts_have_equal_parts(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1)
    one, two = (write_parts(DenseFiles(folder), tmp_path / name) for name in ("one", "two"))
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()


def test_an_adapter_s_parts_are_merged_with_its_base(tmp_path: Path) -> None:
    base = expert(tmp_path / "base", 1)
    own = DenseFiles(adapter(tmp_path / "adapter", base, 2))
    parts = DenseFiles(write_parts(own, tmp_path / "parts"))
    require_parts(parts)
    changed = [
        name
        for name in part_names(own)
        if not torch.equal(parts.checkpoint.tensor(name), Checkpoint(base).tensor(name))
    ]
    assert changed == [f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(3)]
    assert all(torch.equal(parts.checkpoint.tensor(name), own.checkpoint.tensor(name)) for name in part_names(own))


def test_given_mlps_are_written_in_the_expert_s_dtype(tmp_path: Path) -> None:
    own = DenseFiles(expert(tmp_path / "expert", 1))
    parts = Checkpoint(write_parts(own, tmp_path / "parts", lambda name: 2 * own.checkpoint.tensor(name).double()))
    for name in part_names(own):
        factor = 2 if ".mlp." in name else 1
        assert torch.equal(parts.tensor(name), factor * own.checkpoint.tensor(name)), name


def test_an_interrupted_writer_leaves_no_weights(tmp_path: Path) -> None:
    own = DenseFiles(expert(tmp_path / "expert", 1))

    def interrupted(name: str) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parts(own, tmp_path / "parts", interrupted)
    with pytest.raises(CheckpointError, match="no safetensors weights"):
        Checkpoint(tmp_path / "parts")
