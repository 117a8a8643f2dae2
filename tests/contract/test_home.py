"""A coordinator's home: made once, held by one process, its settings and schema checked."""

from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.settings import read_settings
from support.processes import Coordinator, coordinator, run_command


def test_a_second_coordinator_on_a_home_refuses_to_start_and_says_why(tmp_path: Path) -> None:
    with coordinator(tmp_path / "home") as first:
        second = run_command("coordinator", "serve", first.home, "--port", 0)
        assert second.returncode == 1
        assert "another coordinator is using this home" in second.stderr
        assert "Traceback" not in second.stderr


def test_a_home_is_made_once(tmp_path: Path) -> None:
    token = initialise(tmp_path / "home")
    assert token.secret.startswith("moerge_")
    with pytest.raises(MoergeError, match="already a coordinator's home"):
        initialise(tmp_path / "home")
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot = 1", "prot"),
        ("port = 70000", "port"),
        ("port =", "TOML"),
        ('home = "/x"', "home"),
        ('database = "mysql://user:secret@host/name"', "database"),
        ('database = "other.sqlite"', "database"),
        ('[s3]\nbuket = "bucket"', "s3.buket"),
        ('[s3]\nbucket = "bucket"\nprefix = "/a/"', "s3.prefix"),
        ("sources = ['ftp://x']", "sources"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "coordinator.toml").write_text(text)
    with pytest.raises(MoergeError, match=named) as caught:
        read_settings(tmp_path)
    assert "secret" not in str(caught.value)
    assert caught.value.where == str(tmp_path / "coordinator.toml")


def test_a_folder_that_is_no_home_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match="not found") as caught:
        read_settings(tmp_path)
    assert "moerge coordinator init" in caught.value.todo


def test_what_a_killed_coordinator_left_half_made_is_swept_and_the_rest_stays(tmp_path: Path) -> None:
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
