"""An expert, a home with texts, and a coordinator in memory."""

from pathlib import Path

import pytest

from moerge.trunk.merge import DENSE_BODY_FILE
from support.models import texts
from support.stages import MemoryClient, own_body


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an expert, and of the body that is its own."""
    return own_body(tmp_path_factory.mktemp("owner"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a worker whose key, and so whose splits, are the same in every run."""
    (tmp_path / "key").write_bytes(bytes(32))
    texts(tmp_path / "texts.jsonl", 1, 40)
    return tmp_path


@pytest.fixture
def client(folder: Path) -> MemoryClient:
    return MemoryClient(folder / DENSE_BODY_FILE)
