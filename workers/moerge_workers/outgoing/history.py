"""The history of a home, in SQLite: questions, decisions, sent items. Rows are never changed."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from moerge.errors import MoergeError
from moerge.files import require_locks
from moerge_workers.policy import Kind

FILE = "history.sqlite"
Use = Literal["version-use"]
Decision = Literal["asked", "approved", "refused", "outdated"]
Movement = Literal["leaves", "arrived", "superseded", "withdrawn"]
_DECISIONS: tuple[str, ...] = get_args(Decision)
_MOVEMENTS: tuple[str, ...] = get_args(Movement)
_TABLES = """
CREATE TABLE IF NOT EXISTS items (
    digest TEXT NOT NULL, coordinator TEXT NOT NULL, kind TEXT NOT NULL, about TEXT NOT NULL, bytes INTEGER NOT NULL,
    body TEXT NOT NULL, place TEXT NOT NULL, PRIMARY KEY (digest, coordinator)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, event TEXT NOT NULL, digest TEXT NOT NULL, coordinator TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS logs (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, coordinator TEXT NOT NULL, begun INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
    log INTEGER NOT NULL, number INTEGER NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (log, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (log INTEGER NOT NULL, at TEXT NOT NULL, head TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS served (
    log INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (log, kind, name, digest)
);
CREATE TABLE IF NOT EXISTS findings (
    log INTEGER NOT NULL, version TEXT NOT NULL, at TEXT NOT NULL, found TEXT NOT NULL
);
"""
_APPENDED = ("events", "logs", "entries", "heads", "served", "findings")
_TRIGGERS = "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_{name} BEFORE {event} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'rows stay'); END;\n"
    for table in _APPENDED
    for name, event in (("stay", "UPDATE"), ("remain", "DELETE"))
)
_LAST = "SELECT event FROM events WHERE digest = ? AND coordinator = ? AND event IN ({}) ORDER BY number DESC LIMIT 1"


@dataclass(frozen=True)
class Item:
    """Outgoing data for one coordinator, or the use of its version.

    Attributes:
        digest: of the contribution's file, the expert or the version.
        about: one-line description.
        bytes: its size, uncompressed.
        body: digest of its body, or "".
        place: the file, or the expert's folder.
    """

    digest: str
    coordinator: str
    kind: Kind | Use
    about: str
    bytes: int
    body: str
    place: str

    @property
    def is_use(self) -> bool:
        """Tell whether it is a use of a version, which doesn't leave."""
        return self.kind in get_args(Use)


@dataclass(frozen=True)
class Sending:
    """A sent item, its time, and its last state since: arrived, superseded, withdrawn, or none."""

    item: Item
    at: datetime
    became: str
    since: datetime | None


_now = partial(datetime.now, UTC)


class History:
    """The record of one home. Several processes may write it at once. `clock` returns the time, in UTC.

    Raises:
        MoergeError: the file is not a history.
    """

    def __init__(self, home: Path, clock: Callable[[], datetime] = _now) -> None:
        self.clock = clock
        path = home / FILE
        home.mkdir(parents=True, exist_ok=True)
        require_locks(home)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=60)
        try:
            self._db.executescript(_TABLES + _TRIGGERS)
        except sqlite3.DatabaseError as error:
            self._db.close()
            todo = (
                "restore it from a backup; or move it away, and the worker starts a new history without earlier items"
            )
            raise MoergeError(f"not a history: {error}", where=str(path), todo=todo) from error

    def close(self) -> None:
        self._db.close()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._db.execute(query, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db

    def note(self, item: Item, event: Decision | Movement) -> None:
        """Add an event, durably, unless it is already the item's last of its sort."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            row = (item.digest, item.coordinator, item.kind, item.about, item.bytes, item.body, item.place)
            self._db.execute("INSERT OR IGNORE INTO items VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            sort = _DECISIONS if event in _DECISIONS else _MOVEMENTS
            if self._last(item, sort) != event:
                when = self.clock().isoformat(timespec="seconds")
                new = (when, event, item.digest, item.coordinator)
                self._db.execute("INSERT INTO events (at, event, digest, coordinator) VALUES (?, ?, ?, ?)", new)

    def _last(self, item: Item, sort: tuple[str, ...]) -> str | None:
        marks = ", ".join("?" * len(sort))
        row = self._db.execute(_LAST.format(marks), (item.digest, item.coordinator, *sort)).fetchone()
        return None if row is None else str(row[0])

    def decision(self, item: Item) -> str | None:
        """The last question or decision about an item."""
        return self._last(item, _DECISIONS)

    def movement(self, item: Item) -> str | None:
        """The last movement of an item; None if it never left."""
        return self._last(item, _MOVEMENTS)

    def item(self, digest: str, coordinator: str) -> Item | None:
        query = "SELECT * FROM items WHERE digest = ? AND coordinator = ?"
        row = self._db.execute(query, (digest, coordinator)).fetchone()
        return None if row is None else Item(*row)

    def asked(self) -> list[Item]:
        """The items that wait for an answer, oldest first."""
        return [item for item in self.items() if self.decision(item) == "asked"]

    def items(self) -> list[Item]:
        """All items ever asked about or sent, oldest first."""
        query = "SELECT items.* FROM events JOIN items USING (digest, coordinator) GROUP BY 1, 2 ORDER BY MIN(number)"
        return [Item(*row) for row in self._db.execute(query).fetchall()]

    def sendings(self) -> list[Sending]:
        """All sent items, oldest first, without retries."""
        query = "SELECT at, event, items.* FROM events JOIN items USING (digest, coordinator) ORDER BY number"
        result: list[Sending] = []
        place: dict[tuple[str, str], int] = {}
        for at, event, *fields in self._db.execute(query):
            item, when = Item(*fields), datetime.fromisoformat(at)
            key = item.digest, item.coordinator
            if event == "leaves":
                place[key] = len(result)
                result.append(Sending(item, when, "", None))
            elif event in _MOVEMENTS and key in place:
                result[place[key]] = replace(result[place[key]], became=event, since=when)
        return result

    def sent(self) -> dict[str, int]:
        """Kind -> bytes of all sent items; interrupted ones count in full."""
        sizes = Counter[str]()
        for sending in self.sendings():
            sizes[sending.item.kind] += sending.item.bytes
        return sizes
