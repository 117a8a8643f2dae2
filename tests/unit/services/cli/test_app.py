"""The console script: what it makes of errors."""

import errno
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from moerge.cli.app import PANELS, Component, app, main
from moerge.cli.common import the_one
from moerge.errors import MoergeError
from support.statistics import honest_sums, manifest_of, written


def test_an_error_names_a_path_with_brackets_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "[law] sums[/old].safetensors"
    monkeypatch.setattr(sys, "argv", ["moerge", "inspect", str(path)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, str(path) in capsys.readouterr().err) == (1, True)


def test_inspect_tells_what_a_contribution_reveals(tmp_path: Path) -> None:
    sums = honest_sums(8, 500, 1, 2, 0)
    path = written(tmp_path / "file", manifest_of(sums, 1, domain="law"), sums)
    shown = CliRunner().invoke(app, ["inspect", str(path)])
    assert (shown.exit_code, "router contribution of 'law'" in shown.output) == (0, True)
    content = json.loads(CliRunner().invoke(app, ["inspect", str(path), "--json"]).stdout)
    assert (content["manifest"]["domain"], content["tensors"][0]["name"]) == ("law", "layers.0.gram")


def test_every_command_that_shows_a_table_has_json_as_a_flag() -> None:
    shows = {"list", "show", "history", "table", "compare", "progress", "inspect", "status", "verify", "merge", "body"}
    lacking, seen = [], 0
    for panel in PANELS.values():
        for name, component in panel.items():
            root = component.load() if isinstance(component, Component) else get_command(app).commands[name]  # type: ignore[attr-defined]
            commands = getattr(root, "commands", {name: root})
            for word, command in commands.items():
                if word in shows:
                    seen += 1
                    flags = [param for param in command.params if "--json" in param.opts]
                    lacking += [] if flags and flags[0].is_flag else [f"{name} {word}"]
    assert (lacking, seen > 15) == ([], True)


@pytest.mark.parametrize("given", ["version-52", "version-5220…", "version-52204-1"])
def test_id_may_be_given_by_its_first_characters(given: str) -> None:
    known = ["version-52204-1", "version-61111-1", "body-52204-1"]
    assert the_one("workflow", given, known) == "version-52204-1"
    for wrong in ("version", "…", "expert-1"):
        with pytest.raises(MoergeError, match="begin") as caught:
            the_one("workflow", wrong, known)
        assert caught.value.todo == "run: moerge workflow list"


def test_a_shell_completes_commands_of_components_too() -> None:
    variables = {"_MOERGE_COMPLETE": "complete_bash", "COMP_WORDS": "moerge coordinator ve", "COMP_CWORD": "2"}
    assert CliRunner().invoke(app, prog_name="moerge", env=variables).stdout.split() == ["verify"]


def test_faults_of_the_system_end_a_command_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own

    def ends(number: int) -> None:
        def fails() -> None:
            raise OSError(number, os.strerror(number), "sums.part")

        monkeypatch.setattr("moerge.cli.app.app", fails)
        main()

    with pytest.raises(SystemExit):
        ends(errno.ENOSPC)
    assert capsys.readouterr().err.startswith("error: sums.part: the disk is full")
    with pytest.raises(SystemExit):
        ends(errno.EACCES)
    assert capsys.readouterr().err.startswith("error: sums.part: permission denied")
    with pytest.raises(SystemExit):
        ends(errno.EROFS)
    assert capsys.readouterr().err == (
        "error: sums.part: Read-only file system\n  what to do: name a folder that can be written\n"
    )
    with pytest.raises(OSError, match=r"sums\.part"):
        ends(errno.EBADF)


@pytest.mark.parametrize("words", [["merge"], ["merge", "--exprt", "law=law"], ["coordinator", "init"]])
def test_wrong_usage_shows_the_example_of_the_help(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    command = " ".join(words[:1] if words[0] == "merge" else words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Example: moerge {command} ")
    assert "--out merged\n" in done.stderr or words[0] != "merge", "the whole example is in one line"


def test_a_damaged_join_request_is_refused_unsent() -> None:
    environment = {"MOERGE_COORDINATOR": "https://nowhere.invalid", "MOERGE_TOKEN": "t"}
    done = CliRunner().invoke(app, ["owner", "approve", "moerge-join-1.eyJ"], env=environment)
    assert isinstance(done.exception, MoergeError)
    assert (done.exception.where, "damaged" in done.exception.what) == ("REQUEST", True)
    assert done.exception.todo == "ask the owner to run `moerge worker init` again and to send the complete line"
