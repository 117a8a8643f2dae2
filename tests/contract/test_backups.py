"""Backups of a serving coordinator, restored homes, damage."""

import json
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from moerge.blobs.local import LocalBlobs
from moerge.cli.common import wait
from moerge.errors import MoergeError
from moerge_coordinator.operation.backups import restore
from moerge_coordinator.operation.findings import Finding
from moerge_coordinator.operation.verify import verify
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.version_key import PUBLIC_FILE
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import NewVersion
from support.federation import SILENT, Federation, federation_of
from support.processes import Coordinator, moerge, run_command


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two experts, two contributions and a version."""
    with federation_of(tmp_path_factory.mktemp("backups"), "law", "art") as federation:
        federation.contribute(federation.body())
        federation.solve()
        yield federation


@pytest.fixture(scope="module")
def served(federation: Federation) -> Coordinator:
    return federation.server


@pytest.fixture(scope="module")
def backup(served: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar file of the served home."""
    target = tmp_path_factory.mktemp("backup") / "good.tar"
    moerge("coordinator", "backup", served.home, target)
    return target


def content(home: Path) -> dict[str, bytes]:
    places = ("blobs", "versions")
    files = [path for place in places for path in (home / place).rglob("*") if path.is_file()]
    return {str(path.relative_to(home)): path.read_bytes() for path in files}


