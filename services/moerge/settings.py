"""Settings from a file and its overrides, with all of their errors and places."""

import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ByteSize, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from moerge.errors import MoergeError
from moerge.files import user_path
from moerge_proto.messages import plainly

M = TypeVar("M", bound=BaseModel)
Keys = tuple[str, ...]
UserPath = Annotated[Path, AfterValidator(user_path)]
"""A path that may begin with ~."""
_PREFIXES = {"": 1, "k": 1_000, "m": 1_000_000}
_TEXT_EXPECTED = ("string_type", "list_type")
_UTF16 = (BOM_UTF16_LE, BOM_UTF16_BE)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
        MoergeError: it can't be read, or is in another encoding.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MoergeError(f"can't be read: {error.strerror}", where=str(path), todo="check the path") from error
    try:
        if not content.startswith(_UTF16) and b"\0" not in content[:2]:
            return content.decode("utf-8-sig")
        what = "UTF-16, not UTF-8"
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"not UTF-8: line {line} has the byte 0x{content[error.start]:02x}"
    todo = "save it as UTF-8, such as by PowerShell's Set-Content -Encoding utf8"
    raise MoergeError(what, where=str(path), todo=todo)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MoergeError(f"not TOML: {error}", where=str(path), todo="correct the file; texts need quotes") from error


def named_values(field: str, values: Sequence[str]) -> dict[str, list[str]]:
    """NAME=VALUE pairs of a field; a name may have several values."""
    pairs: dict[str, list[str]] = {}
    for value in values:
        name, _, place = value.partition("=")
        if not name or not place:
            raise MoergeError(f"expected NAME=PATH, found {value!r}", where=f"`{field}`", todo="add the name")
        pairs.setdefault(name, []).append(place)
    return pairs


def single_values(field: str, values: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE pairs of a field; a name has one value."""
    pairs = named_values(field, values)
    for name, pair in pairs.items():
        if len(pair) > 1:
            raise MoergeError(f"{name!r} is given {len(pair)} times", where=f"`{field}`", todo="give each name once")
    return {name: result for name, [result] in pairs.items()}


def named_numbers(field: str, values: Sequence[str]) -> dict[str, float]:
    """NAME=NUMBER pairs of a field."""
    numbers = {}
    for value in values:
        name, _, number = value.partition("=")
        try:
            numbers[name] = float(number)
        except ValueError as error:
            raise MoergeError(
                f"expected NAME=NUMBER, found {value!r}", where=f"`{field}`", todo="write it like law=2"
            ) from error
    return numbers


def token_count(text: str, field: str = "tokens") -> int:
    """A number of tokens such as 250000, 250k or 1M."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([km]?)", text.lower())
    count = round(float(match[1]) * _PREFIXES[match[2]]) if match else 0
    if not count:
        raise MoergeError(f"expected a number of tokens, found {text!r}", where=f"`{field}`", todo="write 250k or 1M")
    return count


def byte_count(text: str, field: str) -> int:
    """The bytes of a size such as 16GB."""
    try:
        return TypeAdapter[ByteSize](Annotated[ByteSize, Field(ge=1)]).validate_python(text)
    except ValidationError as error:
        todo = "give a number with a unit, such as 16GB"
        raise MoergeError(f"expected a size, found {text!r}", where=f"`{field}`", todo=todo) from error


def valid(model: type[M], fields: Mapping[str, object]) -> M:
    """A message of these fields; the error names the first invalid one, without the field `options` around it."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        names = [name for name in _keys(first) if name != "options"]
        where = "".join(f"`{name}`" for name in names[:1])
        problem = ": ".join([*names[1:], plainly(first)])
        raise MoergeError(problem, where=where, todo="correct the value") from error


def _keys(error: ErrorDetails) -> Keys:
    """The keys of an error's value, without the kinds of a union."""
    return tuple(part for part in map(str, error["loc"]) if not part.endswith("]"))


def put(values: dict[str, Any], keys: Keys, value: object) -> None:
    for key in keys[:-1]:
        table = values.get(key)
        values[key] = values = dict(table) if isinstance(table, dict) else {}
    values[keys[-1]] = value


def built(
    model: type[M],
    values: Mapping[str, Any],
    places: Mapping[Keys, str],
    elsewhere: str,
    apart: Sequence[str] = (),
    unquoted: Mapping[Keys, tuple[str, str]] = MappingProxyType({}),
) -> tuple[M | None, list[MoergeError]]:
    """The settings, or all of their errors; the model must refuse unknown keys.

    `places` maps keys to the place of their value and of all in it; `elsewhere` is that of others. Keys in `apart`
    can't be set by name. `unquoted`: fault and remedy of values that look like texts, where a text is expected.
    """
    try:
        return model.model_validate(values, by_alias=True, by_name=False), []
    except ValidationError as error:
        errors = [item for item in error.errors() if item["type"] != "default_factory_not_called"]  # for the others
    errors.sort(key=lambda item: item["type"] != "extra_forbidden")  # a misspelt key can cause a missing one
    result = []
    for item in errors:
        loc = _keys(item)
        where = next((places[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in places), elsewhere)
        if item["type"] == "extra_forbidden":
            result.append(unknown(model, loc, where, apart))
        elif item["type"] == "missing":
            result.append(MoergeError(f"{'.'.join(loc)} is missing", where=where, todo="set it there"))
        elif item["type"] in _TEXT_EXPECTED and loc in unquoted:
            fault, todo = unquoted[loc]
            result.append(MoergeError(f"{'.'.join(loc)}: {fault}", where=where, todo=todo))
        else:
            message = plainly(item)
            what = f"{'.'.join(loc)}: {message}" if loc else message
            result.append(MoergeError(what, where=where, todo="correct the value"))
    return None, result


def key_of(name: str, field: FieldInfo) -> str:
    """The key of a model's field in a file."""
    return field.validation_alias if isinstance(field.validation_alias, str) else name


def unknown(model: type[BaseModel], loc: Keys, where: str, apart: Sequence[str] = ()) -> MoergeError:
    """The error of an unknown key, with the nearest known one."""
    for key in (key for key in loc[:-1] if not key.isdecimal()):  # not the places in lists
        kinds = [model.model_fields[key].annotation, *get_args(model.model_fields[key].annotation)]
        model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    known = [key for key in (key_of(*item) for item in model.model_fields.items()) if key not in apart]
    nearest = get_close_matches(loc[-1], known, 1)
    todo = f"did you mean {nearest[0]}?" if nearest else f"the keys are: {', '.join(known)}"
    return MoergeError(f"unknown key {'.'.join(loc)!r}", where=where, todo=todo)
