"""Settings of a coordinator: the file, and the environment over it."""

import traceback
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_coordinator.settings import read_settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "coordinator.toml").write_text("port = 0\n")
    return tmp_path


def test_the_environment_overrides_the_file(home: Path) -> None:
    assert read_settings(home, {}).port == 0
    settings = read_settings(home, {"MOERGE_COORDINATOR_PORT": "81", "MOERGE_COORDINATOR_HOST": "::1", "PORT": "3"})
    assert (settings.port, settings.host) == (81, "::1")
    assert read_settings(home, {"MOERGE_COORDINATOR": "https://example.org"}).port == 0


@pytest.mark.parametrize(
    "url",
    [
        "u:S3CRET/x@host/n",
        "u:a@S3CRET@host/n",
        "u:%zzS3CRET@host/n",
        "u:p@host:S3CRET/n",
        "u:p@host/n?S3CRET=1",
        "[::1",
    ],
)
def test_an_ambiguous_database_address_is_refused_unprinted(url: str, home: Path) -> None:
    with pytest.raises(MoergeError, match="special characters of the password") as caught:
        read_settings(home, {"MOERGE_COORDINATOR_DATABASE": f"postgresql://{url}"})
    assert "S3CRET" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["u:%40%2F@h/n", "u@h", "/n", "u:p@[::1]:5432/n?sslmode=require", "/n?host=/run/db"])
def test_a_database_address_is_read(url: str, home: Path) -> None:
    assert read_settings(home, {"MOERGE_COORDINATOR_DATABASE": f"postgresql://{url}"}).database == f"postgresql://{url}"


def test_paths_may_begin_with_the_user_s_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    text = 'tls_certificate = "~/c.pem"\n[webhook]\nurl = "https://example.org"\nsecret_file = "~/secrets"\n'
    (home / "coordinator.toml").write_text(text, encoding="utf-8-sig")
    settings = read_settings(home, {"MOERGE_COORDINATOR_TLS_KEY": "~/k.pem"})
    assert (settings.tls_certificate, settings.tls_key) == (home / "c.pem", home / "k.pem")
    assert settings.webhook is not None
    assert settings.webhook.secret_file == home / "secrets"


def test_an_unknown_variable_is_refused_with_the_nearest_key(home: Path) -> None:
    with pytest.raises(MoergeError, match="'prot'") as caught:
        read_settings(home, {"MOERGE_COORDINATOR_PROT": "81"})
    assert caught.value.where == "environment variable MOERGE_COORDINATOR_PROT"
    assert caught.value.todo == "did you mean port?"


def test_an_unknown_key_is_refused_with_the_nearest_key(home: Path) -> None:
    (home / "coordinator.toml").write_text("log_levels = 'info'\n")
    with pytest.raises(MoergeError, match="'log_levels'") as caught:
        read_settings(home, {})
    assert (caught.value.where, caught.value.todo) == (str(home / "coordinator.toml"), "did you mean log_level?")


def test_an_invalid_variable_is_not_printed(home: Path) -> None:
    with pytest.raises(MoergeError, match="port") as caught:
        read_settings(home, {"MOERGE_COORDINATOR_PORT": "secret"})
    assert "secret" not in str(caught.value)


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
        ("trusted_proxies = ['10.0.0.1/8']", "trusted_proxies"),
        ("documentation = 'javascript:alert(1)'", "documentation"),
        ("documentation = 'https://docs.example.org/?page'", "documentation"),
    ],
)
def test_invalid_settings_are_named(home: Path, text: str, named: str) -> None:
    (home / "coordinator.toml").write_text(text)
    with pytest.raises(MoergeError, match=named) as caught:
        read_settings(home, {})
    assert "secret" not in str(caught.value)
    assert caught.value.where == str(home / "coordinator.toml")


def test_the_documentation_s_address_ends_with_a_slash(home: Path) -> None:
    (home / "coordinator.toml").write_text("documentation = 'https://docs.example.org/moerge'")
    assert read_settings(home, {}).documentation == "https://docs.example.org/moerge/"


def test_a_folder_without_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match="not found") as caught:
        read_settings(tmp_path, {})
    assert "moerge coordinator init" in caught.value.todo
