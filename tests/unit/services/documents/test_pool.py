"""Public texts: the pool is fixed, varied, and named by its bytes; a file of others by its texts."""

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from moerge.documents.pool import MOST_PUBLIC_BYTES, PublicDocuments, pool_texts
from moerge.errors import MoergeError
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import POOL

DIGEST = "aee96030ac5b2bd8fb7cb9b075b5bf616fc5b692cef0cb699e6c08a40c6116b9"
FEWEST_BYTES, MOST_BYTES, MOST_SHARED = 440, 700, 0.25


def test_pool_is_named_by_the_bytes_of_its_file() -> None:
    data = files("moerge.documents").joinpath("pool.txt").read_bytes()
    assert sha256_hex(data) == POOL == DIGEST, "another pool is another setting of contributions"
    assert len(data) == 33_408


def test_pool_has_64_texts_of_about_the_same_size() -> None:
    texts = pool_texts()
    assert len(texts) == 64
    assert all(FEWEST_BYTES <= len(text.encode()) <= MOST_BYTES for text in texts)


def test_texts_of_the_pool_differ_in_their_openings_and_in_their_words() -> None:
    texts = pool_texts()
    assert len({text[:8] for text in texts}) == len(texts)
    parts = [Counter(text[place : place + 8] for place in range(len(text) - 7)) for text in texts]
    for number, one in enumerate(parts):
        for other in parts[:number]:
            assert (one & other).total() < MOST_SHARED * min(one.total(), other.total())


def test_texts_of_the_pool_are_clean() -> None:
    assert all(text == text.strip() and "\r" not in text and "\ufffd" not in text for text in pool_texts())


def test_the_pool_is_the_public_text_without_another() -> None:
    assert PublicDocuments() == PublicDocuments(POOL, pool_texts())


def test_a_public_text_is_named_by_its_texts_and_not_by_its_files(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("b", "a", "b", "")))
    (tmp_path / "folder").mkdir()
    for name, text in (("1.txt", "a"), ("2.txt", "b")):
        (tmp_path / "folder" / name).write_text(text)
    read = PublicDocuments.read(str(lines), "here")
    assert read == PublicDocuments.read(str(tmp_path / "folder"), "here")
    assert list(read.texts) == ["a", "b"]
    (tmp_path / "folder" / "3.txt").write_text("c")
    assert PublicDocuments.read(str(tmp_path / "folder"), "here").digest not in (read.digest, POOL)


def test_a_public_text_that_is_missing_empty_or_too_large_is_refused(tmp_path: Path) -> None:
    large, empty = tmp_path / "large.txt", tmp_path / "empty.txt"
    large.write_text("x" * MOST_PUBLIC_BYTES)
    assert PublicDocuments.read(str(large), "here").texts
    large.write_text("x" * (MOST_PUBLIC_BYTES + 1))
    empty.touch()
    for path, problem in (
        (large, "more than 1,048,576 bytes"),
        (empty, "no document has text"),
        (tmp_path / "x", "no file matches"),
    ):
        with pytest.raises(MoergeError, match=problem) as caught:
            PublicDocuments.read(str(path), "[privacy] `public`")
        assert caught.value.where.startswith("[privacy] `public`")
