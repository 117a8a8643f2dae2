"""A dense model's files, each opened once."""

import pickle
from copy import copy
from pathlib import Path

import pytest

from moerge.errors import CheckpointError
from moerge.models.bounds import feature_gains
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import model_shapes
from moerge.statistics.passes import RouterPass
from support.models import expert


def test_a_pass_with_open_files_is_sent_as_paths(tmp_path: Path) -> None:
    own = DenseExpert("law", expert(tmp_path, 1))
    work = RouterPass(own, DenseBody(tmp_path / "model.safetensors", own.config), [16] * 3)
    closed = len(pickle.dumps(work))
    feature_gains(work.body)
    work.weights()
    assert own.digest
    assert len(pickle.dumps(work)) == closed < 5000
    assert copy(own).config.to_dict() == own.config.to_dict()


def test_a_model_of_a_config_leaves_it_unchanged(tmp_path: Path) -> None:
    own = DenseFiles(expert(tmp_path, 1))
    before = own.config.to_dict(), own.config._attn_implementation
    model_shapes(own.config)
    assert expert_model(own).config is not own.config
    assert (own.config.to_dict(), own.config._attn_implementation) == before


MODEL = '"model": {"type": "BPE", "vocab": {}, "merges": []}'
FUTURE = f'{{"version": "1.0", "added_tokens": [], {MODEL}, "pre_tokenizer": {{"type": "Later"}}}}'
"""Written by a later library of tokenizers."""


@pytest.mark.parametrize(
    ("files", "what", "todo"),
    [
        ({}, "no tokenizer", "save_pretrained"),
        ({"tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["code.Own", null]}}'}, "is code", "tokenizer.json"),
        ({"tokenizer.json": FUTURE}, "can't read it", "newer tokenizers"),
        ({"tokenizer.json": "version https://git-lfs.github.com/spec/v1"}, "Git LFS", "git lfs pull"),
        ({"tokenizer.json": "<!DOCTYPE html><p>Sign in"}, "web page", "download it again"),
        ({"tokenizer.json": "\ufeff{}"}, "byte order mark", "UTF-8 without"),
        ({"tokenizer.model": "no pieces"}, "can't be read", "tokenizer"),
    ],
)
def test_an_unreadable_tokenizer_is_refused_by_its_reason(
    tmp_path: Path, files: dict[str, str], what: str, todo: str
) -> None:
    folder = expert(tmp_path, 1)
    assert DenseFiles(folder).tokenizer.vocab_size
    for path in folder.glob("*token*"):
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=what) as caught:
        _ = DenseFiles(folder).tokenizer
    assert todo in caught.value.todo
    assert caught.value.where.startswith(str(folder))
