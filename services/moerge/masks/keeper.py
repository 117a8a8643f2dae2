"""A keeper's folder: its key, and its journal of approved owners, cohorts and answers, in SQLite.

The law of a keeper: a cohort is the set of a request's contributions, of enough owners. Its answer is always the same,
and no other cohort has one of its contributions, or one of its domains under the same body. So no two answers differ by
some of their owners.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from moerge.errors import MoergeError
from moerge.files import atomic_file, private_folder, require_locks
from moerge_proto.masks import MaskedPart, MasksRequest, keeper_key
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import JoinRequest, fingerprint, in_groups

KEY, JOURNAL = "keeper.pem", "journal.sqlite"
_TABLES = """
CREATE TABLE IF NOT EXISTS owners (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, name TEXT NOT NULL, public_key TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS cohorts (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, body TEXT NOT NULL, parts TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS members (
    body TEXT NOT NULL, owner TEXT NOT NULL, domain TEXT NOT NULL, contribution TEXT NOT NULL PRIMARY KEY,
    cohort INTEGER NOT NULL REFERENCES cohorts (number)
) WITHOUT ROWID;
"""
_TRIGGERS = "".join(
    f"CREATE TRIGGER IF NOT EXISTS {table}_{name} BEFORE {event} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'rows stay'); END;\n"
    for table in ("owners", "cohorts", "members")
    for name, event in (("stay", "UPDATE"), ("remain", "DELETE"))
)


class KeeperError(MoergeError):
    """A keeper refuses a request."""

    kind = ProblemType.FORBIDDEN


class Answered(NamedTuple):
    """An answered cohort: the digest of its request, and its contributions as owner/domain."""

    at: str
    cohort: str
    parts: list[str]


def make_key(home: Path) -> str:
    """The public key of a keeper's folder, which is made if it is missing."""
    private_folder(home)
    if not (home / KEY).is_file():
        pem = X25519PrivateKey.generate().private_bytes(
            encoding=serialization.Encoding.PEM,
            format=serialization.PrivateFormat.PKCS8,
            encryption_algorithm=serialization.NoEncryption(),
        )
        with atomic_file(home / KEY, private=True) as file:
            file.write(pem)
    return keeper_key(read_key(home))


def read_key(home: Path) -> X25519PrivateKey:
    path = home / KEY
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise MoergeError("not found", where=str(path), todo=f"run: moerge keeper init {quote(str(home))}") from error
    except (ValueError, TypeError) as error:
        raise MoergeError(f"not a key in PEM: {error}", where=str(path), todo="restore it from a backup") from error
    if not isinstance(key, X25519PrivateKey):
        raise MoergeError("expected an X25519 key", where=str(path), todo="restore it from a backup")
    return key


class Keeper:
    """A keeper's key and journal. Several threads and processes may use the same folder.

    Raises:
        MoergeError: the folder has no key, or the file is not a journal.
    """

    def __init__(self, home: Path) -> None:
        self._key = read_key(home)
        self.public_key = keeper_key(self._key)
        self._path = home / JOURNAL
        require_locks(home)
        try:
            with self._database() as database:
                database.executescript(_TABLES + _TRIGGERS)
        except sqlite3.DatabaseError as error:
            raise MoergeError(
                f"not a journal: {error}",
                where=str(self._path),
                todo="restore its newest copy; an older one lets a cohort be asked for in parts",
            ) from error

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes durably."""
        database = sqlite3.connect(self._path, isolation_level=None, timeout=60)
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            yield database
            if database.in_transaction:
                database.execute("COMMIT")
        finally:
            database.close()

    def approve(self, join: JoinRequest, *, replace: bool) -> None:
        """Lets an owner's key sign parts of cohorts. Idempotent.

        Raises:
            MoergeError: the owner has another key, and `replace` is not set.
        """
        with self._database() as database:
            known = _keys(database, join.owner)
            if known[-1:] == [join.public_key]:
                return
            if known and not replace:
                what = f"{join.owner} has another key: {in_groups(fingerprint(known[-1]))}"
                raise MoergeError(
                    what, where="REQUEST", todo="compare fingerprints with the owner; then give `replace`"
                )
            row = (_now(), join.owner, join.public_key)
            database.execute("INSERT INTO owners (at, name, public_key) VALUES (?, ?, ?)", row)

    def owners(self) -> dict[str, str]:
        """Name -> public key of every approved owner."""
        with self._database() as database:
            return dict(database.execute("SELECT name, public_key FROM owners ORDER BY number").fetchall())

    def cohorts(self) -> list[Answered]:
        """Oldest first."""
        with self._database() as database:
            rows = database.execute("SELECT at, digest, parts FROM cohorts ORDER BY number").fetchall()
        return [Answered(at, digest, json.loads(parts)) for at, digest, parts in rows]

    def seeds(self, request: MasksRequest) -> list[bytes]:
        """The seeds of a cohort's parts, in their order, once the journal has the cohort.

        Raises:
            KeeperError: the law of a keeper forbids an answer.
        """
        with self._database() as database:
            seeds = [self._seed(database, part) for part in request.parts]
            known = database.execute("SELECT 1 FROM cohorts WHERE digest = ?", (request.digest,)).fetchone()
            if not known:
                _require_lawful(database, request)
                _add(database, request)
        return seeds

    def _seed(self, database: sqlite3.Connection, part: MaskedPart) -> bytes:
        """The seed of a part, which an approved owner must have signed."""
        known = _keys(database, part.owner)
        if not known or not part.is_genuine(known[-1]):
            what = f"not signed by an approved key of {part.owner!r}"
            todo = f"the keeper's operator approves the owner: moerge keeper approve; or {part.owner} contributes again"
            raise KeeperError(what, where=part.contribution, todo=todo)
        if (seed := part.seed(self._key, known[-1])) is None:
            what = f"no seed of this part is sealed for this keeper, whose key is {self.public_key}"
            raise KeeperError(what, where=part.contribution, todo=f"{part.owner} names this key in worker.toml")
        return seed


def _require_lawful(database: sqlite3.Connection, request: MasksRequest) -> None:
    """Requires that the law allows an answer for a new cohort of genuine parts."""
    todo = "ask for the whole cohort; see: moerge keeper show"
    owners = {part.owner for part in request.parts}
    least = max(request.parts, key=lambda part: part.seals.owners)
    if len(owners) < least.seals.owners:
        what = f"{len(owners)} owners; {least.owner} asks for at least {least.seals.owners}"
        raise KeeperError(what, where="parts", todo="ask for a cohort of more owners")
    query = "SELECT cohort FROM members WHERE (body = ? AND owner = ? AND domain = ?) OR contribution = ?"
    for part in request.parts:
        values = part.body, part.owner, part.domain, part.contribution
        if (found := database.execute(query, values).fetchone()) is not None:
            what = f"{part.owner}/{part.domain} or its contribution is in cohort {found[0]}"
            raise KeeperError(f"{what}, and this set differs from that cohort", where="parts", todo=todo)


def _add(database: sqlite3.Connection, request: MasksRequest) -> None:
    body, names = request.parts[0].body, json.dumps(sorted(f"{part.owner}/{part.domain}" for part in request.parts))
    row = (_now(), request.digest, body, names)
    number = database.execute("INSERT INTO cohorts (at, digest, body, parts) VALUES (?, ?, ?, ?)", row).lastrowid
    members = [(body, part.owner, part.domain, part.contribution, number) for part in request.parts]
    database.executemany("INSERT INTO members VALUES (?, ?, ?, ?, ?)", members)


def _keys(database: sqlite3.Connection, owner: str) -> list[str]:
    """An owner's approved keys; the last one is valid."""
    rows = database.execute("SELECT public_key FROM owners WHERE name = ? ORDER BY number", (owner,)).fetchall()
    return [str(key) for (key,) in rows]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
