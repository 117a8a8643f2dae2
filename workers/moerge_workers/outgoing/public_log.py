"""The coordinator's public log, as this home has seen it, and what the coordinator served, which must be in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge_proto.digests import Digest
from moerge_proto.public_log import LogEntry, LogHead, Published, extended, require_once, title
from moerge_workers.outgoing.history import History

_MOST = 2**20  # new entries at once
_TODO = (
    "ask the operator, another way than through the coordinator, and compare heads with other owners; if it restored a "
    "backup: moerge worker history --log --accept"
)


REFUSED = "refused"
"""The beginning of the finding about an altered version."""


class LogError(MoergeError):
    """The public log was changed, or lacks what the coordinator served."""


@dataclass(frozen=True)
class Served:
    """A body, a head or a version that the coordinator served; `found`: of a version, its comparison's result."""

    kind: Published
    name: str
    digest: Digest
    at: datetime
    found: str | None

    def __str__(self) -> str:
        return f"{title(self.kind, self.name)}, digest {self.digest}{'' if self.found is None else f': {self.found}'}"


@dataclass(frozen=True)
class PublicLog:
    """A home's copy of one coordinator's log. Its rows are never changed; an accepted other log is a further copy."""

    history: History
    coordinator: str

    def follow(self, client: Client) -> LogHead:
        """The present head, after the new entries were copied.

        Raises:
            LogError: the log doesn't extend this copy.
        """
        return self._copied(client, self._copy)

    def accept(self, client: Client) -> LogHead:
        """As `follow`, into a new copy: whatever an earlier one says, the present log is the one to be extended."""
        return self._copied(client, None)

    def _copied(self, client: Client, copy: int | None) -> LogHead:
        head, kept = client.log_head(), self._head(copy)
        try:
            head.require_valid()
            if not 0 <= head.size - kept.size <= _MOST:
                raise ValueError(f"it has {head.size:,} entries; it had {kept.size:,}")
            new = list(islice(client.log(kept.size), head.size - kept.size))
            if extended(kept, new).line != head.line:
                raise ValueError(f"its head is {head.line}; the entries lead to {extended(kept, new).line}")
            if new:
                require_once([*self._entries(copy), *new])
        except ValueError as error:
            problem = f"the coordinator's public log doesn't extend the one seen before, {kept.line}: {error}"
            raise LogError(problem, where="public log", todo=_TODO) from error
        with self.history.writing() as database:
            when = self.history.clock().isoformat(timespec="seconds")
            is_new = copy is None
            if is_new:
                row = (when, self.coordinator, head.size)
                copy = database.execute("INSERT INTO logs (at, coordinator, begun) VALUES (?, ?, ?)", row).lastrowid
            rows = [(copy, entry.number, entry.model_dump_json()) for entry in new]
            database.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?)", rows)
            if new or is_new:
                database.execute("INSERT INTO heads VALUES (?, ?, ?)", (copy, when, head.model_dump_json()))
        return head

    @property
    def _copy(self) -> int | None:
        """The number of the last copy; None before the first."""
        query = "SELECT MAX(number) FROM logs WHERE coordinator = ?"
        [(number,)] = self.history.rows(query, self.coordinator)
        return None if number is None else int(number)

    def _head(self, copy: int | None) -> LogHead:
        query = "SELECT entry FROM entries WHERE log = ? ORDER BY number DESC LIMIT 1"
        for (row,) in self.history.rows(query, copy):
            entry = LogEntry.model_validate_json(row)
            return LogHead(size=entry.number, hash=entry.hash)
        return LogHead()

    def entries(self) -> list[LogEntry]:
        return self._entries(self._copy)

    def _entries(self, copy: int | None) -> list[LogEntry]:
        query = "SELECT entry FROM entries WHERE log = ? ORDER BY number"
        return [LogEntry.model_validate_json(entry) for (entry,) in self.history.rows(query, copy)]

    def lacks(self, line: str) -> list[str]:
        """Why the log doesn't begin with another owner's, given its head; MoergeError: that is no head."""
        try:
            head = LogHead.parse(line)
        except ValueError as error:
            todo = "give the line that the other owner's `moerge worker history --log` prints"
            raise MoergeError(str(error), where="`head`", todo=todo) from error
        own = self.entries()
        if head.size > len(own):
            return [f"the head {line} has {head.size} entries, and the log as served to you only {len(own)}"]
        mine = extended(LogHead(), own[: head.size]).line
        return [] if mine == head.line else [f"the head {line} is another log's; yours had {mine}"]

    def require(self, kind: Published, name: str, digest: Digest) -> None:
        """Record what the coordinator served, and require an equal entry; LogError: there is none."""
        with self.history.writing() as database:
            row = (self._copy, kind, name, digest, self.history.clock().isoformat(timespec="seconds"))
            database.execute("INSERT OR IGNORE INTO served VALUES (?, ?, ?, ?, ?)", row)
        for problem in self.problems(lambda item: (item.kind, item.name, item.digest) == (kind, name, digest)):
            raise LogError(problem, where="public log", todo=_TODO)

    def served(self) -> list[Served]:
        """All that was served since the copy began, oldest first."""
        query = "SELECT kind, name, digest, at FROM served WHERE log = ? ORDER BY rowid"
        return [
            Served(kind, name, digest, datetime.fromisoformat(at), self.finding(name) if kind == "version" else None)
            for kind, name, digest, at in self.history.rows(query, self._copy)
        ]

    def problems(self, which: Callable[[Served], bool] = lambda item: True) -> Iterator[str]:
        """The served objects without an equal entry."""
        entries = self.entries()
        logged = {(entry.kind, entry.name): entry.digest for entry in entries}
        heads = {entry.digest for entry in entries if entry.kind == "head"}
        for item in filter(which, self.served()):
            found = item.digest if item.kind == "head" and item.digest in heads else logged.get((item.kind, item.name))
            if found != item.digest:
                what = title(item.kind, item.name)
                how = "it is missing in the public log" if found is None else f"the public log has {found}"
                yield f"{what} was served with the digest {item.digest}; {how}"

    def uncompared(self) -> list[int]:
        """The versions that were published since the copy began and have no finding."""
        [(begun,)] = self.history.rows("SELECT MAX(begun) FROM logs WHERE number = ?", self._copy)
        new = [entry.name for entry in self.entries() if entry.kind == "version" and entry.number > (begun or 0)]
        return [int(name) for name in new if name.isdecimal() and self.finding(name) is None]

    def finding(self, version: int | str) -> str | None:
        """The result of a version's last comparison; None: there was none."""
        query = "SELECT found FROM findings WHERE log = ? AND version = ? ORDER BY rowid DESC LIMIT 1"
        return next((str(found) for (found,) in self.history.rows(query, self._copy, str(version))), None)

    def note(self, version: int, found: str) -> None:
        """Record the result of a version's comparison with the own body and MLPs."""
        with self.history.writing() as database:
            row = (self._copy, str(version), self.history.clock().isoformat(timespec="seconds"), found)
            database.execute("INSERT INTO findings VALUES (?, ?, ?, ?)", row)


def all_served(history: History) -> list[Served]:
    """All that coordinators served since their logs were accepted, by coordinator."""
    names = history.rows("SELECT DISTINCT coordinator FROM logs ORDER BY number")
    return [item for (name,) in names for item in PublicLog(history, name).served()]
