"""Attacks by a writer of the workflow database, or of a backup: none runs code (law 9)."""

import base64
import os
import pickle
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from dbos import DBOS

from moerge.files import file_sha256
from moerge_coordinator.operation.backups import Backup
from moerge_coordinator.storage.workflow_rows import foreign_rows
from support.federation import Federation, federation_of
from support.processes import run_command
from support.servers import Postgres


class Payload:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def poison(database: Path, folder: Path) -> str:
    """Turns all values of the newest workflow into pickles; its id."""
    pickled = base64.b64encode(pickle.dumps(Payload(folder))).decode()
    with closing(sqlite3.connect(database)) as connection, connection:
        [id_] = connection.execute("SELECT workflow_uuid FROM workflow_status ORDER BY created_at DESC").fetchone()
        connection.execute(
            "UPDATE workflow_status SET serialization = 'py_pickle', inputs = :pickled, output = :pickled,"
            " error = :pickled WHERE workflow_uuid = :id",
            {"pickled": pickled, "id": id_},
        )
    return str(id_)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("database"), "law") as made:
        yield made


def test_a_backup_with_a_pickle_is_not_restored(federation: Federation, tmp_path: Path) -> None:
    backup, home, ran = tmp_path / "backup", tmp_path / "home", tmp_path / "ran"
    federation.moerge("coordinator", "backup", federation.server.home, backup)
    made = Backup.model_validate_json((backup / "backup.json").read_bytes())
    database = backup / made.folder / "workflows.sqlite"
    id_ = poison(database, ran)
    databases = made.databases | {database.name: file_sha256(database)}
    (backup / "backup.json").write_text(made.model_copy(update={"databases": databases}).model_dump_json())
    refused = run_command("coordinator", "restore", backup, home, COLUMNS="400")
    assert refused.returncode == 1
    assert f"row '{id_}' of table workflow_status has values of format 'py_pickle'" in refused.stderr
    assert not home.exists()
    assert not ran.exists()


@pytest.mark.parametrize("command", ["verify", "check", "serve"])
def test_no_command_reads_a_pickle(federation: Federation, tmp_path: Path, command: str) -> None:
    home, ran = tmp_path / "home", tmp_path / "ran"
    federation.moerge("coordinator", "backup", federation.server.home, tmp_path / "backup")
    federation.moerge("coordinator", "restore", tmp_path / "backup", home)
    id_ = poison(home / "workflows.sqlite", ran)
    done = run_command("coordinator", command, home, *(["--port", 0] if command == "serve" else []), COLUMNS="400")
    assert done.returncode == 1
    assert f"row '{id_}' of table workflow_status" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not ran.exists()
    shutil.rmtree(home)


def test_a_serving_coordinator_reads_no_pickle(federation: Federation, tmp_path: Path) -> None:
    federation.add("art")
    id_ = poison(federation.server.home / "workflows.sqlite", tmp_path / "ran")
    entry = next(workflow for workflow in federation.operator.workflows() if workflow.id == id_)
    assert entry.state == "failed"
    assert federation.operator.workflow(id_).state == "failed"
    assert not (tmp_path / "ran").exists()


def test_pickles_in_postgresql_are_found(postgres: Postgres) -> None:
    url = postgres.database()
    assert list(foreign_rows(url)) == []
    DBOS.migrate(url)
    assert list(foreign_rows(url)) == []
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO dbos.workflow_status (workflow_uuid, serialization) VALUES ('w', 'py_pickle')")
    [problem] = foreign_rows(url)
    assert problem.startswith("row 'w' of table workflow_status has values of format 'py_pickle'")
