"""Settings of every test: one thread, no hub, no progress bars. Tests import the heavy libraries that they need."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from moerge.blobs.s3 import S3
    from support.servers import Postgres

os.environ["HF_HUB_OFFLINE"] = "1"  # both are read when huggingface_hub is imported
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
importlib.import_module("support.uncollected")  # until all tests are collected


def pytest_collection_finish() -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    importlib.import_module("support.frozen")


@pytest.fixture(scope="session")
def postgres() -> Iterator["Postgres"]:
    from support.servers import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server."""
    from support.servers import store_server

    with store_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture
def s3(s3_server: str) -> "S3":
    """An empty place in the store."""
    from support.servers import place

    return place(s3_server)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The demo's experts are in the cache; training takes longer than a shell waits."""
    command = [sys.executable, str(Path(__file__).parents[1] / "examples" / "experts.py")]
    subprocess.run(command, cwd=tmp_path_factory.mktemp("links"), check=True)  # noqa: S603  # our own script
