"""Attacks by a coordinator, or on one, that its public log shows: publications for one victim, altered logs."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from moerge_coordinator.operation.verify import verify
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.stores import stores
from moerge_proto.messages import FileEntry
from moerge_proto.progress import Obstacle
from moerge_proto.public_log import LogEntry, LogHead, version_content
from moerge_proto.recipes import SolveOptions
from moerge_proto.version_files import BODY_FILE
from moerge_workers import commands
from support.federation import SILENT, Federation, Member, federation_of
from support.models import expert
from support.worker import Worker, worker_of

OWN = "model-expert-00001.safetensors"
SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
TABLES = ("versions", "public_log", "bodies")
UNCHANGED = "your MLPs are unchanged; the body is unchanged"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("log"), "art", **SMALL) as made:
        made.contribute(made.body())
        with closing(sqlite3.connect(made.server.home / "coordinator.sqlite")) as database:
            for event in ("update", "delete"):
                database.execute(f"DROP TRIGGER public_log_no_{event}")
        yield made


@pytest.fixture(scope="module")
def worker(federation: Federation) -> Iterator[Worker]:
    """law's worker, which doesn't evaluate. It has contributed."""
    law = federation.join("law", expert(federation.folder / "law", 9, **SMALL))
    with worker_of(federation.server, law, federation.folder, federation.seed) as made:
        made.write("a.jsonl", 0, 200)
        assert made.run(fit=False) == "ran"
        yield made


@pytest.fixture
def rows(federation: Federation, worker: Worker) -> Iterator[sqlite3.Connection]:
    """The coordinator's database behind a new version; after the test its rows are honest again."""
    count = sum(1 for _ in federation.operator.versions())
    federation.solve(options=SolveOptions(ridge_lambda=1 + count))
    with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite", isolation_level=None)) as database:
        tables = {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}  # noqa: S608  # fixed
        yield database
        for name, kept in tables.items():
            marks = ", ".join("?" * len(kept[0]))
            database.execute(f"DELETE FROM {name} WHERE number > ?", (len(kept),))  # noqa: S608  # fixed
            database.executemany(f"INSERT OR REPLACE INTO {name} VALUES ({marks})", kept)  # noqa: S608  # fixed


@pytest.fixture
def home(rows: sqlite3.Connection, worker: Worker, tmp_path: Path) -> Path:
    """A copy of the worker's home, before it knows the new version."""
    return shutil.copytree(worker.home, tmp_path / "home")


def rewrite(rows: sqlite3.Connection, log: list[LogEntry]) -> None:
    """Replaces the log by these entries, chained anew."""
    rows.execute("DELETE FROM public_log")
    head = LogHead()
    for entry in log:
        chained = entry.model_copy(update={"number": head.size + 1, "previous": head.hash})
        created = chained.created.strftime("%Y-%m-%d %H:%M:%S.%f")
        stored = (chained.number, chained.kind, chained.name, chained.digest, chained.previous, created)
        names = "number, kind, name, digest, previous, created"
        rows.execute(f"INSERT INTO public_log ({names}) VALUES (?, ?, ?, ?, ?, ?)", stored)  # noqa: S608  # fixed
        head = LogHead(size=chained.number, hash=chained.hash)


def serve_other(rows: sqlite3.Connection, name: str) -> list[FileEntry]:
    """Serves the newest version with another file of that name."""
    number, files = rows.execute("SELECT number, files FROM versions ORDER BY number DESC LIMIT 1").fetchone()
    other = [{**file, "sha256": "0" * 64} if file["name"] == name else file for file in json.loads(files)]
    assert json.dumps(other) != json.dumps(json.loads(files))
    rows.execute("UPDATE versions SET files = ? WHERE number = ?", (json.dumps(other), number))
    return [FileEntry(name=file["name"], sha256=file["sha256"], size=1) for file in other]


