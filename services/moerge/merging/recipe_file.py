"""Recipe files: the options of `moerge merge` in YAML, from a user or in the output of a merge."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from moerge.documents.chat_templates import DATE
from moerge.errors import MoergeError
from moerge.settings import Keys, built, named_numbers, named_values, read_text

FILE = "merge.yaml"
"""The recipe file in the output of a merge."""
_CUT = ".../"
OF_RUN = ("out", "config", "dry_run", "json")
"""Names of options that are no keys."""
_OF_MACHINE = ("slots", "host_memory", "keep_statistics")
"""Keys that change nothing in a version."""
_TAG = "tag:yaml.org,2002:"
_LARGEST = 2**20
"""Bytes of a file."""
_KEPT = f"{_TAG}bool", f"{_TAG}null"
_INT = re.compile(r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$")
_BASES = {"0o": 8, "0x": 16}
_HEADER = f"""\
# The options of this merge, with their defaults. Paths start from this file's folder. To repeat the merge:
# moerge merge --config {FILE} --out NEW
"""
_DATED = f"# A chat template that asks for the date gets {DATE}.\n"
_DEPTH = 4
"""Nested keys with a line."""
_KINDS = {f"{_TAG}bool": "a boolean", f"{_TAG}int": "a number", f"{_TAG}float": "a number", f"{_TAG}null": "no value"}


class _Loader(yaml.SafeLoader):
    """Reads the numbers of YAML 1.2; refuses anchors, aliases and tags, and has no merge keys and dates."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if any(getattr(event, name, None) is not None for name in ("anchor", "tag")):
            raise yaml.MarkedYAMLError(problem="expected no anchors, aliases and tags", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(node.value, _BASES.get(node.value[:2], 10))


class _Dumper(yaml.SafeDumper):
    """Writes texts such as 1e-3 in quotes, for `_Loader`."""


_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] in _KEPT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
    _class.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Texts = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]


@dataclass(frozen=True)
class Form:
    """The form of an option in a file.

    Attributes:
        type: of the value; NAME=VALUE options are a mapping.
        paths: the kind of paths that the value has; a prompt may be a file's name behind @.
    """

    type: Any
    paths: Literal["checkpoint", "files", "prompt"] | None = None

    @property
    def named(self) -> bool:
        return get_origin(self.type) is dict

    def read(self, folder: Path, value: str) -> str:
        """The option's value from a value of a file in `folder`."""
        from moerge.models.sources import beside, source_from

        if self.paths == "prompt":
            return f"@{FILES.read(folder, value[1:])}" if value.startswith("@") else value
        if self.paths is not None and any(part.startswith(_CUT) for part in value.split("+")):
            raise MoergeError(f"the file doesn't say where {value} is", todo="give this key as an option")
        if self.paths == "checkpoint":
            return source_from(folder, value)
        return value if self.paths is None or "://" in value else beside(folder, value)

    def shown(self, out: Path, value: str) -> str:
        """The option's value for a file in `out`."""
        from moerge.models.sources import source_for

        if self.paths == "prompt":
            return f"@{_shown(out, value[1:])}" if value.startswith("@") else value
        if self.paths == "checkpoint":
            return source_for(partial(_shown, out), value)
        return value if self.paths is None else _shown(out, value)


CHECKPOINT, CHECKPOINTS = Form(str, "checkpoint"), Form(dict[str, str], "checkpoint")
FILES, NAMED_FILES = Form(_Texts, "files"), Form(dict[str, _Texts], "files")
FOLDER, PROMPTS = Form(str, "files"), Form(dict[str, _Texts], "prompt")
NUMBERS, WORDS = Form(dict[str, float]), Form(dict[str, str])


@dataclass(frozen=True)
class Key:
    """A key of a file: an option's name with _ for -, its parameter and its form."""

    name: str
    parameter: str
    form: Form


@dataclass(frozen=True)
class RecipeFile:
    """A file with valid values by key.

    Attributes:
        places: of keys, and of entries in them: the file and a line.
    """

    path: Path
    values: Mapping[str, Any]
    places: Mapping[Keys, str]

    def option(self, key: Key, apart: Iterable[str] = ()) -> Any:
        """The value of a key as the option has it, without the entries of the names `apart`.

        Raises:
            MoergeError: a path in it can't be read; names its line.
        """
        value = self.values[key.name]
        if key.form.named:
            return [
                f"{name}={self._read(key, (key.name, name), item)}"
                for name, items in value.items()
                if name not in apart
                for item in _several(items)
            ]
        read = [self._read(key, (key.name,), item) for item in _several(value)]
        if key.form == FOLDER:
            return Path(read[0])
        return read if isinstance(value, list) else read[0]

    def _read(self, key: Key, keys: Keys, value: Any) -> Any:
        try:
            return key.form.read(self.path.absolute().parent, value) if isinstance(value, str) else value
        except MoergeError as error:
            where = f"{self.place(keys)}: {' '.join(keys)}"
            raise MoergeError(error.what, where=where, todo=error.todo) from error

    def place(self, keys: Keys) -> str:
        """The place of an entry, or of its key."""
        return self.places.get(keys) or self.places.get(keys[:1]) or str(self.path)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _one(values: list[Any]) -> Any:
    """The only value of a list, or the list."""
    return values if len(values) > 1 else values[0]


