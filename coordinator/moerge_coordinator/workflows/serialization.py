"""DBOS without pickle (law 9).

DBOS takes the format of a value from its row's column `serialization`, regardless of its configured serializer. Pickle
is one of these formats, so a changed row could run code.
"""

from typing import Never

from dbos._serialization import DefaultSerializer

from moerge.errors import MoergeError
from moerge_coordinator.storage.workflow_rows import TODO


def refuse_pickle() -> None:
    """Makes DBOS in this process raise an error instead of unpickling. Call it before making DBOS or its client."""
    setattr(DefaultSerializer, "deserialize", _refuse)  # noqa: B010  # mypy lets no method be assigned


def _refuse(serializer: DefaultSerializer, text: str) -> Never:
    raise MoergeError("a value is a pickle, which is never read", where="the workflow database", todo=TODO)
