"""In a conversation exactly the tokens that should count do, and the others are read all the same."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.documents.conversations import conversation, encode, plain, require_template
from moerge.documents.shards import plan
from moerge.errors import MoergeError
from moerge_proto.statistics_file import StatisticsSettings
from support.models import tokenizer

CHATML = "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}</s>\n{% endfor %}"
TRIMS = CHATML.replace("message.content", "message.content | trim")
FORGETS = CHATML.replace("message.content", "message.content.split('</think>')[-1]")
REFUSES = "{{ raise_exception('roles must alternate') }}"
TALK = [
    {"role": "user", "content": "wh\u00e4t?"},
    {"role": "assistant", "content": " th\u00e4t "},
    {"role": "user", "content": "user"},
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": "user"},
]


def chat_tokenizer(template: str | None = CHATML) -> Any:
    made = tokenizer()
    made.chat_template = template
    return made


def spoken(ids: list[int]) -> str:
    """The text of the ids that count."""
    return str(chat_tokenizer().decode([id_ for id_ in ids if id_ >= 0]))


@pytest.mark.parametrize(("template", "said"), [(CHATML, " th\u00e4t user"), (TRIMS, "th\u00e4tuser")])
def test_of_an_assistant_the_tokens_of_its_content_count_and_no_others(template: str, said: str) -> None:
    made = chat_tokenizer(template)
    ids = encode(made, conversation(TALK, made, "assistant"))
    assert spoken(ids) == said
    assert [id_ if id_ >= 0 else ~id_ for id_ in ids] == made.apply_chat_template(TALK)["input_ids"]


def test_of_all_turns_every_token_counts_with_the_template_s_marks() -> None:
    made = chat_tokenizer()
    assert encode(made, conversation(TALK, made, "all")) == made.apply_chat_template(TALK)["input_ids"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=9)), min_size=1, max_size=6))
def test_whatever_is_said_the_assistant_s_share_is_exact(turns: list[tuple[str, str]]) -> None:
    made = chat_tokenizer()
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        document = conversation(messages, made, "assistant")
    except ValueError:  # half of a surrogate pair, or a content that holds our mark
        assert any("\ud800" <= letter <= "\ue001" for _, content in turns for letter in content)
        return
    assert document.counted is not None
    found = [document.text[start:stop] for start, stop in document.counted]
    assert found == [content for role, content in turns if role == "assistant"]


@pytest.mark.parametrize(
    ("value", "template", "reason"),
    [
        ("text", CHATML, "no list of messages"),
        ([], CHATML, "no list of messages"),
        ([{"content": "a"}], CHATML, "no role"),
        ([{"role": "user", "content": ["a"]}], CHATML, "'user' is no string"),
        (TALK, REFUSES, "refuses it: roles must alternate"),
        ([{"role": "assistant", "content": "a</think>b"}], FORGETS, "changes what a turn says"),
    ],
)
def test_what_is_no_conversation_is_told(value: object, template: str, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        conversation(value, chat_tokenizer(template), "assistant")


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(MoergeError, match="no chat template") as caught:
        require_template(chat_tokenizer(None))
    assert caught.value.where == "--chat"


def test_a_plain_text_is_read_as_ever() -> None:
    made = tokenizer()
    assert encode(made, plain("a text")) == made("a text")["input_ids"]


# --- what counts, in shards


IDS = st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=60)


@settings(deadline=None)
@given(st.lists(IDS, max_size=8), st.integers(1, 16), st.none() | st.integers(1, 9))
def test_shards_hold_the_first_tokens_that_count_and_what_is_read_before_them(
    documents: list[list[tuple[int, bool]]], context: int, most: int | None
) -> None:
    given = [[id_ if counts else ~id_ for id_, counts in document] for document in documents]
    settings = StatisticsSettings(tokens_per_document=most, context=context)
    shards = list(plan(given, list, settings, 1, b"key"))
    counted = [[id_ for id_ in ids if id_ >= 0][:most] for ids in given]
    assert [id_ for shard in shards for row in shard.rows for id_ in row if id_ >= 0] == list(chain(*counted))
    assert sum(shard.tokens for shard in shards) == sum(map(len, counted))
    assert sum(shard.documents for shard in shards) == sum(map(bool, counted))
    assert all(any(id_ >= 0 for id_ in row) for shard in shards for row in shard.rows)


def test_the_name_of_a_shard_tells_what_counts() -> None:
    names = {next(plan([ids], list, StatisticsSettings(), 1, b"k")).name for ids in ([1, 2], [1, ~2], [~1, 2])}
    assert len(names) == 3
