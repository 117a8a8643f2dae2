"""MkDocs' hook: a line "Source: [`name`](file)" becomes the reference of that name, made from the code.

The name is that of a command line, a model of settings or of recipes, a function that makes an app, or a package. An
option, a key or a name without a help text or a docstring is an error of the build.
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from logging import getLogger
from pathlib import Path
from pydoc import locate
from textwrap import dedent
from types import ModuleType
from typing import Any, get_args

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel, TypeAdapter
from typer import Typer
from typer.core import TyperGroup

from moerge.cli.app import every_command
from moerge.merging.recipe import OF_MERGE, OF_SOLVE, Recipe
from moerge.settings import key_of
from moerge_coordinator.settings import PREFIX
from moerge_coordinator.settings import Settings as CoordinatorSettings
from moerge_proto.recipes import VERSION_RECIPES, SolveOptions
from moerge_workers.settings import Settings as WorkerSettings

LOG = getLogger("mkdocs.hooks.reference")
_SOURCE = re.compile(r"^Source: \[`([\w.]+)`\]\(\S+\)(?:\. (.*))?$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n((?:(?: .*)?(?:\n|\Z))+)", re.MULTILINE)
_ITEM = re.compile(r"^ {4}(\S[^:]*): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_WORDS = {"string": "text", "boolean": "`true` or `false`", "object": "table"}
_HEADS = {"Args": "argument", "Attributes": "attribute", "Raises": "error"}
_FORMATS = {"path": "path", "date-time": "time", "binary": "bytes"}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if not page.file.src_uri.startswith("docs/reference/"):
        return markdown
    return _SOURCE.sub(lambda source: "\n".join([source[2] or "", "", *_reference(source[1])]), markdown)


def _reference(name: str) -> Iterator[str]:
    found = locate(name)
    if isinstance(found, Typer):
        return commands()
    if isinstance(found, ModuleType):
        return python(found)
    if found is Recipe:
        return recipe()
    if isinstance(found, type) and issubclass(found, BaseModel):
        return settings(found)
    if callable(found):
        return rest(found(CoordinatorSettings(home=Path("home"))).openapi())
    raise TypeError(f"{name} has no reference")


def _table(names: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table without its empty columns; nothing if there are no rows."""
    heads, found = names.split(" | "), list(rows)
    kept = [index for index in range(len(heads)) if any(row[index] for row in found)]
    for row in [heads, ["---"] * len(heads), *found] if found else []:
        cells = (" ".join(row[index].split()).replace("|", r"\|") for index in kept)
        yield f"| {' | '.join(cells)} |"
    yield ""


def _code(value: object) -> str:
    return f"`{value}`"


def _default(value: object) -> str:
    return (
        "" if value is None or value == [] or isinstance(value, dict) else _code(json.dumps(value, ensure_ascii=False))
    )


def _sections(docstring: str | None) -> tuple[str, dict[str, dict[str, str]]]:
    """A docstring's text, and its sections: name of each item -> text."""
    cleaned = inspect.cleandoc(docstring or "")
    items = {match[1]: dict(_ITEM.findall(match[2])) or {"": match[2]} for match in _SECTION.finditer(cleaned)}
    return _SECTION.sub("", cleaned).strip(), items


def kind(schema: Mapping[str, Any], linked: Callable[[str], str]) -> str:
    """The type of a JSON schema in words; `linked` gives that of a reference."""
    if "$ref" in schema:
        return linked(schema["$ref"].rpartition("/")[2])
    if choices := schema.get("anyOf", schema.get("oneOf")):
        return " or ".join(dict.fromkeys(kind(choice, linked) for choice in choices))
    if "const" in schema or "enum" in schema:
        return " or ".join(_code(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}), linked)}"
    inner = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    if schema.get("type") == "object" and isinstance(inner[0], dict):
        return f"table of {kind(inner[0], linked)}"
    name = str(schema.get("type", "any"))
    word = _FORMATS.get(schema.get("format", ""), _WORDS.get(name, name))
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[key]:,}" for key, sign in bounds.items() if key in schema]
    form = [_code(schema["pattern"])] if "pattern" in schema else []
    return " ".join([word, *form, ", ".join(limits)]).strip()


