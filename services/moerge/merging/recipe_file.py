"""Recipe files: a recipe in YAML, from a user or in the output of a merge."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from moerge.documents.chat_templates import DATE
from moerge.errors import MoergeError
from moerge.files import user_path
from moerge.merging.recipe import KEYS, NAMED, PATHS, Recipe, require_only
from moerge.settings import Keys, built, read_text, valid

FILE = "merge.yaml"
"""The recipe file in the output of a merge."""
_CUT = ".../"
_OF_RUN = ("out", "config", "dry_run", "json")
"""Names of options that are no keys."""
_INSTEAD = {"text": "prompt", "prompt": "text"}
"""Field -> the other one of a domain's text, whose entry it replaces, too."""
_FIELD = re.compile(r"`([a-z_]+)`(?: ([a-z0-9][a-z0-9_-]*))?")
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


@dataclass(frozen=True)
class RecipeFile:
    """A file with valid values by field.

    Attributes:
        places: of keys, and of entries in them: the file and a line.
    """

    path: Path
    values: Mapping[str, Any]
    places: Mapping[Keys, str]

    def own(self, given: Mapping[str, Any]) -> dict[Keys, Any]:
        """The file's values that these options don't replace, by field, or field and domain, as options have them.

        Raises:
            MoergeError: a path can't be read; names its line.
        """
        result = dict[Keys, Any]()
        for field, value in self.values.items():
            if field in NAMED:
                others = {**given.get(field, {}), **given.get(_INSTEAD.get(field, ""), {})}
                result |= {(field, name): item for name, item in value.items() if name not in others}
            elif field not in given:
                result[field,] = value
        return {keys: self._read(keys, value) for keys, value in result.items()}

    def recipe(self, given: Mapping[str, Any]) -> Recipe:
        """The file's recipe, with options in place of its values. Entries of a mapping keep the file's order."""
        result = dict(given)
        for (field, *names), value in self.own(given).items():
            if names:
                result[field] = {**result.get(field, {}), names[0]: value}
            else:
                result[field] = value
        for field in (field for field in NAMED if field in result):
            order = dict.fromkeys([*self.values.get(field, ()), *result[field]])
            result[field] = {name: result[field][name] for name in order if name in result[field]}
        return valid(Recipe, result)

    def _read(self, keys: Keys, value: Any) -> Any:
        kind, folder = PATHS.get(keys[0]), self.path.absolute().parent
        try:
            if isinstance(value, list):
                return [_option(kind, folder, item) for item in value]
            return value if kind is None else _option(kind, folder, value)
        except MoergeError as error:
            where = f"{self._place(keys)}: {_key(keys)}"
            raise MoergeError(error.what, where=where, todo=error.todo) from error

    def _place(self, keys: Keys) -> str:
        """The place of an entry, or of its key."""
        names = (KEYS[keys[0]], *keys[1:])
        return self.places.get(names) or self.places.get(names[:1]) or str(self.path)

    def placed(self, where: str, given: Mapping[str, Any]) -> str:
        """The place of an error about a field or a checkpoint: a line, if the value isn't that of an option."""
        own = self.own(given)
        folders = {keys: value for keys, value in own.items() if PATHS.get(keys[0]) == "checkpoint"}
        if (keys := next((keys for keys, folder in folders.items() if _is_in(where, folder)), None)) is not None:
            return f"{self._place(keys)}: {_key(keys)}: {where}"
        if (match := _FIELD.match(where)) is None:
            return where
        field, name = match[1], match[2] or ""
        if (field, name) in own:
            return f"{self._place((field, name))}: {KEYS[field]} {name}{where[match.end() :]}"
        if field in self.values and field not in given:
            return f"{self._place((field,))}: {KEYS[field]}{where.removeprefix(f'`{field}`')}"
        return where


def _key(keys: Keys) -> str:
    return " ".join([KEYS[keys[0]], *keys[1:]])


def _is_in(where: str, folder: str) -> bool:
    """Tell whether the place of an error is a folder, or begins with it."""
    return where == folder or where.startswith((f"{folder}/", f"{folder}: "))


def _option(kind: str | None, folder: Path, value: str) -> str:
    """The option's value from a value of a file in `folder`."""
    from moerge.models.sources import beside, source_from

    if kind == "prompt":
        return f"@{_option('files', folder, value[1:])}" if value.startswith("@") else value
    if any(part.startswith(_CUT) for part in value.split("+")):
        raise MoergeError(f"the file doesn't say where {value} is", todo="give this key as an option")
    if kind == "checkpoint":
        return source_from(folder, value)
    return value if "://" in value else beside(folder, value)


def _entry(kind: str | None, out: Path, value: Any) -> Any:
    """A value for a file in `out`, of an option's value; of several, or the only one."""
    from moerge.models.sources import source_for

    if isinstance(value, list):
        items = [_entry(kind, out, item) for item in value]
        return items if len(items) > 1 else items[0]
    if kind is None:
        return value
    if kind == "prompt":
        return f"@{_shown(out, value[1:])}" if value.startswith("@") else value
    return source_for(partial(_shown, out), value) if kind == "checkpoint" else _shown(out, value)


def read_recipe(path: Path) -> RecipeFile:
    """A recipe file.

    Raises:
        MoergeError: names the file, the line and the key.
    """
    path = user_path(path)
    values, lines, unquoted = _parsed(path)
    places = {keys: f"{path}, line {line}" for keys, line in lines.items()}
    for name in (name for name in _OF_RUN if name in values):
        where = places.get((name,), str(path))
        raise MoergeError(f"{name} is not a key", where=where, todo="remove it, and give it as an option")
    values = {name: value for name, value in values.items() if value is not None}
    recipe, problems = built(Recipe, values, places, str(path), unquoted=unquoted)
    if recipe is None:
        raise problems[0]
    return RecipeFile(path, {name: getattr(recipe, name) for name in KEYS if name in recipe.model_fields_set}, places)


@contextmanager
def recipe_of(config: Path | None, options: Mapping[str, Any], fields: Sequence[str], command: str) -> Iterator[Recipe]:
    """A command's recipe, by its options and the file of --config; None: not given. It has no other fields than these.

    Errors in the context name the line of the file that has the value, or the key if no option has it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    file = None if config is None else read_recipe(config)
    recipe = valid(Recipe, given) if file is None else file.recipe(given)
    try:
        require_only(recipe, fields, command)
        yield recipe
    except MoergeError as error:
        where = error.where if file is None else file.placed(error.where, given)
        error.what, error.where, error.todo = map(_by_keys, (error.what, where, error.todo))
        raise


def _by_keys(text: str) -> str:
    """A text that names keys in place of the fields that are no options."""
    return text.replace("`ridge_lambda`", "`lambda`").replace("`weights`", "`weight`")


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


def recipe_text(recipe: Recipe, out: Path) -> str:
    """The recipe file of the output `out`."""
    content = dict[str, Any]()
    for field, key in KEYS.items():
        value = getattr(recipe, field)
        if value in (None, {}) or field in _OF_MACHINE:
            continue
        kind = PATHS.get(field)
        if isinstance(value, dict):
            content[key] = {name: _entry(kind, out, item) for name, item in value.items()}
        else:
            content[key] = _entry(kind, out, value)
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
