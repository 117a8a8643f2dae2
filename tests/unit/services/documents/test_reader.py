"""Whatever a file's form, its documents come one at a time; what can't be read is named by file and line."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
import zstandard

from moerge.documents.files import data_files
from moerge.documents.reader import BadLines, as_text, documents
from moerge.errors import MoergeError
from support.documents import texts_of

TEXTS = [f"document {number}\nof two lines, \u2028 and \u00e9" for number in range(150)]


def read(*sources: object, field: str = "text", share: float = 0.0, say: Callable[[str], None] = print) -> list[str]:
    return list(documents(data_files(*map(str, sources), say=say), field, as_text, BadLines(share, say)))


def lines(texts: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({field: text}, ensure_ascii=False) + "\n" for text in texts).encode()


# --- forms


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.compress),
    ],
)
def test_files_may_be_compressed_and_truncated_ones_are_errors(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    """Two frames in one file, too, as parallel compressors write them."""
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(lines(TEXTS[:100])) + pack(lines(TEXTS[100:])))
    (tmp_path / f"b.txt{suffix}").write_bytes(pack(b"plain"))
    assert read(tmp_path) == [*TEXTS, "plain"]
    if suffix:
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(MoergeError, match="can't be read") as caught:
            read(path)
        assert caught.value.where.startswith(str(path))


def test_parquet_by_column(tmp_path: Path) -> None:
    table = pa.table({"body": TEXTS, "other": list(range(len(TEXTS)))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    assert read(tmp_path / "a.parquet", field="body") == TEXTS
    with pytest.raises(MoergeError, match="no column 'text'; the columns are body, other"):
        read(tmp_path / "a.parquet")


def test_a_dataset_on_disk_is_what_its_state_names(tmp_path: Path) -> None:
    """In the layout of datasets' `save_to_disk`, with a cache beside it that `map` has left."""
    folder = tmp_path / "set" / "train"
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, some in [(names[0], TEXTS[:70]), (names[1], TEXTS[70:]), ("cache-1f.arrow", ["not this"])]:
        table = pa.table({"text": some})
        with pa.ipc.new_stream(folder / name, table.schema) as out:
            out.write_table(table, max_chunksize=33)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert read(folder) == read(tmp_path / "set") == TEXTS
    (folder / "state.json").write_text("{}")
    with pytest.raises(MoergeError, match="not the state of a saved dataset") as caught:
        read(folder)
    assert caught.value.where == str(folder / "state.json")


def test_a_url_of_any_kind(tmp_path: Path) -> None:
    with fsspec.open("memory://texts/b.jsonl.gz", "wb") as file:
        file.write(gzip.compress(lines(TEXTS)))
    assert read("memory://texts/*.gz") == read("memory://texts") == TEXTS
    with pytest.raises(MoergeError, match="can't be read") as caught:
        read("nosuch://texts")
    assert caught.value.where == "`data` nosuch://texts"


# --- files


def test_files_come_in_one_order_and_none_twice(tmp_path: Path) -> None:
    for name in ("c.jsonl", "a.jsonl", "sub/b.jsonl", "_SUCCESS", ".part.jsonl", "paper.pdf"):
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(lines([name]))
    (tmp_path / "data" / "link.jsonl").symlink_to(tmp_path / "data" / "a.jsonl")
    messages: list[str] = []
    folder = tmp_path / "data"
    assert read(folder, say=messages.append) == ["a.jsonl", "c.jsonl", "a.jsonl", "sub/b.jsonl"]
    assert messages == [f"left out of {folder}: 1 linked folders or files of unknown formats"]
    assert read(folder / "c.jsonl", folder / "a.jsonl", f"{folder}/a*") == ["a.jsonl", "c.jsonl"]


def test_what_names_no_document_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").mkdir()
    with pytest.raises(MoergeError, match="no file matches") as caught:
        data_files(f"{tmp_path}/*.jsonl")
    assert caught.value.where == f"`data` {tmp_path}/*.jsonl"
    (tmp_path / "a.pdf").touch()
    with pytest.raises(MoergeError, match="unknown file format") as caught:
        data_files(f"{tmp_path}/a.pdf")
    assert ".parquet" in caught.value.todo


# --- bad lines


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": 5}',
        b'{"text": ["a", "b"]}',
        b'{"text": {"a": 1}}',
        b'{"text": true}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b'{"txt": "a"}',
        b"[1]",
        b"",
        b'{"text": "a"',
    ],
)
def test_a_line_without_a_readable_text_is_named(tmp_path: Path, line: bytes) -> None:
    """Numbers and lists are no text, and neither half a surrogate pair nor a broken byte is any tokenizer's input."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n{"text": ""}\n' + line + b"\n")
    with pytest.raises(MoergeError) as caught:
        list(texts_of([path]))
    assert caught.value.where == f"{path}, line 3"
    assert caught.value.todo


def test_bad_documents_are_shown_and_skipped_up_to_the_share(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"broken\n" * 7 + lines(TEXTS[:93]))
    messages: list[str] = []
    assert read(path, share=0.07, say=messages.append) == TEXTS[:93]
    assert messages[0].startswith(f"skipped: {path}, line 1: ")
    assert len(messages) == 6
    assert messages[-1] == "skipped 7 unreadable documents of 100"
    with pytest.raises(MoergeError, match=r"7 of 100 documents so far can't be read, allowed 6\.00%") as caught:
        read(path, share=0.06)
    assert caught.value.where == f"{path}, line 7"


def test_far_too_many_bad_documents_stop_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"broken\n" * 500 + lines(TEXTS) * 500)
    with pytest.raises(MoergeError) as caught:
        read(path, share=0.01)
    assert caught.value.where == f"{path}, line 11"


def test_invalid_utf_8_and_null_texts_are_bad_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    pyarrow.parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "b.parquet")
    messages: list[str] = []
    assert read(tmp_path, share=0.9, say=messages.append) == ["a"]
    assert messages[0] == f"skipped: {tmp_path}/a.txt: no document in the field 'text': not UTF-8"
    assert messages[1].startswith(f"skipped: {tmp_path}/b.parquet, row 2: ")
