"""Values of forms, and refusals of invalid ones."""

import pytest
from pydantic import ValidationError

from moerge.errors import CoordinatorError
from moerge_coordinator.dashboard.forms import choice, number_of, reason
from moerge_proto.versions import VersionChange


def test_the_recommended_option_is_selected_and_the_first() -> None:
    result = choice("n", "N", "b", {"": "A", "b": "B", "c": "C"})
    assert result.value == "b"
    assert result.options == (("b", "B"), ("", "A"), ("c", "C"))


def test_a_number_is_read_as_its_kind() -> None:
    assert number_of({"n": "0.5"}, "n", float) == 0.5
    assert number_of({"n": "2"}, "n", int) == 2


@pytest.mark.parametrize(("given", "kind"), [({}, int), ({"n": "0.5"}, int), ({"n": "much"}, float)])
def test_an_invalid_number_is_refused_with_its_field(given: dict[str, str], kind: type[int] | type[float]) -> None:
    with pytest.raises(CoordinatorError) as refused:
        number_of(given, "n", kind)
    problem = refused.value.problem()
    assert (problem.status, problem.field) == (422, "n")
    assert repr(given.get("n", "")) in problem.detail


def test_the_reason_of_a_validation_error_is_its_first_message() -> None:
    with pytest.raises(ValidationError) as refused:
        VersionChange(tags=["Not A Tag"])
    assert reason(refused.value).startswith("expected the form ^")