def commands() -> Iterator[str]:
    for path, command in every_command():
        if path == "moerge":
            continue
        yield f"{'#' * len(path.split())} {path}\n"
        pieces = [
            command.options_metavar,
            *(_usage(item) for item in command.params if item.param_type_name != "option"),
        ]
        if not isinstance(command, TyperGroup):
            yield f"```\n{path} {' '.join(filter(None, pieces))}\n```\n"
        if not command.help:
            LOG.warning("%s has no help", path)
        for paragraph in re.split(r"\n\s*\n", command.help or ""):
            text = " ".join(paragraph.split())
            yield f"```\n{text.removeprefix('Example: ')}\n```\n" if text.startswith("Example: ") else f"{text}\n"
        yield from _table(
            "argument or option | type | default | meaning", (_parameter(path, item) for item in command.params)
        )


def _usage(argument: Any) -> str:
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


def _parameter(path: str, item: Any) -> tuple[str, str, str, str]:
    if not item.help:
        LOG.warning("%s: %s has no help", path, item.name)
    names = [item.name.upper()] if item.param_type_name != "option" else [*item.opts, *item.secondary_opts]
    is_flag = getattr(item, "is_bool_flag", False)
    value = "" if is_flag else kind(TypeAdapter(item.type_descriptor.annotation).json_schema(), str)
    shown = item.show_default if isinstance(item.show_default, str) else "" if is_flag else item.default
    default = "required" if item.required else _code(shown) if shown not in (None, "", [], False) else ""
    return ", ".join(map(_code, names)), value, default, _meaning(None, item)


def _meaning(text: str | None, option: Any) -> str:
    """A text, or else the option's help, and the option's environment variable."""
    variable = f" Variable: `{option.envvar}`." if option and option.envvar else ""
    return f"{text or (option.help if option else None) or ''}{variable}"


@cache
def _places() -> dict[type[BaseModel], tuple[str, tuple[str, ...]]]:
    """Each model of settings -> the program, and the path of its table."""
    waiting: list[tuple[type[BaseModel], str, tuple[str, ...]]]
    waiting, result = [(WorkerSettings, "worker", ()), (CoordinatorSettings, "coordinator", ())], {}
    while waiting:
        model, program, path = waiting.pop(0)
        result[model] = program, path
        for name, field in model.model_fields.items():
            for inner in (field.annotation, *get_args(field.annotation)):
                if isinstance(inner, type) and issubclass(inner, BaseModel):
                    waiting.append((inner, program, (*path, key_of(name, field))))
    return result


@cache
def _options(path: str) -> dict[str, Any]:
    """The options of a command, by their names."""
    [found] = [command for each, command in every_command() if each == path]
    return {item.name: item for item in found.params}


def _attributes(model: type[BaseModel]) -> dict[str, str]:
    return _sections(model.__doc__)[1].get("Attributes", {})


def settings(model: type[BaseModel]) -> Iterator[str]:
    """The keys of a table of settings; the name of an option of `worker run` is a key's, and its help the meaning."""
    text, attributes = _sections(model.__doc__)[0], _attributes(model)
    program, path = _places()[model]
    schema = model.model_json_schema()
    yield text.partition("\n\n")[0] + "\n"
    rows = []
    for key, field in schema["properties"].items():
        if (program, path, key) == ("coordinator", (), "home"):
            continue
        is_option = program == "worker" and path in ((), ("statistics",))
        option = _options("moerge worker run").get(key) if is_option else None
        meaning = _meaning(attributes.get(key), option)
        if not meaning:
            LOG.warning("%s.%s has no meaning in the docstring", model.__qualname__, key)
        variable = f"{PREFIX}{'__'.join([*path, key]).upper()}" if program == "coordinator" else None
        names = [key, option.opts[0] if option else variable]
        default = "required" if key in schema.get("required", ()) else _default(field.get("default"))
        value = kind(field, lambda name: "table").removesuffix(" or null")
        rows.append(("<br>".join(map(_code, filter(None, names))), value, default, meaning))
    yield from _table("key | type | default | meaning", rows)


def recipe() -> Iterator[str]:
    """The keys of a recipe file, with the options of both commands that take it."""
    takers = {"merge": ("moerge merge", OF_MERGE), "solve": ("moerge version solve", OF_SOLVE)}
    meanings = _attributes(SolveOptions) | _attributes(Recipe)
    rows = []
    properties = Recipe.model_json_schema(by_alias=True)["properties"]
    for name, (key, field) in zip(Recipe.model_fields, properties.items(), strict=True):
        options = {taker: _options(path).get(name) for taker, (path, fields) in takers.items() if name in fields}
        taken = {taker: _code(option.opts[0]) if option else "key" for taker, option in options.items()}
        meaning = _meaning(meanings.get(name), next(filter(None, options.values()), None))
        if not meaning:
            LOG.warning("Recipe.%s has no meaning", name)
        value = kind(field, str).removesuffix(" or null").replace("table", "mapping")
        default = _default_of_recipes(name) or _default(field.get("default"))
        rows.append((_code(key), value, default, *(taken.get(taker, "") for taker in takers), meaning))
    yield from _table(f"key | type | default | {' | '.join(takers)} | meaning", rows)


