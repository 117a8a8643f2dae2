"""Wires one coordinator process: settings in, FastAPI app out."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer
from fastapi import APIRouter, FastAPI
from filelock import FileLock, Timeout
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from moerge import __version__
from moerge.blobs.local import LocalBlobs
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_coordinator import refusals
from moerge_coordinator.auth import make_token
from moerge_coordinator.database import open_database, transaction
from moerge_coordinator.limits import BodyLimit
from moerge_coordinator.routes import contributions, experts, owners, trunk_contributions, trunks, uploads, versions
from moerge_coordinator.settings import FILE, Settings
from moerge_coordinator.tables import TokenRow
from moerge_coordinator.uploads import Uploads
from moerge_coordinator.workflows import APPLICATION_VERSION, EXECUTOR_ID, Workflows
from moerge_proto.owners import NewToken, Role, Token

_TEMPLATE = """\
# The coordinator's settings; `moerge coordinator serve` reads them once.
host = "127.0.0.1"
port = 8080
# tls_certificate = "/path/to/certificate.pem"
# tls_key = "/path/to/key.pem"
# owner_bytes = 1_000_000_000_000  # what an owner may hold
# owner_bytes_per_second = 50_000_000
# abandoned_after_hours = 72
# sources = ["https://models.example.org/public"]  # experts may be fetched from below these
# vocabulary = "pad"  # take experts whose tokenizers only add tokens behind a common vocabulary
"""


def initialise(home: Path) -> Token:
    """Makes a coordinator's home folder and its first operator token. Settings that are there already stay.

    Raises:
        MoergeError: there is one already.
    """
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    engine = open_database(Settings(home=home).database)
    try:
        with transaction(engine) as session:
            if session.scalar(select(TokenRow).limit(1)) is not None:
                todo = f"run: moerge coordinator serve {home}"
                raise MoergeError("is a coordinator's home already", where=str(home), todo=todo)
        token = make_token(engine, NewToken(role=Role.OPERATOR))
    finally:
        engine.dispose()
    if not (home / FILE).exists():
        with atomic_file(home / FILE) as file:
            file.write(_TEMPLATE.encode())
    return token


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Holds the home's lock: two processes would run the same workflow steps at once.

    Raises:
        MoergeError: another process holds it.
    """
    try:
        with FileLock(home / "coordinator.lock", blocking=False):
            yield
    except Timeout as error:
        todo = "stop it first, or use another home"
        raise MoergeError("another coordinator runs on this home", where=str(home), todo=todo) from error


async def _hourly(work: Callable[[], None]) -> None:
    while True:
        try:
            await run_in_threadpool(work)
        except (SQLAlchemyError, OSError):
            logging.getLogger("moerge").exception("hourly work failed; it is tried again in an hour")
        await asyncio.sleep(3600)


def make_app(settings: Settings) -> FastAPI:
    """The coordinator as an ASGI app. Its lifespan runs the durable workflows, so only one may run on a home."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = open_database(settings.database)
        blobs = LocalBlobs(settings.home / "blobs")
        app.state.settings = settings
        app.state.engine = engine
        app.state.blobs = blobs
        app.state.uploads = Uploads(engine, blobs, settings.home / "uploads", settings)
        app.state.registering = threading.Lock()
        app.state.workflows = Workflows(engine, blobs, app.state.uploads, settings, app.state.registering)
        for place in (blobs, app.state.uploads, app.state.workflows):
            place.sweep()
        DBOS(config=dbos_config(settings))
        DBOS.launch()
        hourly = asyncio.create_task(_hourly(app.state.uploads.sweep_abandoned))
        try:
            yield
        finally:
            hourly.cancel()
            DBOS.destroy()
            engine.dispose()

    app = FastAPI(
        title="moerge coordinator",
        version=__version__,
        summary="Adds, solves, publishes and serves Mixture-of-Experts versions.",
        lifespan=lifespan,
    )
    refusals.install(app)
    app.add_middleware(BodyLimit)
    api = APIRouter(prefix="/v1")
    for module in (owners, uploads, experts, trunk_contributions, trunks, contributions, versions):
        api.include_router(module.router)

    @api.get("/health", tags=["health"])
    def health() -> dict[str, str]:
        """Answers when the coordinator serves. No token needed."""
        return {"status": "ok", "version": __version__}

    app.include_router(api)
    return app


def dbos_config(settings: Settings) -> DBOSConfig:
    return DBOSConfig(
        name="moerge-coordinator",
        system_database_url=f"sqlite:///{settings.workflow_database}",
        serializer=DBOSPortableJSONSerializer(),  # the default one unpickles
        executor_id=EXECUTOR_ID,
        application_version=APPLICATION_VERSION,
        enable_otlp=False,
        log_level="WARNING",
    )
