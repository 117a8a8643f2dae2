"""In a conversation exactly the tokens that should count do, and the others are read all the same."""

import hmac
import struct
from itertools import chain, compress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.documents.conversations import conversation, encode, plain, require_template
from moerge.documents.shards import plan, shard_name
from moerge.errors import MoergeError
from moerge.models.tokens import Tokens
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


PARTS = [{"type": "text", "text": " th\u00e4t "}]


def chat_tokenizer(template: str | None = CHATML) -> Any:
    talker = tokenizer()
    talker.chat_template = template
    return talker


def spoken(tokens: Tokens) -> str:
    """The text of the tokens that count."""
    return str(chat_tokenizer().decode(list(compress(tokens.ids, tokens.mask))))


@pytest.mark.parametrize(("template", "counted"), [(CHATML, " th\u00e4t user"), (TRIMS, "th\u00e4tuser")])
def test_assistant_mode_counts_only_assistant_content_tokens(template: str, counted: str) -> None:
    talker = chat_tokenizer(template)
    tokens = encode(talker, conversation(TALK, talker, "assistant"))
    assert spoken(tokens) == counted
    assert tokens.ids == talker.apply_chat_template(TALK)["input_ids"]


def test_all_turns_mode_counts_every_token_of_the_template() -> None:
    talker = chat_tokenizer()
    assert encode(talker, conversation(TALK, talker, "all")) == Tokens(talker.apply_chat_template(TALK)["input_ids"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=9)), min_size=1, max_size=6))
def test_whatever_is_said_the_assistant_s_share_is_exact(turns: list[tuple[str, str]]) -> None:
    talker = chat_tokenizer()
    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        document = conversation(messages, talker, "assistant")
    except ValueError:  # half of a surrogate pair, or a content that holds our mark
        assert any("\ud800" <= letter <= "\ue001" for _, content in turns for letter in content)
        return
    assert document.counted is not None
    result = [document.text[start:stop] for start, stop in document.counted]
    assert result == [content for role, content in turns if role == "assistant"]


@pytest.mark.parametrize(
    ("value", "template", "reason"),
    [
        ("text", CHATML, "expected a list of messages, found a text"),
        (["text"], CHATML, "expected a message with role and content, found a text"),
        ([{"from": "human", "value": "a"}], CHATML, "a message has no role; its fields are from, value"),
        ([{"role": "user", "content": ["a"]}], CHATML, "'user' is a list, expected a text"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], CHATML, "no content, such as a call of a tool"),
        ([{"role": "assistant"}], CHATML, "no content"),
        ([{"role": "user", "content": PARTS * 2}], CHATML, "'user' has 2 parts; expected one text"),
        ([{"role": "user", "content": [{"type": "image", "url": "a"}]}], CHATML, "'user' is a list, expected a text"),
        (TALK, REFUSES, "refuses it: roles must alternate"),
        ([{"role": "assistant", "content": "a</think>b"}], FORGETS, "changes the content of a turn"),
    ],
)
def test_what_is_no_conversation_is_told(value: object, template: str, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        conversation(value, chat_tokenizer(template), "assistant")


def test_a_content_of_one_text_part_is_that_text() -> None:
    """Engines join several parts in different ways, so these are refused."""
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in TALK]
    talker = chat_tokenizer()
    assert conversation(parts, talker, "assistant") == conversation(TALK, talker, "assistant")


def test_no_message_is_an_empty_document() -> None:
    assert conversation([], chat_tokenizer("{{ 'always' }}"), "assistant").text == ""


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(MoergeError, match="no chat template") as caught:
        require_template(chat_tokenizer(None))
    assert caught.value.where == "`chat`"


def test_a_plain_text_is_read_as_ever() -> None:
    talker = tokenizer()
    assert encode(talker, plain("a text")) == Tokens(talker("a text")["input_ids"])


# --- what counts, in shards


IDS = st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=60)


@settings(deadline=None)
@given(st.lists(IDS, max_size=8), st.integers(1, 16), st.none() | st.integers(1, 9))
def test_shards_hold_first_counted_tokens_and_their_context(
    documents: list[list[tuple[int, bool]]], context: int, most: int | None
) -> None:
    given = [Tokens([id_ for id_, _ in document], [counts for _, counts in document]) for document in documents]
    settings = StatisticsSettings(tokens_per_document=most, context=context)
    shards = list(plan(given, lambda tokens: tokens, settings, 1, b"key"))
    counted = [[id_ for id_, counts in document if counts][:most] for document in documents]
    assert [id_ for shard in shards for row in shard.rows for id_ in compress(row.ids, row.mask)] == list(
        chain(*counted)
    )
    assert sum(shard.tokens for shard in shards) == sum(map(len, counted))
    assert sum(shard.documents for shard in shards) == sum(map(bool, counted))
    assert all(any(row.mask) for shard in shards for row in shard.rows)


def test_the_name_of_a_shard_tells_what_counts() -> None:
    """Its name is of signed integers, ~id where a token doesn't count, so that it is the same in every release."""
    names = [shard_name(b"k", [Tokens([1, 70_000], counted)]) for counted in (None, [True, True], [True, False])]
    assert names[0] == names[1] == hmac.new(b"k", struct.pack("<qii", 2, 1, 70_000), "sha256").hexdigest()
    assert names[2] == hmac.new(b"k", struct.pack("<qii", 2, 1, ~70_000), "sha256").hexdigest()