def _default_of_recipes(name: str) -> str:
    if name not in SolveOptions.model_fields:
        return ""
    values = [_code(json.dumps(getattr(item.solve, name))) for item in VERSION_RECIPES.values()]
    return ", ".join(dict.fromkeys(values))


def rest(document: Mapping[str, Any]) -> Iterator[str]:
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    group = ""
    for method, path, operation in sorted(operations, key=lambda item: (_group(item[1]), item[1])):
        if group != (group := _group(path)):
            yield f"## {group}\n"
        yield f"### {method} {path}\n\n{operation.get('description') or operation['summary']}\n"
        yield from _table(
            "parameter | in | type | default",
            (
                (
                    _code(item["name"]),
                    item["in"],
                    kind(item["schema"], _message),
                    "required" if item.get("required") else _default(item["schema"].get("default")),
                )
                for item in operation.get("parameters", ())
            ),
        )
        if "requestBody" in operation:
            yield f"Content: {_content(operation['requestBody'])}.\n"
        answers = operation["responses"].items()
        good = [f"{status} {_content(answer)}".strip() for status, answer in answers if status[0] in "23"]
        bad = [f"{status} ({answer.get('description', '')})" for status, answer in answers if status[0] in "45"]
        yield f"Answers: {'; '.join(good)}." + (f" [Problems](#problem): {'; '.join(bad)}.\n" if bad else "\n")
    yield "## Messages\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        text, sections = _sections(schema.get("description"))
        yield f"### {name}\n\n{text}\n"
        if "properties" not in schema:
            yield f"{kind(schema, _message)}\n"
        yield from _table(
            "field | type | default | meaning",
            (
                (
                    _code(key),
                    kind(field, _message),
                    "required" if key in schema.get("required", ()) else _default(field.get("default")),
                    sections.get("Attributes", {}).get(key) or field.get("description", ""),
                )
                for key, field in schema.get("properties", {}).items()
            ),
        )


def _group(path: str) -> str:
    return "/".join(path.split("/")[:3])


def _message(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _content(message: Mapping[str, Any]) -> str:
    """The types of a request's or an answer's content."""
    return " or ".join(
        f"{kind(content.get('schema', {}), _message)}{'' if media.endswith('json') else f' (`{media}`)'}"
        for media, content in message.get("content", {}).items()
    )


def python(package: ModuleType) -> Iterator[str]:
    """The public names of a package, as they are written in the source."""
    blocks = re.split(r"(?m)^((?: {4}.*\n|\n)+)(?=\S)", inspect.getdoc(package) or "")
    yield "".join(f"\n```python\n{dedent(text).strip()}\n```\n\n" if "    " in text else text for text in blocks)
    for name in package.__all__:
        definition = ast.parse(inspect.getsource(getattr(package, name))).body[0]
        methods = definition.body if isinstance(definition, ast.ClassDef) else []
        for node in (definition, *methods):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                path = name if node is definition else f"{name}.{node.name}"
                yield f"{'##' if node is definition else '###'} {path}\n"
                yield from _definition(path, node)


def _definition(name: str, node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    docstring = ast.get_docstring(node)
    if not docstring:
        LOG.warning("%s has no docstring", name)
    text, sections = _sections(docstring)
    if isinstance(node, ast.FunctionDef):
        arguments = ast.unparse(node.args)
        if len(arguments) > 80:
            arguments = "\n    " + re.sub(r", (?=\*|\w+:)", ",\n    ", arguments) + ",\n"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        property_ = any(ast.unparse(item).endswith("property") for item in node.decorator_list)
        yield f"```python\n{node.name}{'' if property_ else f'({arguments})'}{returns}\n```\n"
    else:
        fields = [ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign)]
        yield "```python\n" + "\n    ".join([f"class {node.name}:", *fields]) + "\n```\n"
    yield f"{text}\n"
    for section, items in sections.items():
        yield from _table(
            f"{_HEADS.get(section, section)} | meaning",
            ((key and _code(key), meaning) for key, meaning in items.items()),
        )
