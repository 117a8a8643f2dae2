"""Which parts of its seed an expert keeps, bit by bit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.models.dense_files import DenseFiles
from moerge.models.keeping import all_keep, keeping
from moerge.models.reader import Checkpoint
from support.models import DISTINCT, adapter, expert, keeping_expert

TINY = 2.0**-24


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("seed") / "seed", 1)


@pytest.mark.parametrize(
    ("changed", "body", "head"),
    [
        ({}, (), ()),
        ({"layers__1__self_attn__k_proj__weight": TINY}, ("model.layers.1.self_attn.k_proj.weight",), ()),
        ({"embed_tokens__weight": TINY}, ("model.embed_tokens.weight",), ()),
        ({"2__input_layernorm__weight": 2**-10}, ("model.layers.2.input_layernorm.weight",), ()),
        ({"model__norm__weight": 2**-10}, (), ("model.norm.weight",)),
        ({"lm_head__weight": TINY}, (), ("lm_head.weight",)),
    ],
)
def test_one_bit_of_one_tensor_counts(
    tmp_path: Path, seed: Path, changed: dict[str, float], body: tuple[str, ...], head: tuple[str, ...]
) -> None:
    own = DenseFiles(keeping_expert(tmp_path / "own", seed, 2, **changed))
    found = keeping(own, DenseFiles(seed))
    assert (found.body, found.head) == (body, head)
    assert (found.keeps_body, found.keeps_head) == (not body, not head)
    assert str(found).startswith("keeps the seed's body" if not body else "has another body than the seed")
    assert all_keep([keeping(DenseFiles(seed), DenseFiles(seed)), found]) == (not body, not body and not head)


@pytest.mark.parametrize("family", DISTINCT)
def test_every_family_s_mlps_may_change(tmp_path: Path, family: str) -> None:
    seed = expert(tmp_path / "seed", 1, family)
    found = keeping(DenseFiles(keeping_expert(tmp_path / "own", seed, 2)), DenseFiles(seed))
    assert found.keeps_body
    assert found.keeps_head


def test_a_head_that_is_tied_in_one_of_two_is_compared_by_its_rows(tmp_path: Path, seed: Path) -> None:
    tied = expert(tmp_path / "tied", 1, tie_word_embeddings=True)
    untied = keeping_expert(tmp_path / "untied", tied, 2)
    tensors = load_file(untied / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, untied / "model.safetensors")
    assert keeping(DenseFiles(untied), DenseFiles(tied)).keeps_head
    assert "lm_head.weight" in keeping(DenseFiles(seed), DenseFiles(tied)).head


def test_values_are_compared_in_the_wider_number_format(tmp_path: Path, seed: Path) -> None:
    half = keeping_expert(tmp_path / "half", seed, 2)
    rounded = {name: tensor.bfloat16() for name, tensor in load_file(half / "model.safetensors").items()}
    save_file(rounded, half / "model.safetensors", {"format": "pt"})
    wide = keeping_expert(tmp_path / "wide", half, 3)
    save_file({name: tensor.float() for name, tensor in rounded.items()}, wide / "model.safetensors", {"format": "pt"})
    assert keeping(DenseFiles(wide), DenseFiles(half)).keeps_body
    found = keeping(DenseFiles(seed), DenseFiles(half))
    assert found.rounded
    assert "equal in the seed's number format: save the expert in it" in str(found)


def test_a_missing_tensor_and_another_shape_are_differences(tmp_path: Path, seed: Path) -> None:
    own = keeping_expert(tmp_path / "own", seed, 2)
    tensors = load_file(own / "model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    tensors["model.embed_tokens.weight"] = torch.zeros(1, 32)
    save_file(tensors, own / "model.safetensors", {"format": "pt"})
    found = keeping(DenseFiles(own), DenseFiles(seed))
    assert found.body == ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight")


def test_of_an_adapter_on_the_seed_the_changed_tensors_alone_are_read(
    tmp_path: Path, seed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(checkpoint: Checkpoint, name: str) -> None:
        raise AssertionError(name)

    own, base = DenseFiles(adapter(tmp_path / "mlps", seed, 2, "up_proj", "down_proj")), DenseFiles(seed)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "tensor", unread)
        assert keeping(own, base).keeps_all
    queries = [f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(3)]
    assert keeping(DenseFiles(adapter(tmp_path / "queries", seed, 2)), base).body == tuple(queries)


def test_an_adapter_on_another_model_than_the_seed_is_compared_as_a_whole(tmp_path: Path, seed: Path) -> None:
    other = keeping_expert(tmp_path / "other", seed, 2, layers__0__self_attn__k_proj__weight=TINY)
    own = DenseFiles(adapter(tmp_path / "own", other, 2, "up_proj"))
    assert keeping(own, DenseFiles(seed)).body == ("model.layers.0.self_attn.k_proj.weight",)
