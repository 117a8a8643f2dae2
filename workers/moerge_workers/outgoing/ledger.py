"""The ledger: the sent documents and their files. It is an SQLite file, so its size isn't limited by memory."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import is_of_full_disk

_TABLES = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA main.cache_size = -32768;
CREATE TABLE IF NOT EXISTS sent (mac BLOB PRIMARY KEY, copies INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, documents INTEGER NOT NULL,
    tokens INTEGER NOT NULL, expert TEXT NOT NULL, how TEXT NOT NULL, replaced INTEGER NOT NULL
);
PRAGMA temp.cache_size = -32768;
PRAGMA temp.journal_mode = OFF;
CREATE TEMP TABLE seen (mac BLOB PRIMARY KEY, copies INTEGER NOT NULL) WITHOUT ROWID;
CREATE TEMP TABLE again (mac BLOB PRIMARY KEY, copies INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS last.documents (mac BLOB PRIMARY KEY, copies INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS privacy.documents (mac BLOB PRIMARY KEY, rho REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS privacy.files (digest TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_SUMMED = "SELECT mac FROM seen WHERE ? OR mac NOT IN (SELECT mac FROM sent)"
_SPEND = f"""
INSERT INTO privacy.documents SELECT mac, ? FROM ({_SUMMED}) WHERE TRUE
ON CONFLICT (mac) DO UPDATE SET rho = rho + excluded.rho
"""  # noqa: S608  # no value of a user
_MAC_BYTES = 16
_COUNT = "INSERT INTO {} VALUES (?, 1) ON CONFLICT (mac) DO UPDATE SET copies = copies + 1 RETURNING copies"
_MORE = """
SELECT IFNULL(SUM(a.copies - IFNULL(b.copies, 0)), 0) FROM {} a LEFT JOIN {} b USING (mac)
WHERE a.copies > IFNULL(b.copies, 0)
"""


@dataclass(frozen=True)
class Sent:
    """A file beside the ledger that was sent or will be sent, its numbers of documents and tokens, and its expert."""

    name: str
    digest: str
    documents: int
    tokens: int
    expert: str


class Ledger:
    """The documents and files of one kind of contribution, under one body, of one split.

    `last` is a file for the documents of the last contribution under any body: the ledgers of one split share it.
    `spent` is the file of what noise has cost each document, in all ledgers of a home; None: there is no noise. With
    it, copies of a document count once.

    One transaction records a file and its documents before the file is sent. So after any failure the same file is
    sent, and no later file has its documents.

    Raises:
        MoergeError: the file is not a ledger.
    """

    def __init__(
        self,
        path: Path,
        last: Path | None = None,
        spent: Path | None = None,
    ) -> None:
        self._within, self._once = False, spent is not None
        self._folder = path.parent
        self._folder.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            for name, file in (("last", last), ("privacy", spent)):
                self._db.execute(f"ATTACH ? AS {name}", (":memory:" if file is None else str(file),))
            self._db.executescript(_TABLES)
            self._db.execute("SELECT expert FROM files LIMIT 1")
        except sqlite3.DatabaseError as error:
            self._db.close()
            if is_of_full_disk(error):
                raise
            todo = "restore it from a backup; or remove it, and withdraw its contributions (moerge contribution list)"
            raise MoergeError(f"not a ledger: {error}", where=str(path), todo=todo) from error

    def close(self) -> None:
        self._db.close()

    def path(self, name: str) -> Path:
        return self._folder / name

    def begin(self, *, everything: bool = False, again: bool = False) -> None:
        """Begin a reading of all documents.

        Args:
            everything: sent documents are wanted too.
            again: documents missing in the previous reading are not wanted, and not recorded.
        """
        self._end()
        self._table = "again" if again else "seen"
        self._count = _COUNT.format(self._table)
        self._db.execute(f"DELETE FROM {self._table}")  # noqa: S608  # one of the two
        self._all = everything or not self._db.execute("SELECT 1 FROM sent LIMIT 1").fetchall()
        self._db.execute("BEGIN")  # one transaction for the reading, which doesn't write the ledger

    def _end(self) -> None:
        if self._db.in_transaction:
            self._db.execute("COMMIT")

    def see(self, mac: bytes) -> bool:
        """Record a document of the reading; returns whether it is wanted: one more copy than was sent."""
        mac = mac[:_MAC_BYTES]
        if self._within and self._copies(self._table, mac) >= self._copies("last.documents", mac):
            return False
        [copies] = self._db.execute(self._count, (mac,)).fetchone()
        if self._table == "again" and copies > self._copies("seen", mac):
            return False
        if self._once and (copies > 1 or not (self._all or self._copies("sent", mac) == 0)):
            return False
        return self._all or copies > self._copies("sent", mac)

    def _copies(self, table: str, mac: bytes) -> int:
        row = self._db.execute(f"SELECT copies FROM {table} WHERE mac = ?", (mac,)).fetchone()  # noqa: S608  # ours
        return 0 if row is None else int(row[0])

    def gone(self) -> int:
        """The number of sent documents missing in the reading."""
        return int(self._db.execute(_MORE.format("sent", "seen")).fetchone()[0])

    def added(self) -> int:
        """The number of unsent documents in the reading."""
        return int(self._db.execute(_MORE.format("seen", "sent")).fetchone()[0])

    def within_last(self, *, only: bool) -> None:
        """Let later readings have only documents of the last contribution under any body, or all documents."""
        self._within = only

    def is_of_last(self) -> bool:
        """Tell whether the sent documents are those of the last contribution under any body, or there was none."""
        pairs = ("sent", "last.documents"), ("last.documents", "sent")
        differ = any(self._db.execute(_MORE.format(*pair)).fetchone()[0] for pair in pairs)
        return not differ or not self._db.execute("SELECT 1 FROM last.documents LIMIT 1").fetchall()

    def since_last(self) -> tuple[int, int]:
        """Documents added and missing in the reading, since the last contribution under any body."""
        query = _MORE.format("seen", "last.documents"), _MORE.format("last.documents", "seen")
        added, gone = (int(self._db.execute(item).fetchone()[0]) for item in query)
        return added, gone

    def overspent(self, cost: float, most: float, *, everything: bool) -> int:
        """The number of documents to sum that have no room for `cost` within `most`; `everything`: sent ones too."""
        query = f"SELECT COUNT(*) FROM privacy.documents WHERE rho + ? > ? AND mac IN ({_SUMMED})"  # noqa: S608
        return int(self._db.execute(query, (cost, most, everything)).fetchone()[0])

    def exact(self) -> bool:
        """Tell whether a file of this ledger has no known cost: it has no noise, or `spent` is an older copy."""
        query = "SELECT 1 FROM files WHERE digest NOT IN (SELECT digest FROM privacy.files) LIMIT 1"
        return bool(self._db.execute(query).fetchall())

    def files(self, *, replaced: bool = False) -> list[Sent]:
        """The active files, or the replaced ones, in the order of sending."""
        query = "SELECT name, digest, documents, tokens, expert FROM files WHERE replaced = ? ORDER BY number"
        return [Sent(*row) for row in self._db.execute(query, (int(replaced),))]

    def next(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) + 1 FROM files").fetchone()[0])

    def made_as(self, how: str) -> bool:
        """Tell whether all active files were made with the settings `how`."""
        return not self._db.execute("SELECT 1 FROM files WHERE NOT replaced AND how != ?", (how,)).fetchall()

    def send(self, file: Sent, how: str, *, replace: bool, cost: float = 0.0) -> None:
        """Record a file to send: it and earlier ones have the documents of the last reading without `again`.

        With `replace` it replaces all earlier files. `cost`: of its noise, to each of its documents.
        """
        self._end()
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            if replace:
                self._db.execute("UPDATE files SET replaced = 1")
            row = (self.next(), file.name, file.digest, file.documents, file.tokens, file.expert, how, 0)
            self._db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if cost:
                self._db.execute(_SPEND, (cost, replace))
                self._db.execute("INSERT INTO privacy.files VALUES (?)", (file.digest,))
            self._db.execute("DELETE FROM sent")
            self._db.execute("INSERT INTO sent SELECT * FROM seen")
            self._db.execute("DELETE FROM last.documents")
            self._db.execute("INSERT INTO last.documents SELECT mac, copies FROM seen")

    def forget(self) -> None:
        """Mark all files as replaced, and all documents as unsent."""
        self._end()
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("UPDATE files SET replaced = 1")
            self._db.execute("DELETE FROM sent")


def spent_file(home: Path) -> Path:
    """The file of what noise has cost each document of a home."""
    return home / "contributions" / "privacy.sqlite"


def spending(path: Path, cost: float = 0.0, most: float = 0.0) -> tuple[int, int]:
    """The number of documents in the file of a home's noise, and of those without room for `cost` within `most`.

    Raises:
        MoergeError: the file can't be read now, or isn't a ledger's.
    """
    query = "SELECT COUNT(*), TOTAL(rho + ? > ?) FROM documents"
    every, spent = _row(path, query, cost, most) if path.is_file() else (0, 0)
    return int(every), int(spent)


def left_exact(home: Path) -> bool:
    """Tell whether router sums left a home before the first with noise, for any domain. Afterwards none can.

    Raises:
        MoergeError: as `spending`.
    """
    lasts, query = spent_file(home).parent.glob("*.last.sqlite"), "SELECT COUNT(*) FROM documents"
    return not spending(spent_file(home))[0] and any(_row(path, query)[0] for path in lasts)


def _row(path: Path, query: str, *values: float) -> tuple[float, ...]:
    with closing(sqlite3.connect(path)) as db:
        try:
            row: tuple[float, ...] = db.execute(query, values).fetchone()
        except sqlite3.DatabaseError as error:
            todo = "if a worker runs on this home, wait until it ends; else restore the file from a backup"
            raise MoergeError(f"can't be read: {error}", where=str(path), todo=todo) from error
        return row
