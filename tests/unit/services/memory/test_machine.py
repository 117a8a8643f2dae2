"""The free memory of this machine, and of a container."""

from pathlib import Path

import pytest

from moerge.memory import machine
from moerge.memory.machine import free_bytes


@pytest.mark.parametrize(("number", "prefix"), [(0, ""), (1, "total_")])
def test_a_container_has_its_limit_without_used_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, prefix: str
) -> None:
    """Pages of files are free."""
    _, limit, used, _ = machine._CGROUPS[number]
    monkeypatch.setattr(machine, "_CGROUPS", ((str(tmp_path), limit, used, prefix),))
    stat = f"anon 700000\n{prefix}inactive_file 100000\n{prefix}active_file 50000\n"
    for name, content in ((limit, "1000000\n"), (used, "850000\n"), ("memory.stat", stat)):
        (tmp_path / name).write_text(content)
    assert free_bytes("cpu") == 300000
    (tmp_path / used).write_text("2000000\n")
    assert free_bytes("cpu") == 0
    (tmp_path / used).unlink()
    assert free_bytes("cpu") == 1000000
    (tmp_path / limit).write_text("max\n")
    unlimited = free_bytes("cpu")
    assert unlimited is not None
    assert unlimited > 1000000


def test_this_machine_has_memory() -> None:
    free = free_bytes("cpu")
    assert free is None or 2**20 < free < 2**50
