"""Construction of a coordinator's FastAPI app from its settings."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from itertools import chain

from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer
from fastapi import APIRouter, FastAPI
from fastapi.responses import RedirectResponse
from filelock import Timeout
from sqlalchemy.exc import SQLAlchemyError

from moerge.build import build
from moerge.errors import MoergeError
from moerge.files import locked
from moerge_coordinator.dashboard.app import make_dashboard
from moerge_coordinator.dashboard.site import HOME
from moerge_coordinator.domain import contribution_kinds
from moerge_coordinator.domain.demands import AllDemands
from moerge_coordinator.domain.demands import demands as all_demands
from moerge_coordinator.domain.ports import Ports, admitted, unmeasured
from moerge_coordinator.domain.tokens import LastUses
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.operation.preflight import LOCK
from moerge_coordinator.rest import errors, openapi
from moerge_coordinator.rest.audit import forget as forget_calls
from moerge_coordinator.rest.demands import Waits
from moerge_coordinator.rest.gauges import add_gauges
from moerge_coordinator.rest.limits import Bodies
from moerge_coordinator.rest.request_log import Calls
from moerge_coordinator.rest.routes import ROUTERS, operation
from moerge_coordinator.rest.state import State, Traffic
from moerge_coordinator.settings import Settings
from moerge_coordinator.sides import sides
from moerge_coordinator.storage.database import open_database, utc_now
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.references import collect
from moerge_coordinator.storage.stores import stores
from moerge_coordinator.workflows.leader import Leader, beside_others
from moerge_coordinator.workflows.runner import APPLICATION_VERSION, EXECUTOR_ID, QUEUE, Workflows
from moerge_coordinator.workflows.serialization import refuse_pickle

APPLICATION = "moerge-coordinator"
_log = logging.getLogger("moerge.coordinator")
_QUEUE_SECONDS = 0.25
_PRUNE_SECONDS, _SWEEP_SECONDS, _USES_SECONDS = 600, 3600, 60
_CONNECTIONS = 8  # to DBOS's database; PostgreSQL's own bound is 100 for all replicas


@contextmanager
def only_one(settings: Settings) -> Iterator[None]:
    """Holds the locks of the home and the database: two processes would run the same workflow steps.

    Several may share one PostgreSQL database, each with its home, if they share an S3 store.
    """
    url, shared = settings.database, settings.s3 is not None
    try:
        with (
            locked(settings.home / LOCK),
            beside_others(url, shared=shared) if isinstance(url, str) else nullcontext(),
        ):
            yield
    except Timeout as error:
        todo = "stop it first, or use another home"
        raise MoergeError("another coordinator is using this home", where=str(settings.home), todo=todo) from error


@contextmanager
def workflows_run(state: State) -> Iterator[None]:
    """A context in which this process runs the workflows, or waits for the right to run them."""
    settings, workflows = state.settings, state.workflows

    def launch() -> None:
        collect(state.database, state.blobs)
        DBOS(config=dbos_config(settings))
        DBOS.launch()
        state.traffic.leading = True

    def lead() -> None:
        launch()
        workflows.resume()

    leader = Leader(settings.database, lead) if isinstance(settings.database, str) else None
    if leader is None:
        launch()
    else:
        leader.start()
    try:
        yield
    finally:
        if leader is not None:
            leader.stop()
        DBOS.destroy()


def workflow_client(settings: Settings) -> DBOSClient:
    """A client that queues workflows and reads their state, for any process."""
    refuse_pickle()
    DBOS.migrate(settings.workflow_database)
    client = DBOSClient(
        system_database_url=settings.workflow_database,
        application_name=APPLICATION,
        serializer=DBOSPortableJSONSerializer(),
        system_database_pool_size=_CONNECTIONS,
    )
    client.register_queue(QUEUE, polling_interval_sec=_QUEUE_SECONDS)
    return client


async def _every(seconds: float, work: Callable[[], None]) -> None:
    """Repeats `work` at this interval, in a thread, while the coordinator serves."""
    while True:
        try:
            await asyncio.to_thread(work)
        except (MoergeError, SQLAlchemyError, OSError):
            _log.exception("failed; next attempt in %d s", seconds)
        await asyncio.sleep(seconds)


def make_app(settings: Settings, traffic: Traffic | None = None, clock: Callable[[], datetime] = utc_now) -> FastAPI:
    """The coordinator as an ASGI app. Its lifespan runs the durable workflows; hold `only_one` around it."""
    rooms = sides()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state = make_state(settings, traffic, clock)
        app.state.coordinator = state
        for place in (state.blobs, state.uploads, state.folders):
            place.sweep()

        def forget() -> None:
            if state.traffic.leading:
                state.workflows.forget_ended()
                if settings.audit_days is not None:
                    forget_calls(state.database, settings.audit_days)

        tasks = [
            asyncio.create_task(_every(_PRUNE_SECONDS, state.blobs.prune)),
            asyncio.create_task(_every(_SWEEP_SECONDS, state.uploads.sweep_abandoned)),
            asyncio.create_task(_every(_USES_SECONDS, state.last_uses.save)),
            asyncio.create_task(state.waits.follow(lambda: state.traffic.stopping)),
        ]
        try:
            with workflows_run(state), ExitStack() as stack:
                for side in rooms:
                    stack.enter_context(side.running(state))
                if not isinstance(settings.database, str):
                    await asyncio.to_thread(state.workflows.resume)
                tasks.append(asyncio.create_task(_every(_SWEEP_SECONDS, forget)))
                yield
        finally:
            for task in tasks:
                task.cancel()
            state.workflows.close()
            state.database.close()

    app = FastAPI(
        title="moerge coordinator",
        version=build().version,
        summary="Adds, solves, publishes and serves Mixture-of-Experts versions.",
        lifespan=lifespan,
        docs_url=None,  # its pages load other hosts' scripts into the dashboard's origin
        redoc_url=None,
        redirect_slashes=False,  # such a redirect repeats the caller's Host header
    )
    app.add_middleware(Calls, owner=app)  # outermost
    app.add_middleware(Bodies)
    errors.install(app)
    openapi.describe(app)
    api = APIRouter(prefix="/v1")
    for router in (*ROUTERS, *chain.from_iterable(side.routers for side in rooms)):
        api.include_router(router)
    app.include_router(api)
    app.include_router(operation.router)
    app.mount(
        HOME, make_dashboard(app, [side.needs for side in rooms if side.needs is not None], settings.documentation)
    )
    for path in ("/", HOME):
        app.add_route(path, lambda request: RedirectResponse(f"{HOME}/"), include_in_schema=False)
    return app


def make_state(settings: Settings, traffic: Traffic | None = None, clock: Callable[[], datetime] = utc_now) -> State:
    """The state, with the database and stores of the settings opened."""
    metrics, rooms = Metrics(), sides()
    notices = frozenset(chain.from_iterable(side.events(settings) for side in rooms))
    database = open_database(settings.database, clock, metrics.count_transaction, notices)
    blobs, chunks = stores(settings)
    rules = dict(contribution_kinds.RULES)
    for side in rooms:
        rules |= side.rules
    comparisons = list(chain.from_iterable(side.comparisons for side in rooms))
    ports = Ports(
        settings=settings,
        database=database,
        blobs=blobs,
        folders=Folders(database, blobs, settings.home),
        uploads=Uploads(database, blobs, chunks, settings),
        rules=rules,
        comparisons=[*comparisons, *(side.on_parts(comparisons) for side in rooms if side.on_parts is not None)],
        influence=next((side.influence for side in rooms if side.influence is not None), unmeasured),
        card_scores=list(chain.from_iterable(side.card_scores for side in rooms)),
        admission=next((side.admission for side in rooms if side.admission is not None), admitted),
    )
    experts: dict[int, list[str]] = {}

    def read() -> AllDemands:
        with database.reading() as session:
            return all_demands(session, experts)

    client = workflow_client(settings) if isinstance(settings.database, str) else None
    workflows = Workflows(ports, metrics, client)
    result = State(
        **vars(ports),
        last_uses=LastUses(database),
        workflows=workflows,
        metrics=metrics,
        traffic=traffic or Traffic(),
        checks={"database": database.answers, "blob store": blobs.probe, "workflows": partial(workflows.find, "-")},
        waits=Waits(read),
    )
    add_gauges(result)
    return result


def dbos_config(settings: Settings) -> DBOSConfig:
    refuse_pickle()
    return DBOSConfig(
        name=APPLICATION,
        system_database_url=settings.workflow_database,
        serializer=DBOSPortableJSONSerializer(),  # the default one unpickles
        executor_id=EXECUTOR_ID,
        application_version=APPLICATION_VERSION,
        enable_otlp=False,
        sys_db_pool_size=_CONNECTIONS,
        log_level="WARNING",
    )
