"""An expert and its seed, a home with texts, and a coordinator in memory."""

from pathlib import Path

import pytest

from moerge_proto.bodies import Body
from support.models import texts
from support.stages import MemoryClient, seeded


@pytest.fixture(scope="session")
def owner(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Body]:
    """The folder of an expert and its seed, and the body of a coordinator with the same seed."""
    folder = tmp_path_factory.mktemp("owner")
    return folder, seeded(folder)


@pytest.fixture
def folder(owner: tuple[Path, Body]) -> Path:
    return owner[0]


@pytest.fixture
def body(owner: tuple[Path, Body]) -> Body:
    return owner[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a worker whose key, and so whose splits, are the same in every run."""
    (tmp_path / "key").write_bytes(bytes(32))
    texts(tmp_path / "texts.jsonl", 1, 40)
    return tmp_path


@pytest.fixture
def client(body: Body) -> MemoryClient:
    return MemoryClient(body)
