"""A coordinator's home: made once, held by one process, its settings and schema checked."""

from pathlib import Path

from support.processes import Coordinator, coordinator, run_command


def test_a_second_coordinator_on_a_home_does_not_start(tmp_path: Path) -> None:
    with coordinator(tmp_path / "home") as first:
        second = run_command("coordinator", "serve", first.home, "--port", 0)
        assert second.returncode == 1
        assert "another coordinator is using this home" in second.stderr
        assert "Traceback" not in second.stderr


def test_half_files_of_a_killed_coordinator_are_removed(tmp_path: Path) -> None:
    server = Coordinator(tmp_path / "home")
    litter = [
        server.home / "blobs" / "incoming" / "half",
        server.home / "uploads" / "incoming" / "half",
        server.home / "experts" / ".half" / "config.json",
        server.home / "versions" / ".1.tmp" / "config.json",
    ]
    whole = server.home / "uploads" / "1" / "whole"
    for path in (*litter, whole):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    server.start()
    with server.client() as operator:
        assert operator.identity().role == "operator"
    server.stop()
    assert not any(path.exists() for path in litter)
    assert whole.exists()
