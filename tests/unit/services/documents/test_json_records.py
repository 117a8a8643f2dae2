"""The records of a JSON file are the same in every layout that tools write."""

import json
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.documents.json_records import json_records

RECORDS = [{"text": f"a [{{ \u00e9\u2028 {number}", "n": [number, {"x": None}]} for number in range(3)]
LINES = [json.dumps(record, ensure_ascii=False) for record in RECORDS]
ARRAY, PRETTY = f"[{', '.join(LINES)}]", json.dumps(RECORDS, indent=2)
LAYOUTS = {
    "lines": "\n".join(LINES),
    "lines of Windows": "".join(f"{line}\r\n" for line in LINES),
    "blank lines": "\n \t\n" + "\n\n\u3000\n\r\n".join(LINES) + "\n\n\n",
    "a byte order mark": "\ufeff" + "\n".join(LINES),
    "a byte order mark alone": "\ufeff\n" + "\n".join(LINES),
    "an array in one line": ARRAY,
    "an array with an end of line": f"\ufeff {ARRAY}\n\n",
    "an array, indented": PRETTY,
    "an array, a record on each line": "[\n" + ",\n".join(LINES) + "\n]\n",
    "an array, commas first": "[" + "\n,".join(LINES) + "\n]",
    "objects, indented": "\n".join(json.dumps(record, indent=4) for record in RECORDS),
    "a list of an object": json.dumps({"version": 1, "tags": ["a"], "data": RECORDS}),
    "a list of an object, indented": json.dumps({"authors": [{"name": "a"}], "rows": RECORDS, "size": 3}, indent=1),
}


def read(text: str | bytes, field: str = "text") -> list[tuple[str, Any]]:
    return list(json_records(BytesIO(text.encode() if isinstance(text, str) else text), field))


def values(text: str, field: str = "text") -> list[Any]:
    return [value for _, value in read(text, field)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_same_records(layout: str) -> None:
    assert values(LAYOUTS[layout]) == RECORDS


def test_places_are_lines_of_the_file_or_records() -> None:
    assert [place for place, _ in read(LAYOUTS["blank lines"])] == [", line 3", ", line 7", ", line 11"]
    for layout in ("an array, indented", "a list of an object"):
        assert [place for place, _ in read(LAYOUTS[layout])] == [", record 1", ", record 2", ", record 3"]
    assert read(LINES[0]) == [(", line 1", RECORDS[0])]


def test_one_object_with_the_field_is_a_record() -> None:
    one = {"text": "a", "more": RECORDS}
    assert values(json.dumps(one)) == values(json.dumps(one, indent=2)) == [one]
    assert values(json.dumps({"data": RECORDS, "other": [{"b": 1}]}), "b") == [{"b": 1}]


@pytest.mark.parametrize(
    "one",
    [{"train": RECORDS, "test": RECORDS}, {"messages": [{"role": "user", "content": "a"}]}, {"tags": ["a"]}, {"x": 1}],
)
def test_one_object_without_a_list_of_records_is_a_record(one: dict[str, Any]) -> None:
    assert values(json.dumps(one)) == [one]


def test_a_list_in_each_of_several_objects_is_no_list_of_records() -> None:
    assert values('{"data": [{"text": "a"}]}\n' * 2) == [{"data": [{"text": "a"}]}] * 2


@pytest.mark.parametrize("text", ["", "\n\n", "[]", " [ ]\n", "\ufeff"])
def test_a_file_may_have_no_record(text: str) -> None:
    assert read(text) == []


def test_a_damaged_line_is_one_record() -> None:
    """Also the first one, though it could begin an object over several lines."""
    for damaged in ('{"text": "a"', "{", "[1, 2", "hello", '{"text": 1}}', "[" * 100_000):
        result = values(f"{LINES[0]}\n{damaged}\n{LINES[1]}")
        assert (result[0], result[2]) == (RECORDS[0], RECORDS[1])
        assert isinstance(result[1], ValueError | RecursionError)
    assert isinstance(values(f'{{"text": "a"\n{LINES[0]}\n')[0], ValueError)
    assert values(f"[1]\n{LINES[0]}\n") == [[1], RECORDS[0]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ARRAY[:-1], "found its end"),
        (ARRAY[:-9], "not JSON"),
        (ARRAY + "x", "text behind the array"),
        (PRETTY + PRETTY, "text behind the array"),
        (PRETTY.replace("},", "} x", 1), "expected , or ]"),
        ("[" * 100_000, "recursion"),
        ('[{"text": "a}]', "Unterminated string"),
        (ARRAY.encode("latin-1", "replace"), "can't decode byte 0xe9"),
        (ARRAY.encode("utf-16"), "UTF-16"),
        ("\n".join(LINES).encode("utf-16-le"), "UTF-16"),
    ],
)
def test_a_damaged_array_is_an_error_behind_its_good_records(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(text)


class _Pieces(BytesIO):
    """A file that gives less than is asked for."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or -1, 7) if size and size > 0 else size)

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(min(len(buffer), 7))
        buffer[: len(data)] = data
        return len(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), min_size=2, max_size=9), st.none() | st.just(2))
def test_arrays_are_read_as_json_reads_them(records: list[dict[str, Any]], indent: int | None) -> None:
    text = json.dumps(records, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:  # half of a surrogate pair
        return
    assert values(text.decode()) == records
    assert [value for _, value in json_records(_Pieces(text), "text")] == records
