"""A dense model's files, each opened once."""

import pickle
from copy import copy
from pathlib import Path

import pytest

from moerge.errors import MoergeError
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


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    folder = expert(tmp_path, 1)
    assert DenseFiles(folder).tokenizer.vocab_size
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(MoergeError, match="the tokenizer can't be read"):
        _ = DenseFiles(folder).tokenizer
