"""A command whose options may be in a recipe file."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import Field
from typer.core import TyperGroup
from typer.models import OptionInfo

from moerge.errors import MoergeError
from moerge.files import user_path
from moerge.merging.recipe_file import OF_RUN, Form, Key, RecipeFile, read_recipe
from moerge.settings import Keys

_INSTEAD = {"text": "prompt", "prompt": "text"}
"""Key -> the other key of a domain's text, whose entry its option replaces, too."""
_OPTION = re.compile(r"(--[a-z-]+)(?: ([a-z0-9][a-z0-9_-]*))?")


class RecipeCommand(TyperGroup):
    """A command with the option --config, a recipe file, which other options override.

    An error about a value of the file names its line.
    """

    def invoke(self, ctx: Any) -> Any:
        if ctx.params["config"] is None:
            return super().invoke(ctx)
        keys = keys_of(self)
        file = read_recipe(user_path(ctx.params["config"]), keys)
        typed = {
            key.name: ctx.params[key.parameter]
            for key in keys
            if ctx.get_parameter_source(key.parameter).name == "COMMANDLINE"
        }
        own = dict[Keys, str]()
        for key in (key for key in keys if key.name in file.values):
            if key.form.named:
                given = typed.get(key.name, ())
                others = typed.get(_INSTEAD.get(key.name, ""), ())
                left = file.option(key, {_name(item) for item in (*given, *others)})
                ctx.params[key.parameter] = _ordered([*left, *given], list(file.values[key.name]))
                own |= {} if given else {(key.name,): ""}
                own |= {(key.name, _name(item)): _folder(key, item.partition("=")[2]) for item in left}
            elif key.name not in typed:
                ctx.params[key.parameter] = file.option(key)
                own[key.name,] = _folder(key, str(ctx.params[key.parameter]))
        try:
            return super().invoke(ctx)
        except MoergeError as error:
            error.where = _placed(error.where, file, own)
            raise


def keys_of(command: Any) -> list[Key]:
    """The keys of a command's files, by its options. A `Form` in an annotation is for files alone."""
    annotated, keys = inspect.signature(command.callback).parameters, list[Key]()
    for option in command.params:
        if (name := _key(option.opts[0])) in OF_RUN:
            continue
        type_, *more = get_args(annotated[option.name].annotation)
        [bounds] = [item for item in more if isinstance(item, OptionInfo)]
        plain = Form(Annotated[type_, Field(ge=bounds.min, le=bounds.max)])
        form = next((item for item in more if isinstance(item, Form)), plain)
        keys.append(Key(name, option.name, form))
    return keys


def _key(option: str) -> str:
    """The key of an option such as --top-k."""
    return option.removeprefix("--").replace("-", "_")


def _name(value: str) -> str:
    """The name of NAME=VALUE."""
    return value.partition("=")[0]


def _ordered(values: Sequence[str], names: list[str]) -> list[str]:
    """NAME=VALUE texts in the order of these names, and new names behind them."""
    order = list(dict.fromkeys([*names, *map(_name, values)]))
    return sorted(values, key=lambda value: order.index(_name(value)))


def _folder(key: Key, value: str) -> str:
    """The folder or hub id that an option's value is; empty for other values."""
    return value if key.form.paths == "checkpoint" else ""


def _placed(where: str, file: RecipeFile, own: Mapping[Keys, str]) -> str:
    """The place of an error about an option or its folder; `own`: those of the file, by key and name."""
    keys, rest = next((keys for keys, folder in own.items() if folder and _is_in(where, folder)), ()), f": {where}"
    if (match := _OPTION.match(where)) is not None:
        named, whole = (_key(match[1]), match[2] or ""), (_key(match[1]),)
        keys, rest = (named, where[match.end() :]) if named in own else (whole, where.removeprefix(match[1]))
    return f"{file.place(keys)}: {' '.join(keys)}{rest}" if keys in own else where


def _is_in(where: str, folder: str) -> bool:
    """Tell whether the place of an error is a folder, or begins with it."""
    return where == folder or where.startswith((f"{folder}/", f"{folder}: "))
