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
from moerge.documents.reader import BadLines
from moerge.errors import MoergeError
from support.documents import documents, texts_of

TEXTS = [f"document {number}\nof two lines, \u2028 and \u00e9" for number in range(150)]


def read(*sources: object, field: str = "text", share: float = 0.0, say: Callable[[str], None] = print) -> list[str]:
    return list(documents(data_files(*map(str, sources), say=say), field, BadLines(share, say)))


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
    with pytest.raises(MoergeError, match="no document in the field 'text'; found fields: body, other"):
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
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "data" / "sub")
    messages: list[str] = []
    folder = tmp_path / "data"
    assert read(folder, say=messages.append) == ["a.jsonl", "c.jsonl", "a.jsonl", "sub/b.jsonl"]
    assert messages == [
        f"left out of {folder}: hidden by . or _: 1, such as '{folder}/.part.jsonl'; linked folders: 1, such as "
        f"'{folder}/linked'; files of unknown formats: 1, such as '{folder}/paper.pdf'"
    ]
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


def test_a_folder_without_a_file_that_is_read_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "_train.jsonl").touch()
    (tmp_path / "sub").symlink_to(tmp_path.parent)
    with pytest.raises(MoergeError, match=r"left out: hidden by \. or _: 1, .*; linked folders: 1, such as") as caught:
        data_files(str(tmp_path))
    assert "name the files or folders themselves" in caught.value.todo
    (tmp_path / "a.jsonl").symlink_to("missing")
    with pytest.raises(MoergeError, match=r"can't be read: .*a\.jsonl") as caught:
        data_files(str(tmp_path))
    assert "S3" not in caught.value.todo


NAMES = (
    "data [v1]/a.jsonl",
    "data [v1]/[x] b.jsonl",
    "what?/a#b%20.jsonl",
    "a::b/c::d.jsonl",
    "~/e.jsonl",
    "all*/f.jsonl",
)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        *((name, [name]) for name in NAMES),
        ("data [v1]", ["data [v1]/[x] b.jsonl", "data [v1]/a.jsonl"]),
        ("data [v1]/*.jsonl", ["data [v1]/[x] b.jsonl", "data [v1]/a.jsonl"]),
        ("data [v1]/[ab].jsonl", ["data [v1]/a.jsonl"]),
        ("data [v1]/[x]*", ["data [v1]/[x] b.jsonl"]),
        ("**/[x]*", ["data [v1]/[x] b.jsonl"]),
        ("data*/?.jsonl", ["data [v1]/a.jsonl"]),
        ("what?/*", ["what?/a#b%20.jsonl"]),
        ("a::b/*::*", ["a::b/c::d.jsonl"]),
        ("all*/*", ["all*/f.jsonl"]),
        ("~/home.jsonl", ["home.jsonl"]),
        ("~/h*.jsonl", ["home.jsonl"]),
    ],
)
def test_a_path_with_signs_of_patterns_or_addresses_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, names: list[str]
) -> None:
    """A ~ at the beginning is the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*NAMES, "home.jsonl", "all/g.jsonl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(lines([name]))
    source = f"./{source}" if source == NAMES[4] else source
    assert [file.url for file in data_files(source)] == [f"{tmp_path}/{name}" for name in names]
    assert read(source) == names


def test_content_says_how_it_is_compressed_where_the_name_does_not(tmp_path: Path) -> None:
    for name, pack in (("a.jsonl", gzip.compress), ("b.json", zstandard.compress), ("c.ndjson", bz2.compress)):
        (tmp_path / name).write_bytes(pack(lines(TEXTS)))
    (tmp_path / "d.txt").write_bytes(lzma.compress(b"BZh"))
    assert read(tmp_path) == [*TEXTS * 3, "BZh"]


def test_a_pointer_of_git_lfs_is_no_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(MoergeError, match="a pointer of Git LFS") as caught:
        read(path)
    assert caught.value.where == str(path)


# --- missing texts


def test_a_missing_or_null_text_is_none(tmp_path: Path) -> None:
    path, messages = tmp_path / "a.jsonl", list[str]()
    path.write_text('{"text": "a"}\n{"text": null}\n\n{"other": "b"}\n{"text": ""}\n"c"\n')
    assert read(path, say=messages.append) == ["a", "", "c"]
    assert messages == ["skipped 2 documents of 5: the field is missing or null"]
    pyarrow.parquet.write_table(pa.table({"text": ["a", None]}), tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet") == ["a"]


@pytest.mark.parametrize("form", ["jsonl", "json", "parquet", "arrow"])
def test_a_file_without_the_field_names_those_that_it_has(tmp_path: Path, form: str) -> None:
    rows = [{"id": "a1", "content": "a text", "talk": [{"role": "user", "content": "a"}]}] * 3
    path, table = tmp_path / f"a.{form}", pa.Table.from_pylist(rows)
    if form == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as out:
            out.write_table(table)
    else:
        path.write_text(json.dumps(rows) if form == "json" else "".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(MoergeError, match="no document in the field 'text'; found fields: id, content, talk") as caught:
        list(documents(data_files(str(path)), "text", BadLines(settings=("text_field", "chat"))))
    assert caught.value.where == str(path)
    assert caught.value.todo == "name the field with the documents: `text_field` content or `chat` talk"


def test_a_wrong_field_is_told_before_the_end_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(["a"] * 10_000, "content") + lines(["b"]))
    with pytest.raises(MoergeError, match="found fields: content"):
        read(path)
    path.write_bytes(lines(["a"] * 9_999, "content") + lines(["b"]))
    assert read(path) == ["b"]


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
        b"[1]",
        b"5",
        b"null",
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


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"hello", "not JSON: Expecting value at character 1"),
        (b"[1]", "expected an object with fields, found a list"),
        (b'{"text": 5}', "expected a text, found a number"),
        (b'{"text": [{"role": "user", "content": "a"}]}', "expected a text, found a list of messages"),
        ('{"text": "\u00e9"}'.encode("latin-1"), "byte 0xe9, not UTF-8; save it as UTF-8"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_each_fault_has_its_own_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n" + content + b"\n" + lines(["a"]))
    with pytest.raises(MoergeError) as caught:
        read(path)
    assert (caught.value.where, caught.value.what) == (f"{path}, line 2", f"no document in the field 'text': {reason}")


@pytest.mark.parametrize(
    ("settings", "todo"),
    [
        ((), "correct the data"),
        (("text_field",), "correct the data, or name the right field with `text_field`"),
        (("text_field", "chat"), "correct the data, or name the right field with `text_field` or `chat`"),
        (("bad_share",), "correct the data, or raise `bad_share`"),
    ],
)
def test_a_remedy_is_a_setting_that_the_caller_has(tmp_path: Path, settings: tuple[str, ...], todo: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"broken\n")
    with pytest.raises(MoergeError) as caught:
        list(documents(data_files(str(path)), "text", BadLines(0.01, settings=settings)))
    assert caught.value.todo == todo


def test_text_that_is_not_utf_8_is_a_bad_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("a".encode("utf-16"))
    (tmp_path / "b.txt").write_bytes(b"\xe9")
    (tmp_path / "c.txt").write_bytes(b"c")
    messages: list[str] = []
    assert read(tmp_path, share=0.9, say=messages.append) == ["c"]
    reasons = [message.rpartition("'text': ")[2] for message in messages[:2]]
    assert reasons == ["UTF-16, not UTF-8; save it as UTF-8", "byte 0xe9, not UTF-8; save it as UTF-8"]
