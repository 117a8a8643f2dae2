"""A worker's run: all stages, repeated under every later trunk."""

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
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Obstacle, Stage
from moerge_proto.trunks import Trunk
from moerge_workers.computing.actors import on_ray
from moerge_workers.computing.memory import require_gpus
from moerge_workers.contributing import expert, router, trunk
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.evaluation import Evaluations
from moerge_workers.contributing.trunk_loss import HarmfulTrunkError
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
from moerge_workers.watching.view import view


@contextmanager
def full_disk_told(home: Path) -> Iterator[None]:
    """Context that turns a full disk into an error that names the file."""
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
    """Contribute under the current trunk, and under every later one unless `once` is set.

    With `dry_run`, compute and show the outgoing data under the current trunk, and send nothing. `computing` makes the
    function that sums shards.

    Raises:
        MoergeError: the expert, the data, the trunk or the coordinator's answer is invalid.
    """
    stamina.instrumentation.set_on_retry_hooks([])  # the client reports its retries
    private_folder(settings.home)
    try:
        lock = FileLock(settings.home / LOCK).acquire(blocking=False)
    except Timeout as error:
        todo = "stop it first, or give each worker its own `home`"
        raise MoergeError("another worker is using this folder", where=str(settings.home), todo=todo) from error
    status = Status(settings.home, settings.domain, settings.coordinator)
    with lock:
        try:
            with (
                full_disk_told(settings.home),
                closing(History(settings.home)) as history,
                served(settings.metrics_port, status),
                reporting(settings, status),
                view(settings.log_format, status) as shown,
            ):
                events = Events(status, shown)
                events.sent(history.sent())
                with Client(
                    settings.coordinator, settings.token, patience=None, say=events.say, heard=status.heard
                ) as client:
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
    own = _expert(given, settings, events)
    if settings.fit:
        require_fittable(own)
    return Context(
        settings=settings,
        client=client,
        outbox=Outbox(settings, history, events),
        data=Data(settings, own, events.say),
        events=events,
        expert=own,
        compute=compute,
    )


def _expert(own: DenseExpert, settings: Settings, events: Events) -> DenseExpert:
    """The dense expert; an adapter is merged with its base."""
    folder = dense_folder(own, settings.home / "expert")
    dense = replace(own, folder=folder, adapter=None if folder == own.folder else own.folder)
    if dense.adapter is not None:
        alone, whole = ((place / name).stat().st_size for place, name in ((dense.adapter, WEIGHTS), (folder, SINGLE)))
        events.say(
            f"the expert is the adapter {dense.adapter}, {decimal(alone)}; merged with its base: {folder}, "
            f"{decimal(whole)}; only the adapter leaves if the coordinator has its base"
        )
    return dense


def run_stages(context: Context) -> None:
    """Run the stages: expert, trunk contribution, router contributions under each trunk, evaluations."""
    settings, say = context.settings, context.events.say
    context.events.enter(Stage.READING)
    say(f"data: {read_first(settings, context.data, context.expert.config.hidden_size).said}")
    if not expert.run(context):
        return
    own_grams = None
    if settings.trunk_contribution:
        outcome = trunk.run(context)
        own_grams = outcome.grams
        if outcome.sent is not None:
            say(f"contributed {outcome.sent.digest[:12]} for trunks")
    evaluations = Evaluations(context, own_grams) if settings.policy.evaluation_sums else None
    if settings.policy.router_contributions:
        _contribute_under_each_trunk(context, own_grams, evaluations)
    else:
        more = "only evaluations remain" if evaluations else "no work remains"
        say(f"the policy forbids router contributions; {more}")
    while evaluations is not None:
        evaluations.look()
        if settings.once or settings.dry_run:
            return
        time.sleep(POLL_SECONDS)


def _contribute_under_each_trunk(context: Context, own_grams: Path | None, evaluations: Evaluations | None) -> None:
    """Contribute under each trunk, and evaluate versions between trunks; with `once`, only contribute.

    `own_grams` is the file of the expert's own trunk contribution, to compare trunks with.
    """
    settings, say = context.settings, context.events.say
    for asked in context.client.rounds():
        if settings.domain in asked.missing:
            by = f"{asked.deadline:%Y-%m-%d %H:%M} UTC"
            say(f"round {asked.name} asks for {asked.kind} contributions by {by}")
    last = None
    meanwhile = evaluations.look if evaluations is not None and not settings.once else _nothing
    while (current := _next_trunk(context, last, meanwhile)) is not None:
        last = current.digest
        own = context.expert
        own.checkpoint.require_unchanged()  # since its digest was computed
        registered(context.client, own.folder, own.domain, own.digest)  # raises for a withdrawn expert
        context.events.status.update(trunk=current.digest, obstacle=None)
        try:
            for contribution in router.run(context, current, own_grams):
                say(f"contributed {contribution.digest[:12]} under trunk {current.digest[:12]}")
        except CoordinatorError as error:
            if error.type != ProblemType.WRONG_TRUNK.urn:
                raise
            say(f"trunk {current.digest[:12]} was replaced during the work")
            continue
        except (HarmfulTrunkError, IncompatibleExpertError) as error:
            harms = isinstance(error, HarmfulTrunkError)
            context.events.hindered(Obstacle.TRUNK_HARMS if harms else Obstacle.TRUNK_STRAYS)
            if settings.once or settings.dry_run:
                raise
            say(f"sending nothing under trunk {current.digest[:12]}: {error}")
        if settings.once or settings.dry_run:
            return


def _next_trunk(context: Context, last: str | None, meanwhile: Callable[[], None]) -> Trunk | None:
    """The current trunk, once it differs from the last one; a dry run doesn't wait."""
    say, said = context.events.say, False
    while (current := context.client.current_trunk()) is None or current.digest == last or current.retired is not None:
        if context.settings.dry_run:
            say("no trunk yet, so no router contributions; the operator must run: moerge trunk merge")
            return None
        if not said:
            context.events.enter(Stage.WAITING)
            first = "the first trunk; the operator makes it with: moerge trunk merge"
            say(f"waiting for {first if current is None else 'the next trunk'}")
            said = True
        meanwhile()
        time.sleep(POLL_SECONDS)
    return current


def _nothing() -> None:
    pass
