"""A worker's run: its lock, history and client, the checks before its stages."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import stamina
from filelock import Timeout
from rich.filesize import decimal

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.files import is_of_full_disk, locked, private_folder
from moerge.fits.fitting import require_fittable
from moerge.models.adapters import WEIGHTS
from moerge.models.expert_folder import DenseExpert, check_expert, dense_folder
from moerge.models.stored import SINGLE
from moerge.statistics.windows import ComputeWindows
from moerge_workers.computing.actors import on_ray
from moerge_workers.computing.memory import require_gpus
from moerge_workers.contributing.documents import Documents
from moerge_workers.contributing.exchange import Exchange
from moerge_workers.contributing.stages import run_stages
from moerge_workers.contributing.statistics import Statistics
from moerge_workers.data.documents import Data
from moerge_workers.finishing import beside_of, finishing_of
from moerge_workers.outgoing.history import History
from moerge_workers.outgoing.outbox import Outbox
from moerge_workers.outgoing.owner_key import own_identity, require_approved
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.metrics import served
from moerge_workers.watching.reporter import reporting
from moerge_workers.watching.status import LOCK, Status
from moerge_workers.watching.view import Json, Lines


@contextmanager
def naming_full_disk(home: Path) -> Iterator[None]:
    """Turn a full disk into an error that names the file."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if not is_of_full_disk(error):
            raise
        sqlite = f"{home / 'contributions'}, or SQLite's temporary files ($SQLITE_TMPDIR, /var/tmp)"
        where = (error.filename or home) if isinstance(error, OSError) else sqlite
        todo = "free space, or move `home` to a larger disk; then start again: the worker continues from the journal"
        raise MoergeError("the disk is full, or the user's quota", where=str(where), todo=todo) from error


def run(settings: Settings, computing: Callable[[Settings, Events], ComputeWindows] = on_ray) -> None:
    """Contribute under the current body, and under every later one unless `once` is set.

    With `dry_run`, compute and show the outgoing data under the current body, and send nothing. `computing` makes the
    function that sums shards.

    Raises:
        MoergeError: the expert, the data, the body or the coordinator's answer is invalid.
    """
    stamina.instrumentation.set_on_retry_hooks([])  # the client reports its retries
    private_folder(settings.home)
    try:
        lock = locked(settings.home / LOCK)
    except Timeout as error:
        todo = "stop it first, or give each worker its own `home`"
        raise MoergeError("another worker is using this folder", where=str(settings.home), todo=todo) from error
    status = Status(settings.home, settings.domain, settings.coordinator)
    events = Events(status, Json(status) if settings.log_format == "json" else Lines())
    with lock:
        try:
            with (
                naming_full_disk(settings.home),
                closing(History(settings.home)) as history,
                served(settings.metrics_host, settings.metrics_port, status),
                Client(
                    settings.coordinator, settings.token, patience=None, say=events.say, heard=status.heard
                ) as client,
                reporting(settings, status),
            ):
                events.sent(history.sent())
                compute, expert = computing(settings, events), _expert(settings, client, events)
                exchange = Exchange(client, Outbox(settings, history, events), expert.digest, beside_of(settings))
                documents = Documents(settings, Data(settings, expert, events.say), events)
                run_stages(exchange, Statistics(documents, compute, finishing_of(settings)), expert)
        except MoergeError as error:
            with suppress(OSError):  # of a disk that is full
                status.update(error=str(error))
            raise


def _expert(settings: Settings, client: Client, events: Events) -> DenseExpert:
    """The owner's dense expert, after checks of owner, key and expert."""
    identity = own_identity(client, settings.domain)
    if not settings.dry_run and not require_approved(client, settings.home):
        events.say("contributions are unsigned, because you have no key; to make one: moerge worker init")
    require_gpus(settings)
    given = DenseExpert(settings.domain, settings.expert, identity.owner or "", settings.license)
    check_expert(given, None, str(settings.expert), say=events.say)
    expert = _dense(given, settings, events)
    if settings.fit:
        require_fittable(expert)
    return expert


def _dense(given: DenseExpert, settings: Settings, events: Events) -> DenseExpert:
    """The dense expert; an adapter is merged with its base."""
    folder = dense_folder(given, settings.home / "expert")
    if folder == given.folder:
        return given
    sizes = decimal((given.folder / WEIGHTS).stat().st_size), decimal((folder / SINGLE).stat().st_size)
    events.say(
        f"the expert is the adapter {given.folder}, {sizes[0]}; merged with its base: {folder}, {sizes[1]}; "
        "MLPs alone that it changes leave as the adapter"
    )
    return replace(given, folder=folder, adapter=given.folder)
