"""A worker's run: all stages, repeated under every later body."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import stamina
from filelock import FileLock, Timeout
from rich.filesize import decimal

from moerge.client.client import Client
from moerge.client.register import registered
from moerge.errors import CoordinatorError, IncompatibleExpertError, MoergeError
from moerge.experts.fitting import require_fittable
from moerge.files import is_of_full_disk, private_folder
from moerge.models.adapters import WEIGHTS
from moerge.models.expert_folder import DenseExpert, check_expert, dense_folder
from moerge.models.stored import SINGLE
from moerge.statistics.windows import ComputeWindows
from moerge_proto.bodies import Body
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Stage
from moerge_workers.computing.actors import on_ray
from moerge_workers.computing.memory import require_gpus
from moerge_workers.contributing import body, router
from moerge_workers.contributing import expert as expert_stage
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.evaluation import Evaluations
from moerge_workers.data.documents import Data
from moerge_workers.data.first_documents import read_first
from moerge_workers.leaving.history import History
from moerge_workers.leaving.outbox import POLL_SECONDS, Outbox
from moerge_workers.leaving.owner_key import own_identity, require_approved
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
        lock = FileLock(settings.home / LOCK).acquire(blocking=False)
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
                served(settings.metrics_port, status),
                reporting(settings, status),
                Client(
                    settings.coordinator, settings.token, patience=None, say=events.say, heard=status.heard
                ) as client,
            ):
                events.sent(history.sent())
                run_stages(_context(settings, client, history, events, computing(settings, events)))
        except MoergeError as error:
            with suppress(OSError):  # of a disk that is full
                status.update(error=str(error))
            raise


def _context(settings: Settings, client: Client, history: History, events: Events, compute: ComputeWindows) -> Context:
    """The context of all stages, after checks of owner, key and expert."""
    identity = own_identity(client, settings.domain)
    if not settings.dry_run and not require_approved(client, settings.home):
        events.say("contributions are unsigned, because you have no key; to make one: moerge worker init")
    require_gpus(settings)
    given = DenseExpert(settings.domain, settings.expert, identity.owner or "", settings.license)
    check_expert(given, None, str(settings.expert))
    expert = _dense(given, settings, events)
    if settings.fit:
        require_fittable(expert)
    outbox, data = Outbox(settings, history, events), Data(settings, expert, events.say)
    return Context(settings, client, outbox, data, events, expert, compute)


def _dense(given: DenseExpert, settings: Settings, events: Events) -> DenseExpert:
    """The dense expert; an adapter is merged with its base."""
    folder = dense_folder(given, settings.home / "expert")
    if folder == given.folder:
        return given
    sizes = decimal((given.folder / WEIGHTS).stat().st_size), decimal((folder / SINGLE).stat().st_size)
    events.say(
        f"the expert is the adapter {given.folder}, {sizes[0]}; merged with its base: {folder}, {sizes[1]}; "
        "only the adapter leaves if the coordinator has its base"
    )
    return replace(given, folder=folder, adapter=given.folder)


def run_stages(context: Context) -> None:
    """Run the stages: expert, body contribution, router contributions under each body, evaluations."""
    settings, say = context.settings, context.events.say
    context.events.enter(Stage.READING)
    say(f"data: {read_first(settings, context.data, context.expert.config.hidden_size).summary}")
    if not expert_stage.run(context):
        return
    own_grams = None
    if settings.body_contribution:
        outcome = body.run(context)
        own_grams = outcome.grams
        if outcome.sent is not None:
            say(f"contributed {outcome.sent.digest[:12]} for bodies")
    evaluations = Evaluations(context, own_grams) if settings.policy.evaluation_sums else None
    if settings.policy.router_contributions:
        _contribute_under_each_body(context, own_grams, evaluations)
    else:
        more = "only evaluations remain" if evaluations else "no work remains"
        say(f"the policy forbids router contributions; {more}")
    while evaluations is not None:
        evaluations.look()
        if settings.once or settings.dry_run:
            return
        time.sleep(POLL_SECONDS)


def _contribute_under_each_body(context: Context, own_grams: Path | None, evaluations: Evaluations | None) -> None:
    """Contribute under each body, and evaluate versions between bodies; with `once`, only contribute.

    `own_grams`: file of the expert's own body contribution, to compare bodies with.
    """
    settings, say, expert = context.settings, context.events.say, context.expert
    for item in context.client.rounds():
        if settings.domain in item.missing:
            by = f"{item.deadline:%Y-%m-%d %H:%M} UTC"
            say(f"round {item.name} asks for {item.kind} contributions by {by}")
    last = None
    while (current := _next_body(context, last, None if settings.once else evaluations)) is not None:
        last = current.digest
        expert.checkpoint.require_unchanged()  # since its digest was computed
        registered(context.client, expert.folder, expert.domain, expert.digest)  # raises for a withdrawn expert
        context.events.status.update(body=current.digest, obstacle=None)
        try:
            for contribution in router.run(context, current, own_grams):
                say(f"contributed {contribution.digest[:12]} under body {current.digest[:12]}")
        except CoordinatorError as error:
            if error.type != ProblemType.WRONG_BODY.urn:
                raise
            say(f"body {current.digest[:12]} was replaced during the work")
            continue
        except IncompatibleExpertError as error:
            if settings.once or settings.dry_run:
                raise
            say(f"sending nothing under body {current.digest[:12]}: {error}")
        if settings.once or settings.dry_run:
            return


def _next_body(context: Context, last: str | None, evaluations: Evaluations | None) -> Body | None:
    """The current body, once it differs from the last one; a dry run doesn't wait."""
    say, is_waiting = context.events.say, False
    while (current := context.client.current_body()) is None or current.digest == last or current.retired is not None:
        if context.settings.dry_run:
            say("no body yet, so no router contributions; the operator must run: moerge body merge")
            return None
        if not is_waiting:
            context.events.enter(Stage.WAITING)
            first = "the first body; the operator makes it with: moerge body merge"
            say(f"waiting for {first if current is None else 'the next body'}")
            is_waiting = True
        if evaluations is not None:
            evaluations.look()
        time.sleep(POLL_SECONDS)
    return current
