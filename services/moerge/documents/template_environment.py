"""The environment of chat templates: transformers' own, in which equal inputs give equal texts."""

from collections.abc import Callable, Iterator
from datetime import date, datetime
from functools import wraps
from types import NoneType
from typing import Any

from jinja2 import Template, TemplateRuntimeError, Undefined
from jinja2.runtime import LoopContext, Macro, TemplateReference
from jinja2.utils import Namespace
from transformers.utils import chat_template_utils

_EMPTY = dict[str, Any]()


class _Unprintable:
    """A function, an iterator or another object without a text of its own: Python's has its address."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._value(*values, **named)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._value)

    def __repr__(self) -> str:
        kind = type(self._value).__name__
        raise TemplateRuntimeError(f"it prints a {kind}, whose text has an address: call it, or print its items")


_PRINTABLE = (
    *(str, bytes, int, float, complex, NoneType, list, tuple, dict, range, type),
    *(type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())),
    *(Undefined, Namespace, Macro, LoopContext, TemplateReference, _Unprintable),
)


def _guarded(value: Any) -> Any:
    return value if isinstance(value, _PRINTABLE) else _Unprintable(value)


def _bare(value: Any) -> Any:
    return value._value if isinstance(value, _Unprintable) else value


class RepeatableEnvironment(chat_template_utils.ImmutableSandboxedEnvironment):  # type: ignore[misc, name-defined]
    """The sandbox with a fixed date. A template that prints an address, or makes a set, has an error.

    The caller seeds Python's random numbers, of which `random` and `lipsum` draw.
    """

    intercepted_binops = frozenset("-")
    now: datetime

    def from_string(self, *values: Any, **named: Any) -> Template:
        """The compiled template; transformers has added its functions before."""
        self.globals["strftime_now"] = self.now.strftime
        self.globals.update({name: _guarded(value) for name, value in self.globals.items()})
        self.filters.update({name: _guarding(one) for name, one in self.filters.items()})
        compiled: Template = super().from_string(*values, **named)
        return compiled

    def getattr(self, obj: Any, attribute: str) -> Any:
        return _guarded(super().getattr(_bare(obj), attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return _guarded(super().getitem(_bare(obj), argument))

    def call(__self, __context: Any, __obj: Any, *values: Any, **named: Any) -> Any:  # noqa: N805  # as Jinja's
        return _guarded(super().call(__context, _bare(__obj), *values, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, set):
            raise TemplateRuntimeError("a difference of keys or items has another order in each process")
        return result


def _guarding(one: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(one)
    def run(*values: Any, **named: Any) -> Any:
        return _guarded(one(*values, **named))

    return run


def install(day: date) -> None:
    """Make this process render chat templates in this environment, before its first one."""
    RepeatableEnvironment.now = datetime(day.year, day.month, day.day)
    chat_template_utils.ImmutableSandboxedEnvironment = RepeatableEnvironment  # type: ignore[attr-defined]
