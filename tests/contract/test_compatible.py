"""The API document compared with the last release's: neither side may surprise the other's earlier build."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.releases import file_at, last_release

_PATH = "tests/contract/openapi.json"
_WORDS = ("enum", "const")


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What breaks callers of the document `before` at a coordinator of `after`, or the other way round."""
    for path, methods in before["paths"].items():
        for method, old in methods.items():
            place = f"{method.upper()} {path}"
            new = after["paths"].get(path, {}).get(method)
            if new is None:
                yield f"{place}: gone"
                continue
            if set(old.get("x-roles", ())) - set(new.get("x-roles", ())):
                yield f"{place}: fewer roles"
            yield from _parameters(place, old.get("parameters", []), new.get("parameters", []))
            yield from _messages(f"{place} request", _request(old), _request(new), before, after, asks=True)
            yield from _messages(f"{place} answer", _answer(old), _answer(new), before, after, asks=False)


def _request(operation: dict[str, Any]) -> Any:
    return operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")


def _answer(operation: dict[str, Any]) -> Any:
    good = [answer for status, answer in operation["responses"].items() if status in ("200", "201", "202")]
    return next((item.get("content", {}).get("application/json", {}).get("schema") for item in good), None)


def _parameters(place: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    names = {item["name"] for item in old}
    for name in sorted(names - {item["name"] for item in new}):
        yield f"{place}: parameter {name} is gone"
    for item in new:
        if item["name"] not in names and item.get("required"):
            yield f"{place}: parameter {item['name']} is required"


def _messages(
    place: str, old: Any, new: Any, before: dict[str, Any], after: dict[str, Any], *, asks: bool
) -> Iterator[str]:
    """The breaking differences of a schema; `asks`: of a request."""
    old, new = _followed(old, before), _followed(new, after)
    if old is None or new is None:
        if old != new and not (asks and not (new or {}).get("required")):
            yield f"{place}: expected {old}, found {new}"
        return
    for word in _WORDS:
        was, now = (_values(schema, word) for schema in (old, new))
        if asks and was - now:
            yield f"{place}: refuses {sorted(was - now)}"
        if not asks and was and now - was:
            yield f"{place}: answers {sorted(now - was)}, which earlier clients don't know"
    if old.get("type") != new.get("type"):
        yield f"{place}: was {old.get('type')}, is {new.get('type')}"
    if asks and old.get("default") != new.get("default"):
        yield f"{place}: its default was {old.get('default')}, is {new.get('default')}"
    was, now = old.get("properties", {}), new.get("properties", {})
    for name in sorted(set(was) - set(now)):
        yield f"{place}.{name}: gone"
    for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield f"{place}.{name}: has no default for earlier builds"
    if not asks:
        for name in sorted(set(old.get("required", ())) & set(now) - set(new.get("required", ()))):
            yield f"{place}.{name}: earlier clients need it"
    for name in sorted(set(was) & set(now)):
        yield from _messages(f"{place}.{name}", was[name], now[name], before, after, asks=asks)
    for inner in ("items", "additionalProperties"):
        if isinstance(old.get(inner), dict):
            yield from _messages(f"{place}.{inner}", old[inner], new.get(inner), before, after, asks=asks)
    for one, other in zip(_kinds(old), _kinds(new), strict=False):
        yield from _messages(place, one, other, before, after, asks=asks)


def _kinds(schema: dict[str, Any]) -> list[Any]:
    return [item for item in schema.get("anyOf", schema.get("oneOf", [])) if item != {"type": "null"}]


def _values(schema: dict[str, Any], word: str) -> set[str]:
    found = schema.get(word, [])
    return {json.dumps(item) for item in (found if isinstance(found, list) else [found])}


def _followed(schema: Any, document: dict[str, Any]) -> Any:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def test_each_side_reads_the_other_s_last_release() -> None:
    document = json.loads((Path(__file__).parent / "openapi.json").read_text(encoding="utf-8"))
    assert list(differences(json.loads(file_at(last_release(), _PATH)), document)) == []


def _document() -> dict[str, Any]:
    ask = {"type": "object", "required": ["domain"], "properties": {"domain": {"type": "string"}}}
    state = {"type": "string", "enum": ["open", "done"]}
    answer = {"type": "object", "required": ["state"], "properties": {"state": {"$ref": "#/components/schemas/State"}}}
    route = {
        "x-roles": ["owner"],
        "requestBody": {"content": {"application/json": {"schema": ask}}},
        "responses": {"200": {"content": {"application/json": {"schema": {"type": "array", "items": answer}}}}},
    }
    document = {"paths": {"/owners": {"post": route}}, "components": {"schemas": {"State": state}}}
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


ASK = ("paths", "/owners", "post", "requestBody", "content", "application/json", "schema")
ANSWER = ("paths", "/owners", "post", "responses", "200", "content", "application/json", "schema", "items")


@pytest.mark.parametrize(
    ("keys", "change", "said"),
    [
        (("paths",), {"/owners": {}}, "POST /owners: gone"),
        (("paths", "/owners", "post"), {"x-roles": ["operator"]}, "POST /owners: fewer roles"),
        (("paths", "/owners", "post"), {"parameters": [{"name": "kind", "required": True}]}, "kind is required"),
        (ASK, {"required": ["domain", "kind"]}, "request.kind: has no default"),
        (ASK, {"properties": {}}, "request.domain: gone"),
        ((*ASK, "properties", "domain"), {"default": "law"}, "request.domain: its default was None, is law"),
        (ANSWER, {"required": []}, "answer.items.state: earlier clients need it"),
        (ANSWER, {"required": ["state", "left"]}, "answer.items.left: has no default"),
        (("components", "schemas", "State"), {"enum": ["open", "done", "short"]}, "answers ['\"short\"']"),
        (("components", "schemas", "State"), {"type": "integer"}, "was string, is integer"),
    ],
)
def test_a_breaking_difference_is_named(keys: tuple[str, ...], change: dict[str, Any], said: str) -> None:
    document = inner = _document()
    for key in keys:
        inner = inner[key]
    inner.update(change)
    [difference] = differences(_document(), document)
    assert said in difference


def test_further_fields_with_defaults_break_nothing() -> None:
    document = _document()
    document["paths"]["/later"] = {"get": {"responses": {}}}
    for keys in (ASK, ANSWER):
        inner: dict[str, Any] = document
        for key in keys:
            inner = inner[key]
        inner["properties"]["later"] = {"type": "integer", "default": 1}
    assert list(differences(_document(), document)) == []
