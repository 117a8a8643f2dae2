"""Settings by file and environment, and what `moerge coordinator check` finds before a start."""

import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from moerge.blobs.s3 import S3
from moerge.errors import MoergeError
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.operation.preflight import problems
from moerge_coordinator.settings import Settings, read_settings
from support.processes import run_command
from support.servers import CREDENTIALS
from support.servers import settings as toml


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


def test_the_environment_goes_before_the_file(home: Path) -> None:
    assert read_settings(home, {}).port == 0
    settings = read_settings(home, {"MOERGE_COORDINATOR_PORT": "81", "MOERGE_COORDINATOR_HOST": "::1", "PORT": "3"})
    assert (settings.port, settings.host) == (81, "::1")
    assert read_settings(home, {"MOERGE_COORDINATOR": "https://example.org"}).port == 0


def test_an_unknown_key_is_refused_by_name_and_place_with_the_nearest_known_one(home: Path) -> None:
    with pytest.raises(MoergeError, match="'prot'") as caught:
        read_settings(home, {"MOERGE_COORDINATOR_PROT": "81"})
    assert caught.value.where == "environment variable MOERGE_COORDINATOR_PROT"
    assert caught.value.todo == "did you mean port?"
    (home / "coordinator.toml").write_text("vocabularies = 'pad'\n")
    with pytest.raises(MoergeError, match="'vocabularies'") as caught:
        read_settings(home, {})
    assert (caught.value.where, caught.value.todo) == (str(home / "coordinator.toml"), "did you mean vocabulary?")


def test_values_in_the_environment_are_checked_and_never_printed(home: Path) -> None:
    with pytest.raises(MoergeError, match="port") as caught:
        read_settings(home, {"MOERGE_COORDINATOR_PORT": "secret"})
    assert "secret" not in str(caught.value)


def test_a_good_home_has_no_problems(home: Path) -> None:
    assert found(home) == {}


def test_every_problem_is_told_at_once(home: Path) -> None:
    told = list(problems(home, {"MOERGE_COORDINATOR_PORT": "x", "MOERGE_COORDINATOR_HOTS": "y"}, same))
    assert sorted(problem.where for problem in told) == [
        "environment variable MOERGE_COORDINATOR_HOTS",
        "environment variable MOERGE_COORDINATOR_PORT",
    ]


def test_a_taken_port_is_told(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "in use" in found(home, MOERGE_COORDINATOR_PORT=port)["port"]


def test_a_host_that_isn_t_this_machine_s_is_told(home: Path) -> None:
    told = found(home, MOERGE_COORDINATOR_HOST="192.0.2.1")
    assert "can't listen on 192.0.2.1" in told["port"]


def test_plain_http_on_an_address_that_others_reach_is_told(home: Path) -> None:
    assert "plain HTTP" in found(home, MOERGE_COORDINATOR_HOST="0.0.0.0")["host"]  # noqa: S104
    for host in ("localhost", "127.0.0.2"):
        assert found(home, MOERGE_COORDINATOR_HOST=host) == {}


def test_tls_files_that_are_missing_or_no_certificate_are_told(home: Path) -> None:
    certificate, key = home / "certificate.pem", home / "key.pem"
    alone = list(problems(home, {"MOERGE_COORDINATOR_TLS_KEY": str(key)}, same))
    assert "give both" in alone[0].what
    files = {"MOERGE_COORDINATOR_TLS_CERTIFICATE": str(certificate), "MOERGE_COORDINATOR_TLS_KEY": str(key)}
    assert found(home, **files).keys() == {"tls_certificate", "tls_key"}
    for path in (certificate, key):
        path.write_text("not PEM")
    assert found(home, **files).keys() == {"tls_certificate"}


def test_a_store_that_can_t_be_used_is_told_by_check_and_by_serve_in_one_line(
    home: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(bucket: str = s3.bucket, endpoint: str | None = s3.endpoint) -> str:
        place = s3.model_copy(update={"bucket": bucket, "endpoint": endpoint})
        (home / "coordinator.toml").write_text(f"port = 0\n{toml(None, place)}")
        return found(home).get("s3", "")

    assert told() == ""
    assert "NoSuchBucket" in told("moerge-other")
    assert told(endpoint="http://127.0.0.1:1").endswith("can't be used: no answer, error sending request")
    served = run_command("coordinator", "serve", home)
    assert (served.returncode, served.stderr.count("\n")) == (1, 2)
    assert "http://127.0.0.1:1 can't be used: no answer" in served.stderr
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert "SignatureDoesNotMatch" in told()
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    assert "no credentials" in told(endpoint=None)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # only then is a cloud's metadata service asked
    assert "no answer" in told()


def test_a_folder_without_settings_or_database_says_how_to_make_one(tmp_path: Path) -> None:
    [problem] = problems(tmp_path / "nowhere", {}, same)
    assert "moerge coordinator init" in problem.todo
    (tmp_path / "coordinator.toml").write_text("port = 0\n")
    [problem] = problems(tmp_path, {}, same)
    assert (problem.what, problem.where) == ("no database", str(tmp_path / "coordinator.sqlite"))


def test_a_schema_of_a_newer_build_is_told_and_refused(home: Path) -> None:
    with closing(sqlite3.connect(home / "coordinator.sqlite")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    assert "newer than this build" in found(home)[str(home / "coordinator.sqlite")]
    shutil.copy(home / "coordinator.toml", home.parent)
    with pytest.raises(MoergeError, match="newer than this build"):
        initialise(home)


def test_a_nearly_full_disk_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moerge_coordinator.operation.preflight._LEAST_FREE", shutil.disk_usage(home).free + 2**40)
    assert "are free" in found(home)[str(home)]


def test_a_home_that_can_t_be_written_is_told(home: Path) -> None:
    told = list(problems(Path("/proc/self/fd"), {}, same))
    assert "can't be written" in told[-1].what


def test_the_command_exits_with_1_if_anything_is_wrong(home: Path) -> None:
    good = run_command("coordinator", "check", home)
    bad = run_command("coordinator", "check", home, "--host", "0.0.0.0")  # noqa: S104
    assert (good.returncode, "no problems" in good.stdout) == (0, True)
    assert (bad.returncode, "what to do:" in bad.stdout, "Traceback" in bad.stderr) == (1, True, False)
