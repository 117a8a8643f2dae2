"""Checks before the coordinator starts: obstacles and risks."""

import os
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote

from filelock import Timeout
from rich.filesize import decimal
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from moerge.blobs.s3 import require_store
from moerge.errors import MoergeError
from moerge.files import locked, require_locks
from moerge.network import require_free
from moerge_coordinator.domain import version_keys
from moerge_coordinator.settings import Settings, is_loopback, load
from moerge_coordinator.storage.database import (
    OTHER,
    OTHER_TODO,
    reading_engine,
    require_sessions,
    revision_of,
    unknown_revision,
    unusable,
)
from moerge_coordinator.storage.workflow_rows import require_json

_LEAST_FREE = 2 * 2**30
LOCK = "coordinator.lock"


def problems(
    home: Path,
    environment: Mapping[str, str],
    override: Callable[[Settings], Settings],
    checks: Iterable[Callable[[Settings], Iterable[MoergeError]]] = (),
) -> Iterator[MoergeError]:
    """All problems, each with a remedy. `override` applies the command line's options; `checks` are side rooms'."""
    settings, result = load(home, environment)
    yield from result
    if home.is_dir():
        yield from _home(home)
    if settings is None:
        return
    settings = override(settings)
    yield from _schema(settings)
    if settings.s3 is not None:
        try:
            require_store(settings.s3)
        except MoergeError as error:
            yield error
    yield from transport(settings)
    for check in checks:
        yield from check(settings)
    try:
        require_free(settings.host, settings.port)
    except MoergeError as error:
        yield error


def _home(home: Path) -> Iterator[MoergeError]:
    try:
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        todo = f"give it to the coordinator's user (id {os.getuid()}), or free some space"
        yield MoergeError(f"can't be written: {error.strerror}", where=str(home), todo=todo)
        return
    free = shutil.disk_usage(home).free
    if free < _LEAST_FREE:
        todo = "free some space, or move the home to a larger disk; it stores experts and versions"
        yield MoergeError(f"only {decimal(free)} are free", where=str(home), todo=todo)
    try:
        with locked(home / LOCK):
            pass
    except MoergeError as error:
        yield error
    except Timeout:
        todo = "stop it before you start another"
        yield MoergeError("another coordinator is using this home", where=str(home), todo=todo)


def _has_locks(home: Path) -> bool:
    try:
        require_locks(home)
    except MoergeError:
        return False
    return True


def _schema(settings: Settings) -> Iterator[MoergeError]:
    database = settings.database
    where = "database" if isinstance(database, str) else str(database)
    init = f"run: moerge coordinator init {quote(str(settings.home))}"
    if isinstance(database, Path) and not database.is_file():
        yield MoergeError("no database", where=where, todo=init)
        return
    if isinstance(database, Path) and not _has_locks(settings.home):
        return  # `_home` tells it
    engine = reading_engine(database)
    try:
        if isinstance(database, str):
            require_sessions(engine)
        with engine.connect() as connection:
            disagreement, newer = None, unknown_revision(connection)
            if revision_of(connection) is None:
                yield MoergeError("the database is empty", where=where, todo=init)
            elif newer is None:
                with Session(connection) as session:
                    disagreement = version_keys.disagreement(session, settings.home)
    except MoergeError as error:
        yield error
        return
    except DBAPIError as error:
        todo = "restore a backup, or check the file and its permissions"
        unreadable = MoergeError(f"can't be read: {error.orig}", where=where, todo=todo)
        yield unusable(error.orig) if isinstance(database, str) else unreadable
        return
    finally:
        engine.dispose()
    if newer is not None:
        yield MoergeError(OTHER.format(newer), where=where, todo=OTHER_TODO)
    elif disagreement is not None:
        yield disagreement
    try:
        require_json(settings.workflow_database)
    except MoergeError as error:
        yield error


def transport(settings: Settings) -> Iterator[MoergeError]:
    """Problems of the address and of the TLS files."""
    if settings.tls_certificate is None or settings.tls_key is None:
        if not (settings.plain_http or is_loopback(settings.host)):
            todo = "set tls_certificate and tls_key; or behind an HTTPS proxy listen on 127.0.0.1, or set plain_http"
            yield MoergeError(f"plain HTTP on {settings.host}; others could read tokens", where="host", todo=todo)
        return
    files = {"tls_certificate": settings.tls_certificate, "tls_key": settings.tls_key}
    if missing := {key: path for key, path in files.items() if not (path.is_file() and os.access(path, os.R_OK))}:
        for key, path in missing.items():
            todo = "correct the path or its permissions"
            yield MoergeError(f"{path} is missing or can't be read", where=key, todo=todo)
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
    except ssl.SSLError as error:
        todo = "give PEM files; the key must match the certificate and have no passphrase"
        yield MoergeError(f"can't be used: {error.reason or error}", where="tls_certificate", todo=todo)
