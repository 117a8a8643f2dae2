"""The problems that `moerge coordinator check` finds before a start."""

import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from moerge.blobs.s3 import S3
from moerge.errors import MoergeError
from moerge_coordinator import log
from moerge_coordinator.commands import serve
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.operation.preflight import problems
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import open_database
from support.pooler import pooler, refusing
from support.processes import run_command
from support.servers import CREDENTIALS, Postgres
from support.servers import settings as toml


def same(settings: Settings) -> Settings:
    return settings


def listed(home: Path, **environment: str) -> dict[str, str]:
    """Where -> what of every problem; all have a remedy."""
    rows = list(problems(home, environment, same))
    assert all(problem.todo for problem in rows)
    return {problem.where: problem.what for problem in rows}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    initialise(tmp_path / "home")
    (tmp_path / "home" / "coordinator.toml").write_text("port = 0\n")
    return tmp_path / "home"


def test_a_good_home_has_no_problems(home: Path) -> None:
    assert listed(home) == {}


def test_every_problem_is_reported_at_once(home: Path) -> None:
    rows = list(problems(home, {"MOERGE_COORDINATOR_PORT": "x", "MOERGE_COORDINATOR_HOTS": "y"}, same))
    assert sorted(problem.where for problem in rows) == [
        "environment variable MOERGE_COORDINATOR_HOTS",
        "environment variable MOERGE_COORDINATOR_PORT",
    ]


def test_a_taken_port_is_a_problem(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "in use" in listed(home, MOERGE_COORDINATOR_PORT=port)["port"]


def test_a_taken_port_stops_serve_with_its_remedy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "configure", lambda level: None)  # pytest has its own
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MoergeError, match="Address already in use") as caught:
            serve(home, port=taken.getsockname()[1])
    assert "choose another" in caught.value.todo


def test_a_command_in_a_remedy_quotes_its_folder(tmp_path: Path) -> None:
    [problem] = problems(tmp_path / "home dir é", {}, same)
    assert problem.todo == f"run: moerge coordinator init '{tmp_path / 'home dir é'}'"


def test_a_host_of_another_machine_is_a_problem(home: Path) -> None:
    rows = listed(home, MOERGE_COORDINATOR_HOST="192.0.2.1")
    assert "can't listen on 192.0.2.1" in rows["port"]


def test_plain_http_on_a_public_address_is_a_problem(home: Path) -> None:
    assert "plain HTTP" in listed(home, MOERGE_COORDINATOR_HOST="0.0.0.0")["host"]  # noqa: S104
    for host in ("localhost", "127.0.0.2"):
        assert listed(home, MOERGE_COORDINATOR_HOST=host) == {}


def test_missing_and_invalid_tls_files_are_problems(home: Path) -> None:
    certificate, key = home / "certificate.pem", home / "key.pem"
    alone = list(problems(home, {"MOERGE_COORDINATOR_TLS_KEY": str(key)}, same))
    assert "give both" in alone[0].what
    files = {"MOERGE_COORDINATOR_TLS_CERTIFICATE": str(certificate), "MOERGE_COORDINATOR_TLS_KEY": str(key)}
    assert listed(home, **files).keys() == {"tls_certificate", "tls_key"}
    for path in (certificate, key):
        path.write_text("not PEM")
    assert listed(home, **files).keys() == {"tls_certificate"}


def test_a_folder_without_settings_or_database_is_a_problem(tmp_path: Path) -> None:
    [problem] = problems(tmp_path / "nowhere", {}, same)
    assert "moerge coordinator init" in problem.todo
    (tmp_path / "coordinator.toml").write_text("port = 0\n")
    [problem] = problems(tmp_path, {}, same)
    assert (problem.what, problem.where) == ("no database", str(tmp_path / "coordinator.sqlite"))


def of_database(home: Path, url: str) -> list[MoergeError]:
    return list(problems(home, {"MOERGE_COORDINATOR_DATABASE": url}, same))


def test_an_empty_postgresql_database_is_empty_until_it_is_made(home: Path, postgres: Postgres) -> None:
    url = postgres.database()
    [problem] = of_database(home, url)
    assert (problem.where, problem.what) == ("database", "the database is empty")
    assert problem.todo == f"run: moerge coordinator init {home}"
    (home / "coordinator.toml").write_text(f'port = 0\ndatabase = "{url}"\n')
    initialise(home)
    assert listed(home) == {}


def test_a_file_that_is_no_database_is_named_with_the_reason(home: Path) -> None:
    (home / "coordinator.sqlite").write_bytes(b"law" * 999)
    [problem] = problems(home, {}, same)
    assert (problem.where, problem.what) == (
        str(home / "coordinator.sqlite"), "can't be read: file is not a database",
    )  # fmt: skip


def test_a_pooler_that_shares_sessions_is_refused(home: Path, postgres: Postgres) -> None:
    with pooler(postgres.database()) as url:
        [problem] = of_database(home, url)
        assert "one session" in problem.what
        assert "session mode" in problem.todo
        with pytest.raises(MoergeError, match="one session"):
            open_database(url)


