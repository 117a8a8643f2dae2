"""Tokens as people give them: what is dropped, what is refused, and that no error has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerge.bearer import bearer_token
from moerge.errors import MoergeError

PRINTABLE = st.characters(min_codepoint=ord("!"), max_codepoint=ord("~"))


@given(st.text(PRINTABLE, min_size=1), st.text(" \t\r\n\x0b\x0c\u00a0"), st.text(" \t\r\n"))
def test_white_space_around_a_token_is_dropped(token: str, before: str, after: str) -> None:
    assert bearer_token(before + token + after, "MOERGE_TOKEN") == token


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        (" \r\n", "is empty"),
        ("moerge_Zq7 Kx9", "character 11 of the token is white space"),
        ("moerge_Zq7\nmoerge_Kx9\n", "character 11 of the token is white space"),
        ("moerge_Zq7\x00", "character 11 of the token is not a printable ASCII character"),
        ("moerge_Zq7\x7fKx9", "not a printable"),
        ("\ufeffmoerge_Zq7", "character 1 of the token"),
        ("moerge_Zq7é", "not a printable"),
        ("moerge_Zq7\udcff", "not a printable"),
    ],
)
def test_an_unusable_token_is_refused_by_the_name_of_its_place(text: str, what: str) -> None:
    with pytest.raises(MoergeError, match=what) as caught:
        bearer_token(text, "MOERGE_TOKEN")
    assert (caught.value.where, bool(caught.value.todo)) == ("MOERGE_TOKEN", True)
    assert not any(part in str(caught.value) for part in ("Zq7", "Kx9"))
