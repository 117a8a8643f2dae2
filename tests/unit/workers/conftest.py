"""An expert, a home with texts, and a coordinator in memory."""

from pathlib import Path

import pytest
from safetensors.torch import save_file

from moerge.models.dense import trunk_names
from moerge.models.expert_folder import DenseExpert
from moerge.trunk.merge import DENSE_TRUNK_FILE
from support.models import expert, texts
from support.stages import MemoryClient


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an expert, and of the trunk that is its own."""
    folder = tmp_path_factory.mktemp("owner")
    own = DenseExpert("law", expert(folder / "expert", 1))
    names = trunk_names(own.checkpoint, own.family, own.config.num_hidden_layers)
    save_file({name: own.checkpoint.tensor(name) for name in names}, folder / DENSE_TRUNK_FILE)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a worker whose key, and so whose splits, are the same in every run."""
    (tmp_path / "key").write_bytes(bytes(32))
    texts(tmp_path / "texts.jsonl", 1, 40)
    return tmp_path


@pytest.fixture
def client(folder: Path) -> MemoryClient:
    return MemoryClient(folder / DENSE_TRUNK_FILE)
