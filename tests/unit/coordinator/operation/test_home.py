"""The folder of a coordinator: made once, held by one process, backed up without PostgreSQL's rows."""

import shutil
from pathlib import Path

import pytest

from moerge.client.version_key import make_version_key
from moerge.errors import MoergeError
from moerge_coordinator.operation.backups import back_up
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.version_key import KEY_FILE, PUBLIC_FILE
from moerge_proto.signatures import in_groups
from moerge_proto.version_signatures import fingerprint, public_pem
from support.federation import SILENT
from support.processes import Coordinator, coordinator, run_command


def test_a_home_is_made_once(tmp_path: Path) -> None:
    token = initialise(tmp_path / "home")
    assert token.secret.startswith("moerge_")
    with pytest.raises(MoergeError, match="already a coordinator's home"):
        initialise(tmp_path / "home")
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_a_home_whose_key_is_elsewhere_has_only_the_public_one(tmp_path: Path) -> None:
    key = public_pem(make_version_key(tmp_path / "key.pem"))
    (tmp_path / "key.pub").write_text(key)
    done = run_command("coordinator", "init", tmp_path / "home", "--version-key", tmp_path / "key.pub")
    assert (done.returncode, f"Key of versions: {in_groups(fingerprint(key))}" in done.stderr) == (0, True)
    assert ((tmp_path / "home" / PUBLIC_FILE).read_text(), (tmp_path / "home" / KEY_FILE).exists()) == (key, False)
    (tmp_path / "other").mkdir()
    make_version_key(tmp_path / "other" / KEY_FILE)
    with pytest.raises(MoergeError, match="the home has a private key"):
        initialise(tmp_path / "other", tmp_path / "key.pub")
    assert not (tmp_path / "other" / PUBLIC_FILE).exists()


def test_a_home_with_another_key_does_not_start(tmp_path: Path) -> None:
    initialise(home := tmp_path / "home")
    shutil.move(home / KEY_FILE, tmp_path / "key.pem")
    keys = make_version_key(tmp_path / "key.pem"), make_version_key(home / KEY_FILE)
    own, other = (in_groups(fingerprint(public_pem(key))) for key in keys)
    for command in ("serve", "check"):
        done = run_command("coordinator", command, home, "--port", 0)
        said = " ".join((done.stdout + done.stderr).split())
        assert (done.returncode, "Traceback" in said) == (1, False)
        assert f"the key of versions is {own}; this home has {other}" in said


def test_the_first_token_is_made_while_the_coordinator_serves(tmp_path: Path) -> None:
    """So a container needs no other one before it."""
    server = Coordinator(tmp_path / "home", "none yet", settings='log_level = "info"')
    server.start()
    with server.client(initialise(server.home).secret) as operator:
        assert operator.identity().role == "operator"
    server.stop()


def test_a_postgresql_database_is_left_to_its_own_tools(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database="postgresql://moerge:secret@db/moerge")
    with pytest.raises(MoergeError) as caught:
        back_up(settings, tmp_path / "backup", SILENT)
    assert "pg_dump --format=custom --file=moerge.dump" in caught.value.todo
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


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