@pytest.mark.parametrize(
    ("change", "what", "todo"),
    [
        (("/postgres?", "/nowhere?"), 'database "nowhere" does not exist', "CREATE DATABASE"),
        (("postgres:@", "nobody:@"), 'role "nobody" does not exist', "CREATE ROLE"),
        (("?host=", "?host=/nowhere"), "No such file", "runs and listens"),
        (("@/", "@nowhere.invalid/", "?host=", "?application_name="), "nowhere.invalid", "correct the host"),
        (("@/", "@127.0.0.1:1/", "?host=", "?application_name="), "Connection refused", "runs and listens"),
    ],
)
def test_a_database_that_can_t_be_reached_has_the_fault_s_remedy(
    change: tuple[str, ...], what: str, todo: str, home: Path, postgres: Postgres
) -> None:
    url = postgres.url
    for old, new in zip(change[::2], change[1::2], strict=True):
        url = url.replace(old, new)
    [problem] = of_database(home, url)
    assert (problem.where, what in problem.what, todo in problem.todo) == ("database", True, True), problem
    with pytest.raises(MoergeError) as caught:
        open_database(url)
    assert (caught.value.what, caught.value.todo) == (problem.what, problem.todo)


@pytest.mark.parametrize(
    ("message", "todo"),
    [
        ("unsupported startup parameter: options", "session mode"),
        ("unsupported startup parameter in options: lock_timeout", "session mode"),
        ('password authentication failed for user "moerge"', "correct user and password"),
        ("SASL authentication failed", "correct user and password"),
        ('no pg_hba.conf entry for host "10.0.0.1", user "moerge", no encryption', "pg_hba.conf"),
        ("connection is insecure (try using `sslmode=require`)", "?sslmode=require"),
        ("sorry, too many clients already", "max_connections"),
        ("the database system is starting up", "wait"),
        ("Datenbank nicht verfügbar", "runs and listens"),
    ],
)
def test_a_server_s_refusal_has_its_remedy(message: str, todo: str, home: Path) -> None:
    with refusing(message) as url:
        [problem] = of_database(home, url)
    assert message in problem.what
    assert todo in problem.todo


def test_encryption_that_a_server_lacks_is_named(home: Path) -> None:
    with refusing("") as url:
        [problem] = of_database(home, f"{url}?sslmode=require")
    assert "remove sslmode" in problem.todo


def test_a_user_who_may_not_make_tables_is_named(postgres: Postgres) -> None:
    url = postgres.database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN")
    with pytest.raises(MoergeError, match="permission denied for schema public") as caught:
        open_database(url.replace("postgres:@", "reader:@"))
    assert "OWNER" in caught.value.todo


def test_a_schema_of_a_newer_build_is_refused(home: Path) -> None:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    assert "is another build's" in listed(home)[str(home / "coordinator.sqlite")]
    shutil.copy(home / "coordinator.toml", home.parent)
    with pytest.raises(MoergeError, match="is another build's"):
        initialise(home)


def test_a_nearly_full_disk_is_a_problem(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moerge_coordinator.operation.preflight._LEAST_FREE", shutil.disk_usage(home).free + 2**40)
    assert "are free" in listed(home)[str(home)]


def test_a_home_that_can_t_be_written_is_a_problem(home: Path) -> None:
    rows = list(problems(Path("/proc/self/fd"), {}, same))
    assert "can't be written" in rows[-1].what


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({}, ""),
        ({"bucket": "moerge-other"}, "NoSuchBucket"),
        ({"endpoint": "http://127.0.0.1:1"}, "can't be used: no answer, error sending request"),
    ],
)
def test_a_store_is_tried_with_its_settings(home: Path, s3: S3, change: dict[str, str], what: str) -> None:
    (home / "coordinator.toml").write_text(f"port = 0\n{toml(None, s3.model_copy(update=change))}")
    result = listed(home).get("s3", "")
    assert (bool(result), what in result) == (bool(change), True)


def test_a_wrong_key_of_a_store_is_a_problem(home: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "coordinator.toml").write_text(f"port = 0\n{toml(None, s3)}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert "SignatureDoesNotMatch" in listed(home)["s3"]


def test_a_store_without_an_answer_stops_serve(home: Path, s3: S3) -> None:
    place = s3.model_copy(update={"endpoint": "http://127.0.0.1:1"})
    (home / "coordinator.toml").write_text(f"port = 0\n{toml(None, place)}")
    served = run_command("coordinator", "serve", home)
    assert (served.returncode, served.stderr.count("\n")) == (1, 2)
    assert "http://127.0.0.1:1 can't be used: no answer" in served.stderr


def test_a_store_without_credentials_is_a_problem(home: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    (home / "coordinator.toml").write_text(f"port = 0\n{toml(None, s3.model_copy(update={'endpoint': None}))}")
    assert "no credentials" in listed(home)["s3"]
    (home / "coordinator.toml").write_text(f"port = 0\n{toml(None, s3)}")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # only then is a cloud's metadata service asked
    assert "no answer" in listed(home)["s3"]


def test_the_command_exits_with_1_if_there_is_a_problem(home: Path) -> None:
    good = run_command("coordinator", "check", home)
    bad = run_command("coordinator", "check", home, "--host", "0.0.0.0")  # noqa: S104
    assert (good.returncode, "no problems" in good.stdout) == (0, True)
    assert (bad.returncode, "what to do:" in bad.stdout, "Traceback" in bad.stderr) == (1, True, False)
