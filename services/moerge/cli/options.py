"""Fields in errors, as options of the running command."""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from moerge.errors import MoergeError

_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")


def name_options(command: Any) -> None:
    """Make the errors of a command and its subcommands name options.

    The library names fields: `host_memory` in backquotes. The command that is running replaces it by --host-memory,
    if it has an option for a parameter of this name.
    """
    for subcommand in getattr(command, "commands", {}).values():
        name_options(subcommand)
    if command.callback is not None:
        command.callback = _naming(command.callback, command.params)


def _naming(callback: Callable[..., Any], parameters: Sequence[Any]) -> Callable[..., Any]:
    options = {parameter.name: parameter.opts[0] for parameter in parameters if parameter.param_type_name == "option"}

    def named(text: str) -> str:
        return _FIELD.sub(lambda field: options.get(field[1], field[0]), text)

    @wraps(callback)
    def run(*values: Any, **more: Any) -> Any:
        try:
            return callback(*values, **more)
        except MoergeError as error:
            error.what, error.where, error.todo = named(error.what), named(error.where), named(error.todo)
            raise

    return run
