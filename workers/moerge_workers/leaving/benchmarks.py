"""An owner's report of benchmark results, by a command beside the worker."""

from contextlib import closing

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.files import atomic_file, private_folder
from moerge_proto.benchmarks import NewBenchmarks
from moerge_proto.digests import canonical_json
from moerge_workers.leaving.history import History
from moerge_workers.leaving.outbox import Outbox
from moerge_workers.leaving.owner_key import own_identity
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines


def report_benchmarks(settings: Settings, client: Client, new: NewBenchmarks) -> bool:
    """Sends results of a version, if the policy and in mode `ask` the owner allow it; False in a dry run.

    A copy stays in the home. The status of the home's worker doesn't change.

    Raises:
        MoergeError: the policy forbids it, or the owner hasn't approved it.
    """
    if not settings.policy.allows("benchmark"):
        todo = "to allow it, set benchmark_results = true in [policy] of worker.toml"
        raise MoergeError("the policy forbids sending results of benchmarks", where="benchmark_results", todo=todo)
    own_identity(client, settings.domain)
    private_folder(settings.home)
    path = settings.home / "benchmarks" / f"version-{new.number}-{new.digest[:12]}.json"
    with atomic_file(path) as out:
        out.write(canonical_json(new.model_dump(mode="json")))
    with closing(History(settings.home)) as history:
        outbox = Outbox(settings, history, Events(Status(None, settings.domain, settings.coordinator), Lines()))
        item = outbox.benchmarks(path)
        if not outbox.may_leave(item):
            if settings.dry_run:
                return False
            todo = f"run moerge worker approve {item.digest[:12]}, then this command again"
            raise MoergeError("not sent: you haven't approved it", where=str(path), todo=todo)
        with outbox.sending(item):
            client.report_benchmarks(new)
    return True
