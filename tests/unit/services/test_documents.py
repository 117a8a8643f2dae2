"""A document that can't be read is named by file and line, whatever is wrong with it."""

from pathlib import Path

import pytest

from moerge.documents import data_files, documents
from moerge.errors import MoergeError


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": 5}',
        b'{"text": ["a", "b"]}',
        b'{"text": {"a": 1}}',
        b'{"text": true}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b"",
        b'{"text": "a"',
    ],
)
def test_a_line_without_a_readable_text_is_named(tmp_path: Path, line: bytes) -> None:
    """Numbers and lists are no text, and neither half a surrogate pair nor a broken byte is any tokenizer's input."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(MoergeError) as caught:
        list(documents([path]))
    assert caught.value.where == f"{path}, line 2"
    assert caught.value.todo


def test_line_separators_within_a_text_end_no_line(tmp_path: Path) -> None:
    """JSON leaves U+2028, U+2029 and U+0085 as they are."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\u2028b\u2029c\u0085d"}\n{"text": "e"}\n', encoding="utf-8")
    assert list(documents([path])) == ["a\u2028b\u2029c\u0085d", "e"]


def test_folders_that_match_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    (tmp_path / "b.jsonl").write_text('{"text": "b"}\n')
    assert list(documents(data_files(f"{tmp_path}/*"))) == ["b"]
