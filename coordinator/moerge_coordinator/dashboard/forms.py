"""Actions and their confirmation forms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from moerge.errors import CoordinatorError
from moerge_coordinator.dashboard.site import HOME, Page, Visit
from moerge_proto.messages import plainly
from moerge_proto.problems import Problem, ProblemType

N = TypeVar("N", int, float)
Given = Mapping[str, str]
"""The values of a form's fields, as they were sent."""


@dataclass(frozen=True)
class Field:
    """A field of a form. With `options` it is a choice, with `lines` a text of several lines.

    A field `on_refusal` appears after REST has refused the form because of it.
    """

    name: str
    label: str
    value: str = ""
    hint: str = ""
    options: tuple[tuple[str, str], ...] = ()
    lines: bool = False
    kind: str = "text"
    required: bool = False
    on_refusal: bool = False


NOTE = Field("note", "Note", hint="reason, for the history")


@dataclass(frozen=True)
class Form:
    """A form: its heading, the text of its button, the address of Cancel, facts, and fields."""

    heading: str
    button: str
    back: str
    facts: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    danger: bool = False


@dataclass(frozen=True)
class Action:
    """An action: its form, and its REST calls, which return the next page or its address."""

    ask: Callable[[Visit], Form]
    do: Callable[[Visit, Given], str | Response]

    def page(self) -> Page:
        return Page(partial(_answer, self), methods=("GET", "POST"))


def _answer(action: Action, visit: Visit) -> Response:
    if visit.request.method != "POST":
        return visit.show("form.html", form=action.ask(visit), problem=None, given={})
    given = visit.form()
    try:
        done = action.do(visit, given)
    except CoordinatorError as error:
        problem = error.problem()
        return visit.show("form.html", problem.status, form=action.ask(visit), problem=problem, given=given)
    return RedirectResponse(done, 303) if isinstance(done, str) else done


def said(path: str, word: str) -> str:
    """The address of a page with an action's notice."""
    return f"{HOME}{path}?said={word}"


def choice(name: str, label: str, first: object, words: Mapping[str, str]) -> Field:
    """A choice with one option, the recommended one, selected and before the others."""
    return Field(name, label, value=str(first), options=tuple(sorted(words.items(), key=lambda item: item[0] != first)))


def number_of(given: Given, field: str, kind: type[N]) -> N:
    try:
        return kind(given.get(field, ""))
    except ValueError as error:
        raise invalid(field, f"expected a number, found {given.get(field, '')!r}") from error


def invalid(field: str, what: str, todo: str = "") -> CoordinatorError:
    """The refusal of a field's value, as REST would answer it."""
    return CoordinatorError(Problem.of(ProblemType.INVALID_REQUEST, what, field=field, todo=todo))


def reason(error: ValidationError) -> str:
    return plainly(error.errors()[0])
