"""Which documents the MLPs are fitted to: a function of the texts alone."""

from functools import partial

from moerge.documents.conversations import Document, plain
from moerge.documents.fitting_sample import fitting_sample, fitting_tokens
from moerge.documents.splits import text_digest
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings

TEXTS = [f"{'of the law ' * (number % 5)}document {number}" for number in range(60)]
LEAST = 10


def encode(document: Document) -> Tokens:
    """A token a letter, of which spaces don't count."""
    return Tokens([ord(letter) for letter in document.text], [letter != " " for letter in document.text])


def chosen(texts: list[str], tokens: int, **settings: int) -> list[str]:
    limits = StatisticsSettings.model_validate({"context": 16, **settings})
    documents = ((text_digest(text), partial(encode, plain(text))) for text in texts)
    sample = fitting_sample(documents, limits, tokens, LEAST)
    return ["".join(chr(id_) for row in rows for id_ in row.ids) for rows in sample]


def letters(texts: list[str]) -> int:
    return sum(len(text.replace(" ", "")) for text in texts)


def test_small_corpus_is_selected_whole_without_duplicates() -> None:
    assert chosen([*TEXTS, *TEXTS[:7]], 10**6) == TEXTS
    assert chosen([" ", *TEXTS], 10**6) == TEXTS  # nothing of it counts


def test_selection_is_minimal_and_independent_of_order() -> None:
    result = chosen(TEXTS, 700)
    assert letters(result) >= 700
    assert LEAST < len(result) < len(TEXTS)
    assert result == [text for text in TEXTS if text in result] != TEXTS[: len(result)]
    shuffled = [*TEXTS[1::2], *TEXTS[::2]]
    assert chosen(shuffled, 700) == [text for text in shuffled if text in result]
    fewer = chosen(TEXTS, letters(result) - max(map(len, TEXTS)))
    assert set(fewer) < set(result)
    assert len(chosen(TEXTS, letters(result) + 1)) == len(result) + 1
    assert len(chosen(TEXTS, letters(result))) == len(result)


def test_never_fewer_documents_than_the_least() -> None:
    assert len(chosen(TEXTS, 1)) == LEAST


def test_of_a_document_the_first_tokens_that_count() -> None:
    assert {letters([text]) for text in chosen(TEXTS, 10**6, tokens_per_document=4)} == {4}


def test_enough_is_a_shard_or_65_536_tokens() -> None:
    assert (fitting_tokens(16), fitting_tokens(4096)) == (2**16, 64 * 4096)
