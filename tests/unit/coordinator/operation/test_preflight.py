"""The problems that `moerge coordinator check` finds before a start."""

import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from moerge.blobs.s3 import S3
from moerge.errors import MoergeError
from moerge_coordinator import log
from moerge_coordinator.commands import serve
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.operation.preflight import problems
from moerge_coordinator.settings import Settings
from support.processes import run_command
from support.receiver import SECRET
from support.servers import CREDENTIALS
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


@pytest.mark.parametrize(
    ("variable", "value"), [("HTTPS_PROXY", "ftp://proxy.example.org"), ("SSL_CERT_FILE", "/no/such/file")]
)
def test_an_environment_that_the_webhook_cannot_use_is_a_problem(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    (home / "secret").write_text(f"{SECRET}\n")
    place = f'url = "https://example.org/hook"\nsecret_file = "{home / "secret"}"\n'
    (home / "coordinator.toml").write_text(f"port = 0\n[webhook]\n{place}")
    assert listed(home) == {}
    monkeypatch.setenv(variable, value)
    assert list(listed(home)) == [variable]


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


def test_a_schema_of_a_newer_build_is_refused(home: Path) -> None:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    assert "newer than this build" in listed(home)[str(home / "coordinator.sqlite")]
    shutil.copy(home / "coordinator.toml", home.parent)
    with pytest.raises(MoergeError, match="newer than this build"):
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
