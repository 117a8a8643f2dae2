"""`moerge coordinator check`: its exit status, and its findings on a real S3 store."""

from pathlib import Path

import pytest

from moerge.blobs.s3 import S3
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.operation.preflight import problems
from support.processes import run_command
from support.servers import CREDENTIALS
from support.servers import settings as toml


@pytest.fixture
def home(tmp_path: Path) -> Path:
    initialise(tmp_path / "home")
    (tmp_path / "home" / "coordinator.toml").write_text("port = 0\n")
    return tmp_path / "home"


def problem(home: Path, place: S3, bucket: str | None = None, endpoint: str | None = None) -> str:
    """The problem of the store, or an empty string."""
    changed = place.model_copy(update={"bucket": bucket or place.bucket, "endpoint": endpoint or place.endpoint})
    (home / "coordinator.toml").write_text(f"port = 0\n{toml(None, changed)}")
    return {item.where: item.what for item in problems(home, {}, lambda settings: settings)}.get("s3", "")


def test_a_store_of_good_settings_has_no_problem(home: Path, s3: S3) -> None:
    assert problem(home, s3) == ""


def test_an_unknown_bucket_is_a_problem(home: Path, s3: S3) -> None:
    assert "NoSuchBucket" in problem(home, s3, bucket="moerge-other")


def test_a_store_without_an_answer_stops_check_and_serve(home: Path, s3: S3) -> None:
    result = problem(home, s3, endpoint="http://127.0.0.1:1")
    assert result.endswith("can't be used: no answer, error sending request")
    served = run_command("coordinator", "serve", home)
    assert (served.returncode, served.stderr.count("\n")) == (1, 2)
    assert "http://127.0.0.1:1 can't be used: no answer" in served.stderr


def test_a_wrong_key_of_a_store_is_a_problem(home: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert "SignatureDoesNotMatch" in problem(home, s3)


def test_a_store_without_credentials_is_a_problem(home: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    place = s3.model_copy(update={"endpoint": None})
    assert "no credentials" in problem(home, place)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # only then is a cloud's metadata service asked
    assert "no answer" in problem(home, s3)


def test_the_command_exits_with_1_if_there_is_a_problem(home: Path) -> None:
    good = run_command("coordinator", "check", home)
    bad = run_command("coordinator", "check", home, "--host", "0.0.0.0")  # noqa: S104
    assert (good.returncode, "no problems" in good.stdout) == (0, True)
    assert (bad.returncode, "what to do:" in bad.stdout, "Traceback" in bad.stderr) == (1, True, False)
