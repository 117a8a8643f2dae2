"""The commands of the command line, as its parser sees them."""

from typing import Any

from typer import Context
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from moerge.cli import app as cli


def command(words: list[str]) -> TyperCommand:
    """The command that the words name, with what comes after it left out."""
    result: Any = get_command(cli.app)
    while (
        words and isinstance(result, TyperGroup) and (words[0] in result.commands or not result.invoke_without_command)
    ):
        _, result, words = result.resolve_command(Context(result), words)
    return result  # type: ignore[no-any-return]  # what typer makes of its groups has no public type


def require_command(arguments: list[str]) -> None:
    """Requires that the command exists, has an example, and knows each of the options."""
    result = command([word for word in arguments if not word.startswith("-")])
    assert "Example: moerge" in (result.help or "")
    known = {option for param in result.params for option in (*param.opts, *param.secondary_opts)}
    asked = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    assert asked <= known, f"{arguments}: unknown {asked - known}"
