"""The token of a command, from its option, its variable or the worker's file: no output has it."""

import io
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moerge.cli.app import every_command, main
from moerge.cli.common import token_given
from support.http_server import serving


def test_every_command_checks_its_token_before_it_runs() -> None:
    options = {
        path: option for path, command in every_command() for option in command.params if "--token" in option.opts
    }
    assert len(options) > 40
    assert {option.envvar for option in options.values()} == {"MOERGE_TOKEN"}
    checks = {path: getattr(option.callback, "__wrapped__", None) for path, option in options.items()}
    assert [path for path, check in checks.items() if check is not token_given] == []


class Refusing(BaseHTTPRequestHandler):
    """A server that knows no token."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server, and the home of its worker."""
    home = tmp_path_factory.mktemp("home")
    with serving(Refusing) as url:
        settings = f'coordinator = "{url}"\ndomain = "law"\nexpert = "{home}"\ndata = ["a.jsonl"]\n'
        (home / "worker.toml").write_text(settings, encoding="utf-8")
        yield url, home


def output(monkeypatch: pytest.MonkeyPatch, arguments: list[str], **environment: str) -> str:
    """Everything that a command prints and logs before it fails."""
    shown, handler = io.StringIO(), logging.StreamHandler(lines := io.StringIO())
    with monkeypatch.context() as patched, redirect_stdout(shown), redirect_stderr(shown):
        patched.setattr(sys, "argv", ["moerge", *arguments])
        patched.setattr(signal, "signal", lambda *_: None)  # this process keeps its own
        patched.delenv("MOERGE_TOKEN", raising=False)
        for name, value in environment.items():
            patched.setenv(name, value)
        logging.getLogger().addHandler(handler)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            logging.getLogger().removeHandler(handler)
    assert ended.value.code == 1
    return shown.getvalue() + lines.getvalue()


CHARACTERS = st.characters(min_codepoint=1, max_codepoint=0x2FF) | st.sampled_from("\u200b\u2028\udcff😀")


@settings(max_examples=25, deadline=None)
@given(middle=st.text(CHARACTERS, max_size=5), after=st.text(CHARACTERS, max_size=2))
@example(middle="", after="\r\n")
@example(middle=" ", after="")
def test_no_output_has_a_token(worker: tuple[str, Path], middle: str, after: str) -> None:
    url, home = worker
    token = f"Zq7vKx9w{middle}Tn4uRb2y{after}"
    (home / "token").write_text(token, encoding="utf-8", errors="surrogateescape")
    given = {
        "MOERGE_TOKEN": (["version", "list"], {"MOERGE_TOKEN": token, "MOERGE_COORDINATOR": url}),
        "--token": (["version", "list", "--coordinator", url, "--token", token], {}),
        str(home / "token"): (["worker", "history", "--log", "--home", str(home)], {}),
    }
    with pytest.MonkeyPatch.context() as patched:
        for place, (arguments, environment) in given.items():
            shown = output(patched, arguments, **environment)
            assert not any(part in shown for part in ("Zq7vKx9w", "Tn4uRb2y"))
            assert "exempt moerge's REST paths" in shown or f"{place}: character" in shown.replace("\n", " ")