def history(federation: Federation, member: Member, home: Path, *options: str) -> Result:
    """`moerge worker history --log` of an owner with that home."""
    home.mkdir(exist_ok=True)
    values = {"domain": member.domain, "expert": str(member.folder), "data": ["*.jsonl"]}
    (home / "worker.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    environment = {"MOERGE_COORDINATOR": federation.server.url, "MOERGE_TOKEN": member.token}
    return CliRunner().invoke(commands.app, ["history", "--log", "--home", str(home), *options], env=environment)


def head_in(said: str) -> str:
    [line] = [line.removeprefix("head: ") for line in said.splitlines() if line.startswith("head: ")]
    return line


def found(federation: Federation) -> set[str]:
    """The findings of the operator's `verify` about the public log."""
    settings = read_settings(federation.server.home)
    with closing(open_database(settings.database)) as database:
        result = verify(settings, database, stores(settings)[0], SILENT)
    return {user for item in result if item.file == "the public log" for user in item.needed_by}


def test_owners_of_an_honest_coordinator_have_one_head(
    federation: Federation, worker: Worker, home: Path, tmp_path: Path
) -> None:
    assert worker.run(fit=False, home=str(home)) == "ran"
    assert f"is compared with your own files: {UNCHANGED}" in worker.log()
    law = history(federation, worker.member, home)
    art = history(federation, federation.members["art"], tmp_path / "art", "--head", head_in(law.output))
    assert (law.exit_code, art.exit_code) == (0, 0), law.output + art.output
    assert head_in(law.output) == head_in(art.output)
    assert UNCHANGED in law.output
    assert "signed by the key" in law.output
    federation.solve(options=SolveOptions(ridge_lambda=0.5))
    later = history(federation, worker.member, home, "--head", head_in(art.output))
    assert later.exit_code == 0
    assert head_in(later.output) != head_in(art.output)
    assert found(federation) == set()


@pytest.mark.parametrize("name", [OWN, BODY_FILE])
def test_a_new_version_with_another_body_or_own_mlps_is_refused_without_evaluation(
    federation: Federation, worker: Worker, rows: sqlite3.Connection, home: Path, name: str
) -> None:
    other = version_content(serve_other(rows, name))
    log = list(federation.operator.log())
    rewrite(rows, [*log[:-1], log[-1].model_copy(update={"digest": other})])  # published so
    for _ in range(2):
        assert f"refused: {name} differs" in worker.run(fit=False, home=str(home))
    assert Obstacle.VERSION_ALTERED in [item.obstacle for item in federation.operator.progress()]
    assert f"refused: {name} differs" in history(federation, worker.member, home).output


def test_a_version_for_one_victim_shows(
    federation: Federation, worker: Worker, rows: sqlite3.Connection, home: Path
) -> None:
    number = list(federation.operator.log())[-1].name
    serve_other(rows, "model-router.safetensors")
    assert f"version {number} was served with the digest" in worker.run(fit=False, home=str(home))
    assert Obstacle.LOG_DIFFERS in [item.obstacle for item in federation.operator.progress()]
    assert f"version {number}" in found(federation)
    shown = history(federation, worker.member, home)
    assert shown.exit_code == 1
    assert f"differs: version {number} was served with the digest" in shown.output


def test_a_body_for_one_victim_shows(
    federation: Federation, worker: Worker, rows: sqlite3.Connection, home: Path
) -> None:
    rows.execute("UPDATE bodies SET exponents = '[3, 3]'")
    assert "was served with the digest" in worker.run(fit=False, home=str(home))
    assert history(federation, worker.member, home).exit_code == 1
    assert f"body {federation.body().digest}" in found(federation)


def rewritten(log: list[LogEntry]) -> list[LogEntry]:
    return [log[0].model_copy(update={"digest": "0" * 64}), *log[1:]]


def truncated(log: list[LogEntry]) -> list[LogEntry]:
    return log[:-1]


def restored(log: list[LogEntry]) -> list[LogEntry]:
    """An older backup, whose coordinator has published another version since."""
    return [*log[:-2], log[-1].model_copy(update={"digest": "1" * 64}), log[-2]]


def test_a_second_entry_for_a_version_stops_the_worker(
    federation: Federation, worker: Worker, rows: sqlite3.Connection, home: Path
) -> None:
    """Otherwise one log could have a victim's version, and then everybody else's of the same number."""
    table = rows.execute("SELECT sql FROM sqlite_master WHERE name = 'public_log'").fetchone()[0]
    log = list(federation.operator.log())
    rows.execute("ALTER TABLE public_log RENAME TO unique_log")
    rows.execute(table.replace("UNIQUE (kind, name)", "CHECK (kind != name)"))
    rewrite(rows, [*log, log[-1].model_copy(update={"digest": "0" * 64})])
    said, verified = worker.run(fit=False, home=str(home)), found(federation)
    rows.execute("DROP TABLE public_log")
    rows.execute("ALTER TABLE unique_log RENAME TO public_log")
    again = f"entry {len(log) + 1} publishes version {log[-1].name} again"
    assert again in said
    assert again in verified


@pytest.mark.parametrize("alter", [rewritten, truncated, restored])
def test_a_log_that_does_not_extend_the_known_one_stops_the_worker(
    federation: Federation,
    worker: Worker,
    rows: sqlite3.Connection,
    home: Path,
    alter: Callable[[list[LogEntry]], list[LogEntry]],
    tmp_path: Path,
) -> None:
    honest = head_in(history(federation, worker.member, home).output)
    rewrite(rows, alter(list(federation.operator.log())))
    assert "doesn't extend the one seen before" in worker.run(fit=False, home=str(home))
    assert found(federation) != set()
    assert history(federation, worker.member, home).exit_code == 1
    art = history(federation, federation.members["art"], tmp_path / "art", "--head", honest)  # which saw no other log
    assert art.exit_code == 1
    assert honest in art.output
    accepted = history(federation, worker.member, home, "--accept")
    assert (accepted.exit_code, head_in(accepted.output)) == (0, head_in(art.output))
    assert history(federation, worker.member, home).exit_code == 0
