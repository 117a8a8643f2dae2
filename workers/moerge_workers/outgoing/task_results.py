"""An owner's report of results on tasks, by a command beside the worker."""

from contextlib import closing

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.files import atomic_file, private_folder
from moerge_proto.digests import canonical_json
from moerge_proto.evaluations import NewEvaluation
from moerge_workers.outgoing.history import History
from moerge_workers.outgoing.outbox import Outbox
from moerge_workers.outgoing.owner_key import own_identity
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines


def report(settings: Settings, client: Client, new: NewEvaluation) -> bool:
    """Sends results of a version, if the policy and in mode `ask` the owner allow it; False in a dry run.

    A copy stays in the home. The status of the home's worker doesn't change.

    Raises:
        MoergeError: the policy forbids it, or the owner hasn't approved it.
    """
    own_identity(client, settings.domain)
    private_folder(settings.home)
    path = settings.home / "task-results" / f"version-{new.number}-{new.digest[:12]}.json"
    with atomic_file(path) as out:
        out.write(canonical_json(new.model_dump(mode="json")))
    with closing(History(settings.home)) as history:
        outbox = Outbox(settings, history, Events(Status(None, settings.domain, settings.coordinator), Lines()))
        item = outbox.evaluation(path)
        if outbox.may_leave(item):
            with outbox.sending(item):
                client.evaluate(new)
            return True
    if not settings.policy.allows(item.kind):
        todo = "to allow it, set task_results = true in [policy] of worker.toml"
        raise MoergeError("the policy forbids sending results on tasks", where="task_results", todo=todo)
    if settings.dry_run:
        return False
    todo = f"run moerge worker approve {item.digest[:12]}, then this command again"
    raise MoergeError("not sent: you haven't approved it", where=str(path), todo=todo)
