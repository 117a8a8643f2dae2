"""The error of a missing field names fields that are there, and no text that may be private."""

import pytest

from moerge.documents.fields import Field, kind_of

TALK = [{"role": "user", "content": "a"}]


def error(*records: dict[str, object], settings: tuple[str, ...] = ("text_field", "chat")) -> tuple[str, str]:
    field = Field("text", settings)
    assert [field.value(record) for record in records] == [None] * len(records)
    result = field.missing_error("a.jsonl")
    return result.what.rpartition("; ")[2], result.todo.rpartition(": ")[2]


@pytest.mark.parametrize(
    ("record", "ways"),
    [
        ({"content": "a text", "id": "17"}, "`text_field` content"),
        ({"prompt": "a text", "response": "a text"}, "`text_field` prompt or `text_field` response"),
        ({"messages": TALK, "id": "17"}, "`chat` messages"),
        ({"messages": TALK, "body": "a text"}, "`text_field` body or `chat` messages"),
        ({"conversations": [{"from": "human", "value": "a"}], "n": 3}, "`text_field` NAME or `chat` NAME"),
        ({}, "`text_field` NAME or `chat` NAME"),
    ],
)
def test_fields_that_look_like_documents_are_advised(record: dict[str, object], ways: str) -> None:
    assert error(record) == (f"found fields: {', '.join(record) or 'none'}", ways)


def test_only_settings_of_the_caller_are_advised() -> None:
    record: dict[str, object] = {"body": "a text", "messages": TALK}
    assert error(record, settings=("text_field",))[1] == "`text_field` body"
    assert error(record, settings=())[1] == "rename the field with the text 'text'"
    assert error({"messages": TALK}, settings=("text_field",))[1] == "`text_field` NAME"


def test_names_that_may_be_text_are_only_counted() -> None:
    names = {f"f{number}": 1 for number in range(40)}
    record: dict[str, object] = {"Jane Doe was ill": "a b", "x" * 99: "a b", "body": "a b", **names}
    shown, ways = error(record)
    assert shown.startswith("found fields: body, f0, ")
    assert shown.endswith(", f18, 23 more")
    assert ways == "`text_field` body"


def test_a_null_field_is_told() -> None:
    field = Field("text")
    assert field.value({"text": None}) is None
    assert field.missing_error("a").what == "no document in the field 'text', which is null; found fields: none"
    assert field.value({"text": ""}) == ""
    assert (field.found, field.missing) == (1, 1)


def test_values_have_kinds_in_words() -> None:
    values: list[object] = [None, True, 0.5, "a", [], TALK, {}, b""]
    words = ["null", "a boolean", "a number", "a text", "a list", "a list of messages", "an object", "bytes"]
    assert list(map(kind_of, values)) == words
