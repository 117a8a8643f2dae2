"""A name is one file name, one URL segment, and never a way out of a folder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from moerge_proto.digests import Digest, Name

NAME: TypeAdapter[str] = TypeAdapter(Name)


@pytest.mark.parametrize("name", [".", "..", ".a", "a.b", "a..", "a\\b", "_a", "a%2fb", "a?b", "a\0b"])
def test_dots_and_other_ways_out_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        NAME.validate_python(name)


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True))
def test_plain_names_are_accepted_as_they_are(name: str) -> None:
    assert NAME.validate_python(name) == name


@pytest.mark.parametrize("digest", ["A" * 64, "0" * 63, "0" * 65, "g" * 64, "0" * 63 + "\n", "../" + "0" * 61])
def test_digests_are_64_lower_case_hexadecimal_digits(digest: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Digest).validate_python(digest)
