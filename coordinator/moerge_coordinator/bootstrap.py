"""Wires one coordinator process: settings in, FastAPI app out."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer
from fastapi import APIRouter, FastAPI
from filelock import FileLock, Timeout
from sqlalchemy import Engine, select, text

from moerge import __version__
from moerge.blobs.local import LocalBlobs
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_coordinator import openapi, refusals
from moerge_coordinator.calls import Calls
from moerge_coordinator.check import LOCK
from moerge_coordinator.database import open_database, transaction
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.needed import collect
from moerge_coordinator.routes import (
    aliases,
    audit,
    contributions,
    experts,
    operation,
    owners,
    rounds,
    tokens,
    trunk_contributions,
    trunks,
    uploads,
    versions,
)
from moerge_coordinator.settings import FILE, Settings
from moerge_coordinator.tables import TokenRow
from moerge_coordinator.tokens import make_token
from moerge_coordinator.uploads import Uploads
from moerge_coordinator.workflows import APPLICATION_VERSION, EXECUTOR_ID, Workflows
from moerge_proto.owners import NewToken, Role, Token

_TEMPLATE = """\
# The coordinator's settings; `moerge coordinator serve` reads them once, `check` tells what is wrong.
# Variables such as MOERGE_COORDINATOR_PORT go before what stands here.
host = "127.0.0.1"
port = 8080
# tls_certificate = "/path/to/certificate.pem"
# tls_key = "/path/to/key.pem"
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
        with FileLock(home / LOCK, blocking=False):
            yield
    except Timeout as error:
        todo = "stop it first, or use another home"
        raise MoergeError("another coordinator runs on this home", where=str(home), todo=todo) from error


def make_app(settings: Settings) -> FastAPI:
    """The coordinator as an ASGI app. Its lifespan runs the durable workflows, so only one may run on a home."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = open_database(settings.database)
        blobs = LocalBlobs(settings.home / "blobs")
        app.state.settings = settings
        app.state.engine = engine
        app.state.blobs = blobs
        app.state.uploads = Uploads(engine, blobs, settings.home / "uploads")
        app.state.registering = threading.Lock()
        app.state.workflows = Workflows(engine, blobs, app.state.uploads, settings.home, app.state.metrics)
        app.state.metrics.add_workflows(app.state.workflows.count)
        app.state.checks = {
            "database": partial(_answers, engine),
            "blob store": blobs.probe,
            "workflows": partial(app.state.workflows.find, "-"),
        }
        for place in (blobs, app.state.uploads, app.state.workflows):
            place.sweep()
        collect(engine, blobs)
        DBOS(config=dbos_config(settings))
        DBOS.launch()
        app.state.workflows.start_remerge()
        try:
            yield
        finally:
            DBOS.destroy()
            engine.dispose()

    app = FastAPI(
        title="moerge coordinator",
        version=__version__,
        summary="Adds, solves, publishes and serves Mixture-of-Experts versions.",
        lifespan=lifespan,
    )
    app.state.metrics = Metrics()
    app.state.running = 0  # calls
    app.state.stopping = False
    app.add_middleware(Calls, owner=app)
    refusals.install(app)
    openapi.describe(app)
    api = APIRouter(prefix="/v1")
    for module in (
        owners, tokens, uploads, experts, trunk_contributions, trunks, contributions, rounds, versions, aliases, audit,
    ):  # fmt: skip
        api.include_router(module.router)
    app.include_router(api)
    app.include_router(operation.router)
    return app


def _answers(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))


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
