"""The problems that `moerge coordinator check` finds before a start."""

import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.operation.preflight import problems
from moerge_coordinator.settings import Settings


def same(settings: Settings) -> Settings:
    return settings


def found(home: Path, **environment: str) -> dict[str, str]:
    """Where -> what, of each problem; each says what to do."""
    told = list(problems(home, environment, same))
    assert all(problem.todo for problem in told)
    return {problem.where: problem.what for problem in told}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    initialise(tmp_path / "home")
    (tmp_path / "home" / "coordinator.toml").write_text("port = 0\n")
    return tmp_path / "home"


def test_a_good_home_has_no_problems(home: Path) -> None:
    assert found(home) == {}


def test_every_problem_is_reported_at_once(home: Path) -> None:
    told = list(problems(home, {"MOERGE_COORDINATOR_PORT": "x", "MOERGE_COORDINATOR_HOTS": "y"}, same))
    assert sorted(problem.where for problem in told) == [
        "environment variable MOERGE_COORDINATOR_HOTS",
        "environment variable MOERGE_COORDINATOR_PORT",
    ]


def test_a_taken_port_is_a_problem(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "in use" in found(home, MOERGE_COORDINATOR_PORT=port)["port"]


def test_a_host_of_another_machine_is_a_problem(home: Path) -> None:
    told = found(home, MOERGE_COORDINATOR_HOST="192.0.2.1")
    assert "can't listen on 192.0.2.1" in told["port"]


def test_plain_http_on_a_public_address_is_a_problem(home: Path) -> None:
    assert "plain HTTP" in found(home, MOERGE_COORDINATOR_HOST="0.0.0.0")["host"]  # noqa: S104
    for host in ("localhost", "127.0.0.2"):
        assert found(home, MOERGE_COORDINATOR_HOST=host) == {}


def test_missing_and_invalid_tls_files_are_problems(home: Path) -> None:
    certificate, key = home / "certificate.pem", home / "key.pem"
    alone = list(problems(home, {"MOERGE_COORDINATOR_TLS_KEY": str(key)}, same))
    assert "give both" in alone[0].what
    files = {"MOERGE_COORDINATOR_TLS_CERTIFICATE": str(certificate), "MOERGE_COORDINATOR_TLS_KEY": str(key)}
    assert found(home, **files).keys() == {"tls_certificate", "tls_key"}
    for path in (certificate, key):
        path.write_text("not PEM")
    assert found(home, **files).keys() == {"tls_certificate"}


def test_a_folder_without_settings_or_database_is_a_problem(tmp_path: Path) -> None:
    [problem] = problems(tmp_path / "nowhere", {}, same)
    assert "moerge coordinator init" in problem.todo
    (tmp_path / "coordinator.toml").write_text("port = 0\n")
    [problem] = problems(tmp_path, {}, same)
    assert (problem.what, problem.where) == ("no database", str(tmp_path / "coordinator.sqlite"))


def test_a_schema_of_a_newer_build_is_refused(home: Path) -> None:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    assert "newer than this build" in found(home)[str(home / "coordinator.sqlite")]
    shutil.copy(home / "coordinator.toml", home.parent)
    with pytest.raises(MoergeError, match="newer than this build"):
        initialise(home)


def test_a_nearly_full_disk_is_a_problem(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moerge_coordinator.operation.preflight._LEAST_FREE", shutil.disk_usage(home).free + 2**40)
    assert "are free" in found(home)[str(home)]


def test_a_home_that_can_t_be_written_is_a_problem(home: Path) -> None:
    told = list(problems(Path("/proc/self/fd"), {}, same))
    assert "can't be written" in told[-1].what
