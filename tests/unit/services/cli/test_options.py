"""Options of the running command: its errors name them, and their paths may begin with ~."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.cli.options import name_options
from moerge.errors import MoergeError
from moerge.settings import byte_count

group = typer.Typer()
TEXT = "`host_memory`: `ridge_lambda` of `lambda_scale`, in `two words`"


@group.command()
def show(folder: Path, out: Annotated[Path | None, typer.Option()] = None, text: str = "") -> None:
    typer.echo(f"{folder} {out} {text}")


def refuse() -> None:
    raise MoergeError(TEXT, where="`host_memory`", todo="omit `host_memory`")


@group.command()
def solve(
    host_memory: str = "", ridge_lambda: Annotated[float, typer.Option("--lambda")] = 0, lambda_scale: str = ""
) -> None:
    refuse()


@group.command()
def merge(folder: str = "", ridge_lambda: Annotated[float, typer.Option("--lambda")] = 0) -> None:
    refuse()


def error_of(*words: str) -> MoergeError:
    command = get_command(group)
    name_options(command)
    with pytest.raises(MoergeError) as caught:
        command.main(list(words), standalone_mode=False)
    return caught.value


def test_a_command_names_its_options() -> None:
    error = error_of("solve")
    assert error.what == "--host-memory: --lambda of --lambda-scale, in `two words`"
    assert (error.where, error.todo) == ("--host-memory", "omit --host-memory")


def test_a_command_without_the_option_names_the_field() -> None:
    error = error_of("merge")
    assert error.what == "`host_memory`: --lambda of `lambda_scale`, in `two words`"
    assert error.where == "`host_memory`"


def test_the_library_names_the_field() -> None:
    with pytest.raises(MoergeError) as caught:
        byte_count("much", "host_memory")
    assert caught.value.where == "`host_memory`"


def test_paths_of_arguments_and_options_may_begin_with_the_user_s_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    command = get_command(group)
    name_options(command)
    command.main(["show", "~/a", "--out=~/b", "--text", "~/c"], standalone_mode=False)
    assert capsys.readouterr().out == "/home/ann/a /home/ann/b ~/c\n", "a text is no path"
    command.main(["show", "a~"], standalone_mode=False)
    assert capsys.readouterr().out == "a~ None \n"


def test_a_component_names_its_options(tmp_path: Path) -> None:
    words = ["merge", "--expert", f"law={tmp_path}", "--text", f"art={tmp_path}", "--out", str(tmp_path / "out")]
    assert str(CliRunner().invoke(app, words).exception).startswith("--text art ")
