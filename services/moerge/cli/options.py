"""Options of the running command: fields in errors are named as options, and paths may begin with ~."""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, get_args, get_type_hints

from moerge.errors import MoergeError
from moerge.files import user_path

_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")


def name_options(command: Any) -> None:
    """Make the errors of a command and its subcommands name options, and expand ~ in their paths.

    The library names fields: `host_memory` in backquotes. The command that is running replaces it by --host-memory,
    if it has an option for a parameter of this name. The shell leaves the ~ of --out=~/merged.
    """
    for subcommand in getattr(command, "commands", {}).values():
        name_options(subcommand)
    if command.callback is not None:
        command.callback = _naming(command.callback, command.params)


def _naming(callback: Callable[..., Any], parameters: Sequence[Any]) -> Callable[..., Any]:
    paths = {name for name, kind in get_type_hints(callback).items() if Path in (kind, *get_args(kind))}
    options = {parameter.name: parameter.opts[0] for parameter in parameters if parameter.param_type_name == "option"}

    def named(text: str) -> str:
        return _FIELD.sub(lambda field: options.get(field[1], field[0]), text)

    @wraps(callback)
    def run(*values: Any, **more: Any) -> Any:
        try:
            return callback(
                *values, **{name: _expanded(value) if name in paths else value for name, value in more.items()}
            )
        except MoergeError as error:
            error.what, error.where, error.todo = named(error.what), named(error.where), named(error.todo)
            raise

    return run


def _expanded(path: Any) -> Any:
    if isinstance(path, list):
        return [user_path(item) for item in path]
    return None if path is None else user_path(path)