def read_recipe(path: Path, keys: Iterable[Key]) -> RecipeFile:
    """A recipe file.

    Raises:
        MoergeError: names the file, the line and the key.
    """
    values, lines, unquoted = _parsed(path)
    places = {keys: f"{path}, line {line}" for keys, line in lines.items()}
    for name in (name for name in OF_RUN if name in values):
        where = places.get((name,), str(path))
        raise MoergeError(f"{name} is not a key", where=where, todo="remove it, and give it as an option")
    fields: dict[str, Any] = {key.name: (key.form.type | None, None) for key in keys}
    model: type[BaseModel] = create_model("Recipe", __config__=ConfigDict(extra="forbid", strict=True), **fields)
    recipe, problems = built(model, values, places, str(path), unquoted=unquoted)
    if recipe is None:
        raise problems[0]
    given = recipe.model_dump(exclude_unset=True, exclude_none=True)
    return RecipeFile(path, given, places)


def _parsed(path: Path) -> tuple[dict[str, Any], dict[Keys, int], dict[Keys, tuple[str, str]]]:
    """The content of a YAML file, the line of each key, and the values that look like texts, as `built` takes them."""
    where, todo = str(path), "correct the file"
    if path.exists() and (not path.is_file() or path.stat().st_size > _LARGEST):
        raise MoergeError("expected a regular file of at most 1 MiB", where=where, todo="name a recipe file")
    try:
        loader = _Loader(read_text(path))
        node = loader.get_single_node()
        lines = {} if node is None else _lines(node, where)
        unquoted = {} if node is None else _unquoted(node)
        values = {} if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        place = where if error.problem_mark is None else f"{where}, line {error.problem_mark.line + 1}"
        raise MoergeError(f"not YAML: {error.problem}", where=place, todo=todo) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).partition("\n")[0]
        raise MoergeError(f"not YAML: {first}", where=where, todo=todo) from error
    if not isinstance(values, dict):
        raise MoergeError("expected keys with values", where=f"{where}, line 1", todo="write a key as in top_k: 1")
    return values, lines, unquoted


def _inner(node: yaml.Node, keys: Keys) -> list[tuple[Keys, yaml.Node, yaml.Node]]:
    """Keys, place and value of each entry in a node."""
    if isinstance(node, yaml.MappingNode) and len(keys) < _DEPTH:
        return [((*keys, str(key.value)), key, value) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode) and len(keys) < _DEPTH:
        return [((*keys, str(number)), value, value) for number, value in enumerate(node.value)]
    return []


def _unquoted(node: yaml.Node, keys: Keys = ()) -> dict[Keys, tuple[str, str]]:
    """Fault and remedy of each value in a node that YAML doesn't read as a text, if a text is expected there."""
    if (fault := _fault(node)) is not None:
        return {keys: fault}
    found = [_unquoted(value, own) for own, _, value in _inner(node, keys)]
    return {own: fault for item in found for own, fault in item.items()}


def _fault(node: yaml.Node) -> tuple[str, str] | None:
    """Fault and remedy of a key or value, unless it is a text, or has several parts."""
    if (kind := _KINDS.get(node.tag)) is None:
        return None
    if not node.value:
        return "no value", "write it behind the colon"
    return f"{node.value} without quotes is {kind} in YAML, not a text", f'quote it: "{node.value}"'


def _lines(node: yaml.Node, where: str, keys: Keys = ()) -> dict[Keys, int]:
    """The line of each key and item in a node; refuses a key that is there twice, or is no text."""
    lines: dict[Keys, int] = {}
    for own, at, value in _inner(node, keys):
        line = at.start_mark.line + 1
        if at is not value and (fault := _fault(at)) is not None:
            what = ": ".join([*keys, f"the key {fault[0]}"])
            raise MoergeError(what, where=f"{where}, line {line}", todo=fault[1])
        if own in lines:
            what = f"{'.'.join(own)} is also in line {lines[own]}"
            raise MoergeError(what, where=f"{where}, line {line}", todo="keep one of them")
        lines |= {own: line} | _lines(value, where, own)
    return lines


def recipe_text(keys: Iterable[Key], values: Mapping[str, Any], out: Path) -> str:
    """The recipe file of the output `out`; `values`: of the options, by parameter."""
    content = dict[str, Any]()
    for key in keys:
        value, form = values[key.parameter], key.form
        if value in (None, [], ()) or key.name in _OF_MACHINE:
            continue
        if form == NUMBERS:
            content[key.name] = named_numbers(key.name, value)
        elif form.named:
            entries = named_values(key.name, value).items()
            content[key.name] = {name: _one([form.shown(out, item) for item in items]) for name, items in entries}
        elif form.paths is not None:
            content[key.name] = _one([form.shown(out, str(item)) for item in _several(value)])
        else:
            content[key.name] = value
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return f"{_HEADER}{_DATED if 'chat' in content else ''}{text}"


def _shown(out: Path, path: str) -> str:
    """A path from the output's folder; only its last part if this would name folders apart from the output's."""
    if "://" in path:
        private = re.search(r"^(file|local):|::|[@?]", path)
        return f"{_CUT}{_last(path.partition('?')[0]).rpartition('@')[2]}" if private else path
    there, here = os.path.abspath(os.path.expanduser(path)), os.path.abspath(out)
    common, home = Path(os.path.commonpath([there, here])), Path(os.path.expanduser("~"))
    apart = common == Path(common.anchor) or common in home.parents
    return f"{_CUT}{_last(there)}" if apart else os.path.relpath(there, here)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
