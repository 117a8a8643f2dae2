"""DBOS without pickle (law 9).

DBOS takes the format of a value from its row's column `serialization`, whatever serializer it was given. Pickle is one
of these formats, so a changed row could run code.
"""

from typing import Never

from dbos._serialization import DefaultSerializer

from moerge.errors import MoergeError
from moerge_coordinator.storage.workflow_rows import TODO


def refuse_pickle() -> None:
    """Has DBOS raise an error in this process where it would unpickle. Call it before DBOS or its client is made."""
    setattr(DefaultSerializer, "deserialize", _refuse)  # noqa: B010  # mypy lets no method be assigned


def _refuse(serializer: DefaultSerializer, text: str) -> Never:
    raise MoergeError("a value is a pickle; pickles are not read", where="the workflow database", todo=TODO)
