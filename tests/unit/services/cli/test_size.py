"""Few commands with few options: what is rare is in a file."""

from typing import Any

from typer.main import get_command

from moerge.cli.app import PANELS, Component, app

COMMANDS, OPTIONS = 71, 12
MORE = {"merge": 20, "worker run": 30, "worker check": 30}
"""Commands with more options. A check has those of the run."""


def below(command: Any, *names: str) -> dict[str, set[str]]:
    """Command -> its options, of a command or of all below it."""
    if (commands := getattr(command, "commands", None)) is not None and commands:
        return {key: value for name, item in commands.items() for key, value in below(item, *names, name).items()}
    return {" ".join(names): {item.name for item in command.params if item.param_type_name == "option"}}


def found() -> dict[str, set[str]]:
    """All commands but those of the laboratory."""
    result: dict[str, set[str]] = {}
    root: Any = get_command(app)
    for name, command in ((name, item) for panel in PANELS.values() for name, item in panel.items()):
        if not isinstance(command, Component):
            result |= below(root.commands[name], name)
        elif not command.module.startswith("moerge_lab"):
            result |= below(command.load(), name)
    return result


def test_there_are_few_commands_and_each_has_few_options() -> None:
    counts = {name: len(options) for name, options in found().items()}
    print(sorted(counts.items(), key=lambda item: -item[1]))
    assert len(counts) <= COMMANDS
    assert {name: count for name, count in counts.items() if count > MORE.get(name, OPTIONS)} == {}
