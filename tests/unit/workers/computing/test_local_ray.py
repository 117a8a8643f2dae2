"""A local Ray cluster: closed to the network, and to whoever doesn't know this process's token."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray

from moerge.models.dense_files import DenseFiles
from moerge.statistics.estimate import largest
from moerge.statistics.passes import RouterPass
from moerge.statistics.windows import Window
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.actors import Slots
from support.models import expert
from support.processes import marked

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in IPv6, and ::1, as the kernel writes them."""
LISTENING = "0A"


def listened_on(process: int) -> Iterator[str]:
    """The addresses at which a process takes connections."""
    own = set()
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # what lists them is among them
            own.add(os.readlink(path))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                yield fields[1].partition(":")[0]


def environment(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The parent of temporary folders; pytest's own are too long for Ray's sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.slow
def test_ray_uses_loopback_requires_token_and_private_folder(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOERGE_TEST_MARK", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    own, settings = expert(tmp_path / "expert", 1), StatisticsSettings()
    shard = largest(RouterPass(DenseFiles(own), DenseFiles(own), []), settings)
    window = Window([shard], [frozenset([shard.name])] * 3, tmp_path / "window.states", "", 1e9)
    sums: Any = Slots(None, 1, settings, print).compute(RouterPass(DenseFiles(own), DenseFiles(own), [0] * 3), [window])
    try:
        next(sums)
        processes = {**marked(str(tmp_path)), os.getpid(): "this one"}
        result = {command: set(listened_on(process)) for process, command in processes.items()}
        [server] = [process for process, command in processes.items() if "/gcs_server " in command]
        [folder] = short.glob("ray-*")
        assert list(folder.glob("r/session_*/sockets/raylet"))
        assert folder.stat().st_mode & 0o077 == 0
        assert environment(server)["RAY_AUTH_MODE"] == "token"
        assert environment(server)["RAY_AUTH_TOKEN"] == os.environ["RAY_AUTH_TOKEN"]
    finally:
        sums.close()
    assert sum(map(bool, result.values())) >= 4  # the server, the raylet, the actor, this one
    assert set().union(*result.values()) <= LOOPBACK, result
    assert not ray.is_initialized()
    assert list(short.glob("ray-*")) == []