def failed(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = run_command("coordinator", *arguments, COLUMNS="400")
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done


def rows(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        return list(database.iterdump())


def test_a_restored_home_serves_the_same(served: Coordinator, federation: Federation, tmp_path: Path) -> None:
    homes = {name: tmp_path / f"from-{name}" for name in ("backup", "backup.tar")}
    (tmp_path / "backup").mkdir(mode=0o755)
    for name, home in homes.items():
        target = tmp_path / name
        moerge("coordinator", "backup", served.home, target)
        tops = [path for path in target.rglob("*") if path.parent == target or path.suffix == ".sqlite"] or [target]
        assert not any(path.stat().st_mode & 0o077 for path in tops)
        moerge("coordinator", "restore", target, home)
        assert content(home) == content(served.home)
        assert home.stat().st_mode & 0o777 == 0o700
        assert (home / PUBLIC_FILE).read_bytes() == (served.home / PUBLIC_FILE).read_bytes()
        assert "0 damaged, 0 litter" in moerge("coordinator", "verify", home)
    assert rows(homes["backup"]) == rows(homes["backup.tar"])
    again = Coordinator(homes["backup.tar"], served.operator_token)
    again.start()
    try:
        with again.client() as restored:
            operator = federation.operator
            assert list(restored.versions()) == list(operator.versions())
            assert list(restored.contributions()) == list(operator.contributions())
            new = NewVersion(options=SolveOptions(top_k=2))
            one, other = (wait(client, client.solve_version(new)) for client in (restored, operator))
            assert restored.version(int(one)).lineage == operator.version(int(other)).lineage
            assert restored.version(int(one)).key is None  # backups don't have the private key
    finally:
        again.stop()
    assert list(tmp_path.glob(".*")) == []


def test_a_second_backup_copies_only_new_files(served: Coordinator, federation: Federation, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    moerge("coordinator", "backup", served.home, target)
    before = {path: path.stat().st_ino for path in target.glob("blobs/??/*")}
    (target / "blobs" / "00" / ("0" * 64)).parent.mkdir(exist_ok=True)
    (target / "blobs" / "00" / ("0" * 64)).write_bytes(b"of an earlier time")
    federation.solve(options=SolveOptions(ridge_lambda=0.5))
    moerge("coordinator", "backup", served.home, target)
    after = {path: path.stat().st_ino for path in target.glob("blobs/??/*")}
    assert before.items() < after.items()
    assert target / "blobs" / "00" / ("0" * 64) not in after
    assert len(list(target.glob("databases-*"))) == 1


@pytest.mark.slow
def test_backups_during_solves_are_whole(served: Coordinator, tmp_path: Path) -> None:
    done = threading.Event()

    def busy() -> None:
        for number in range(20):
            if done.is_set():
                return
            with served.client() as operator:
                wait(operator, operator.solve_version(NewVersion(options=SolveOptions(ridge_lambda=2 + number))))

    worker = threading.Thread(target=busy)
    worker.start()
    try:
        for turn in range(3):
            moerge("coordinator", "backup", served.home, tmp_path / "backup")
            home = tmp_path / f"home-{turn}"
            moerge("coordinator", "restore", tmp_path / "backup", home)
            assert findings(home) == []
    finally:
        done.set()
        worker.join()


@pytest.fixture
def home(backup: Path, tmp_path: Path) -> Path:
    """A restored home, whose files are copies."""
    restore(backup, tmp_path / "home", SILENT)
    return tmp_path / "home"


def findings(home: Path) -> list[Finding]:
    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        return verify(settings, database, LocalBlobs(home / "blobs"), SILENT)


def expert_blob(home: Path) -> Path:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        [[files]] = database.execute("SELECT files FROM experts WHERE domain = 'law'").fetchall()
    digest: str = {file["name"]: file["sha256"] for file in json.loads(files)}["model.safetensors"]
    return home / "blobs" / digest[:2] / digest


def alter(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


def test_an_altered_blob_is_named_with_its_users(home: Path) -> None:
    blob = expert_blob(home)
    alter(blob)
    shown = failed("verify", home).stdout
    assert "altered" in shown
    assert f"blobs/{blob.parent.name}/{blob.name}" in shown
    for user in ("expert", "of law", "owner law-owner", "from a backup"):
        assert user in shown
    assert "1 damaged, 0 litter" in shown


def test_a_missing_blob_and_its_view_are_named(home: Path) -> None:
    view = next((home / "versions" / "1").glob("model-router.safetensors"))
    blob = next(path for path in (home / "blobs").glob("??/*") if path.samefile(view))
    blob.unlink()
    view.unlink()
    result = findings(home)
    assert [item.what for item in result] == ["missing", "missing"]
    assert "version 1 as model-router.safetensors" in result[0].needed_by
    assert result[1].file == "versions/1/model-router.safetensors"


def replaced_view(home: Path) -> str:
    path = next((home / "versions" / "1").glob("config.json"))
    path.unlink()
    path.write_text("{}")
    return "versions/1/config.json"


def linked_view(home: Path) -> str:
    path = next((home / "versions" / "1").glob("config.json"))
    path.unlink()
    path.symlink_to("/etc/hostname")
    return "versions/1/config.json"


def added_to_a_view(home: Path) -> str:
    (home / "versions" / "1" / "remote_code.py").write_text("print()")
    return "versions/1/remote_code.py"


def changed_lineage(home: Path) -> str:
    _execute(home, "UPDATE versions SET lineage = replace(lineage, '0.001', '0.002') WHERE number = 1")
    return "version 1"


def changed_expert(home: Path) -> str:
    _execute(home, "UPDATE experts SET files = replace(files, 'config.json', 'konfig.json') WHERE domain = 'law'")
    return next(name for name in _names(home) if name.endswith("of law"))


def changed_body(home: Path) -> str:
    _execute(home, "UPDATE bodies SET exponents = '[1]'")
    return next(name for name in _names(home) if name.startswith("body"))


def _names(home: Path) -> list[str]:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        experts = database.execute("SELECT digest, domain FROM experts").fetchall()
        bodies = database.execute("SELECT digest FROM bodies").fetchall()
    return [*(f"expert {row[0][:12]} of {row[1]}" for row in experts), *(f"body {row[0][:12]}" for row in bodies)]


def _execute(home: Path, statement: str) -> None:
    with sqlite3.connect(home / "coordinator.sqlite") as database:
        assert database.execute(statement).rowcount
    database.close()


@pytest.mark.parametrize(
    "damage", [replaced_view, linked_view, added_to_a_view, changed_lineage, changed_expert, changed_body]
)
def test_changed_views_and_rows_are_named(home: Path, damage: Callable[[Path], str]) -> None:
    named = damage(home)
    result = findings(home)
    assert all(item.damage for item in result)
    assert any(named in (item.file, *item.needed_by) for item in result)


def test_litter_is_no_damage(home: Path) -> None:
    places = [f"blobs/aa/{'a' * 64}", "versions/7777/config.json", "uploads/88/chunk"]
    for place in places:
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_bytes(b"litter")
    result = findings(home)
    expected = [places[0], "uploads/88", "versions/7777"]
    assert [(item.file, item.damage) for item in result] == [(place, False) for place in expected]
    assert "0 damaged, 3 litter" in moerge("coordinator", "verify", home)


def test_a_damaged_backup_is_not_restored(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    for number, spoil in enumerate((altered_blob, missing_blob, altered_database, no_contents, truncated_tar)):
        shutil.unpack_archive(backup, target, filter="data")
        source = spoil(backup, target)
        home = tmp_path / f"home-{number}"
        with pytest.raises(MoergeError):
            restore(source, home, SILENT)
        assert not home.exists()
        assert list(tmp_path.glob(".*")) == []
        shutil.rmtree(target)


def altered_blob(tar: Path, folder: Path) -> Path:
    alter(max(folder.glob("blobs/??/*"), key=lambda path: path.stat().st_size))
    return folder


def missing_blob(tar: Path, folder: Path) -> Path:
    next(folder.glob("blobs/??/*")).unlink()
    return folder


def altered_database(tar: Path, folder: Path) -> Path:
    alter(next(folder.glob("databases-*/coordinator.sqlite")))
    return folder


def no_contents(tar: Path, folder: Path) -> Path:
    (folder / "backup.json").unlink()
    return folder


def truncated_tar(tar: Path, folder: Path) -> Path:
    cut = tar.with_name("cut.tar")
    cut.write_bytes(tar.read_bytes()[: tar.stat().st_size // 2])
    return cut


def test_nothing_is_overwritten(served: Coordinator, backup: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    assert "not a backup" in failed("backup", served.home, tmp_path / "full").stderr
    assert "is not empty" in failed("restore", backup, tmp_path / "full").stderr
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
