"""The pool of public texts is fixed, varied, and named by its bytes."""

from collections import Counter
from importlib.resources import files

from moerge.documents.pool import pool_texts
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
