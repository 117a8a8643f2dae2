"""The audit log: every call that can change something, allowed or refused."""

from datetime import datetime

from moerge_proto.messages import Message
from moerge_proto.owners import Role


class AuditEntry(Message):
    """One call.

    `request`: its X-Request-Id; `token`: None if unknown; `name`: of the token's person; `address`: the caller's, as a
    trusted proxy tells it; `problem`: the type in the answer, if any.
    """

    number: int
    request: str
    token: int | None
    role: Role | None
    owner: str | None
    name: str | None
    address: str | None
    method: str
    path: str
    status: int
    problem: str | None
    created: datetime
