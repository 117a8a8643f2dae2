"""Election of the coordinator that runs the workflows, by PostgreSQL's advisory lock."""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import make_conninfo

from moerge.errors import MoergeError
from moerge_coordinator.storage.database import KEEPALIVES, LEADING, SERVING, unusable

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 3  # less than the server's timeout of a silent connection, set by KEEPALIVES
_LOST = 70
_log = logging.getLogger("moerge.leader")


class Leader:
    """Waits for the lock, then launches the workflows and watches the lock's connection.

    The process never releases the lock, because a running step can't be stopped. A process that loses the connection
    ends immediately, so that its successor is alone.
    """

    def __init__(self, url: str, launch: Callable[[], None]) -> None:
        self._url, self._launch = url, launch
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="leader", daemon=True).start()

    def stop(self) -> None:
        """Stops waiting for the lock; a held lock stays until the process ends."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                connection = _connected(self._url)
                if self._won(connection):
                    break
            except psycopg.OperationalError as error:
                _log.warning("no connection to PostgreSQL: %s", error)
                self._stopped.wait(_POLL_SECONDS)
        else:
            return
        _log.info("this coordinator now runs the workflows")
        # in a thread of its own, because a launch without the database tries again without end
        threading.Thread(target=self._or_end, args=(self._launch,), name="launch", daemon=True).start()
        self._or_end(lambda: self._watch(connection))

    def _watch(self, connection: psycopg.Connection) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            connection.execute("SELECT 1")

    def _or_end(self, work: Callable[[], None]) -> None:
        """Runs `work`; its failure ends the process, unless this one was stopped."""
        try:
            work()
        except BaseException:  # noqa: BLE001  # whatever it is, the successor must be alone
            if not self._stopped.is_set():
                _log.critical("this coordinator lost the right to run the workflows and ends", exc_info=True)
                logging.shutdown()
                os._exit(_LOST)

    def _won(self, connection: psycopg.Connection) -> bool:
        while not _locked(connection, "pg_try_advisory_lock", LEADING):
            if self._stopped.wait(_POLL_SECONDS):
                connection.close()
                return False
        atexit.register(connection.close)  # runs when every step's thread has ended
        return True


@contextmanager
def beside_others(url: str, *, shared: bool) -> Iterator[None]:
    """Holds the right to serve on a database; refused if another coordinator serves on it and one is not `shared`."""
    try:
        connection = _connected(url)
    except psycopg.OperationalError as error:
        raise unusable(error) from error
    with connection:
        if not _locked(connection, f"pg_try_advisory_lock{'_shared' if shared else ''}", SERVING):
            todo = "stop it first, or give all coordinators the same s3 store"
            raise MoergeError("another coordinator is using this database", where="database", todo=todo)
        yield


def _connected(url: str) -> psycopg.Connection:
    place = make_conninfo(url, tcp_user_timeout=_ANSWER_SECONDS * 1000, **KEEPALIVES)
    return psycopg.connect(place, autocommit=True)


def _locked(connection: psycopg.Connection, function: str, key: int) -> bool:
    row = connection.execute(f"SELECT {function}({key})").fetchone()
    return row is not None and bool(row[0])
