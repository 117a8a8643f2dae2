"""Names, digests and problems."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from moerge_proto.digests import Digest, Name, canonical_json, digest_of
from moerge_proto.experts import NewExpert
from moerge_proto.messages import Message
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import Move

NAME: TypeAdapter[str] = TypeAdapter(Name)


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "a/b", "", "A", "-a", "a" * 64, "a b", "a\n", "é"),
        *(".", "..", ".a", "a.b", "a..", "a\\b", "_a", "a%2fb", "a?b", "a\0b"),
    ],
)
def test_names_that_are_no_plain_file_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        NAME.validate_python(name)


@given(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True))
def test_plain_names_are_accepted_as_they_are(name: str) -> None:
    assert NAME.validate_python(name) == name


@pytest.mark.parametrize("digest", ["A" * 64, "0" * 63, "0" * 65, "g" * 64, "0" * 63 + "\n", "../" + "0" * 61])
def test_digests_are_64_lower_case_hexadecimal_digits(digest: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Digest).validate_python(digest)


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": [1.0, "é"]}) == '{"a":[1,"é"],"b":1}'.encode()
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


@pytest.mark.parametrize("kind", ProblemType)
def test_every_problem_type_has_a_status_and_a_stable_name(kind: ProblemType) -> None:
    problem = Problem.of(kind, "what", field="where", todo="next")
    assert problem.status == kind.status
    assert problem.type == f"urn:moerge:problem:{kind.value}"


def test_unknown_fields_and_free_text_licences_are_refused() -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        NewExpert.model_validate({"domain": "law", "files": {"a": "0" * 64}, "path": "/etc/passwd"})
    with pytest.raises(ValidationError, match="license"):
        NewExpert.model_validate({"domain": "law", "files": {"a": "0" * 64}, "license": "| <script>"})


@pytest.mark.parametrize(("kind", "fields"), [(Move, {"version": True}), (SolveOptions, {"top_k": True})])
def test_a_truth_value_is_no_number(kind: type[Message], fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="valid integer"):
        kind.model_validate(fields)
