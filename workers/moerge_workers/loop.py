"""The worker's loop: register the expert, wait for a trunk, compute, and send what the owner lets leave."""

import platform
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import stamina
import torch
import transformers
from filelock import FileLock, Timeout

from moerge import __version__
from moerge.client.client import Client
from moerge.client.register import WithdrawnError, register
from moerge.errors import CoordinatorError, MoergeError
from moerge.experts.fitting import require_fittable
from moerge.files import file_sha256, is_of_full_disk
from moerge.models.expert_folder import DenseExpert, check_expert, file_digests
from moerge.statistics.contribution import router_manifest, trunk_manifest, withhold_rare
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge.trunk.merge import DENSE_TRUNK_FILE
from moerge.trunk.methods.registry import METHODS
from moerge.trunk.stray import require_near
from moerge_proto.contributions import Contribution, NewContribution, TrunkContribution
from moerge_proto.digests import digest_of
from moerge_proto.experts import Fitted, NewExpert
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import Manifest, RouterManifest
from moerge_proto.trunks import Trunk
from moerge_workers.computing.fitting import fitted
from moerge_workers.computing.pending import Sums
from moerge_workers.contributing.evaluation import Evaluations
from moerge_workers.data.splits import Data
from moerge_workers.leaving.history import History
from moerge_workers.leaving.ledger import Ledger
from moerge_workers.leaving.outbox import POLL_SECONDS, Outbox
from moerge_workers.leaving.owner_key import own_identity, require_approved, signature
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Watch
from moerge_workers.watching.metrics import served
from moerge_workers.watching.reporter import reporting
from moerge_workers.watching.status import LOCK, Status
from moerge_workers.watching.view import view

SOFTWARE = {
    "moerge": __version__,
    "torch": str(torch.__version__),
    "transformers": transformers.__version__,
    "python": platform.python_version(),
}


class _KeptError(Exception):
    """The expert may not leave, at least not yet."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


@contextmanager
def full_disk_told(home: Path) -> Iterator[None]:
    """Makes an error that names the file of a write for which there is no room, within it."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if not is_of_full_disk(error):
            raise
        sqlite = f"{home / 'contributions'}, or SQLite's temporary files ($SQLITE_TMPDIR, /var/tmp)"
        where = (error.filename or home) if isinstance(error, OSError) else sqlite
        todo = "make room there, or move --home to a larger disk; then start again: it goes on from the journal"
        raise MoergeError("the disk is full, or the user's share of it", where=str(where), todo=todo) from error


def run(settings: Settings) -> None:
    """Contributes under the current trunk, and under every later one unless `once` is set.

    With `dry_run` it computes and shows what would be sent under the current trunk, and sends nothing.

    Raises:
        MoergeError: the expert, the data, the trunk or the coordinator's answer is not what it should be.
    """
    stamina.instrumentation.set_on_retry_hooks([])  # the client says what it waits for
    settings.home.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(settings.home / LOCK).acquire(blocking=False)
    except Timeout as error:
        todo = "stop it first, or give each worker a --home of its own"
        raise MoergeError("another worker uses this folder", where=str(settings.home), todo=todo) from error
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
                watch = Watch(status, shown)
                watch.sent(history.sent())
                with Client(
                    settings.coordinator, settings.token, patience=None, say=watch.say, heard=status.heard
                ) as client:
                    _Worker(settings, client, history, watch).run()
        except MoergeError as error:
            with suppress(OSError):  # of a disk that is full
                status.update(error=str(error))
            raise


@dataclass(frozen=True)
class _Worker:
    settings: Settings
    client: Client
    history: History
    watch: Watch

    @property
    def say(self) -> Callable[[str], None]:
        return self.watch.say

    @property
    def _outbox(self) -> Outbox:
        return Outbox(self.settings, self.history, self.watch)

    def run(self) -> None:
        client, settings = self.client, self.settings
        owner = own_identity(client, settings.domain).owner or ""
        if not settings.dry_run and not require_approved(client, settings.home):
            self.say("contributions go unsigned: you have no key (moerge worker init makes one)")
        check_expert(settings.expert, None, str(settings.expert))
        if settings.fit:
            require_fittable(settings.expert)
        data = Data(settings, self.say)
        try:
            new = NewExpert(
                domain=settings.domain,
                files=file_digests(settings.expert),
                license=settings.license,
                redistribute=settings.policy.redistribute,
            )
            registered = register(
                client,
                settings.expert,
                new,
                self.watch,
                change=not settings.dry_run,
                leaving=self.expert_leaving,
            )
            self._outbox.settle([registered])
            expert = registered.digest
        except _KeptError as kept:
            if not settings.dry_run:
                return
            expert = kept.digest
        if settings.policy.redistribute:
            self.say("owners of other experts in a version may have it, with this expert's MLPs: redistribute = true")
        work = _Work(self, self._outbox, data, owner, expert)
        own_grams = None
        if settings.trunk_contribution:
            sent, own_grams = work.contribute_trunk()
            if sent is not None:
                self.say(f"contributed {sent.digest[:12]} for trunks")
        evaluations = None
        if settings.policy.evaluation_sums:
            evaluations = Evaluations(
                settings=settings,
                client=client,
                outbox=self._outbox,
                data=data,
                watch=self.watch,
                software=SOFTWARE,
                expert=expert,
            )
        if not settings.policy.router_contributions:
            more = "only evaluations are left" if evaluations else "there is nothing more to do"
            self.say(f"the policy keeps router contributions here; {more}")
        else:
            self._contribute(work, own_grams, evaluations)
        while evaluations is not None:
            evaluations.look()
            if settings.once or settings.dry_run:
                return
            time.sleep(POLL_SECONDS)

    def _contribute(self, work: "_Work", own_grams: Path | None, evaluations: Evaluations | None) -> None:
        """Contributes under each trunk, and evaluates versions while it waits for the next; once, it only contributes.

        `own_grams` is the file of the expert's own trunk contribution, with which trunks are compared.
        """
        client, settings = self.client, self.settings
        for asked in client.rounds():
            if settings.domain in asked.missing:
                by = f"{asked.deadline:%Y-%m-%d %H:%M} UTC"
                self.say(f"asked for {asked.kind} contributions by {by}: round {asked.name}")
        last = None
        meanwhile = evaluations.look if evaluations is not None and not settings.once else _nothing
        while (trunk := self._next_trunk(last, meanwhile)) is not None:
            last = trunk.digest
            self.watch.status.update(trunk=trunk.digest)
            try:
                for contribution in work.contribute(trunk, own_grams):
                    self.say(f"contributed {contribution.digest[:12]} under trunk {trunk.digest[:12]}")
            except CoordinatorError as error:
                if error.type != ProblemType.WRONG_TRUNK.urn:
                    raise
                self.say(f"trunk {trunk.digest[:12]} was replaced meanwhile")
                continue
            if settings.once or settings.dry_run:
                return

    @contextmanager
    def expert_leaving(self, digest: str, paths: Mapping[str, Path], trunk: str = "") -> Iterator[None]:
        """The time in which an expert leaves, if it may; `trunk`: that it is fitted to."""
        if not self.settings.policy.expert_weights:
            todo = "let the coordinator have it another way (moerge expert add --source), or set expert_weights = true"
            found = "the coordinator doesn't have this expert, and the policy keeps expert weights here"
            raise MoergeError(found, where=str(self.settings.expert), todo=todo)
        item = self._outbox.expert(digest, paths, trunk)
        if not self._outbox.may_leave(item, lambda: bool(trunk) and self.is_replaced(trunk)):
            raise _KeptError(digest)
        with self._outbox.sending(item):
            yield

    def is_replaced(self, trunk: str) -> bool:
        """Whether it isn't the current trunk any more."""
        current = self.client.current_trunk()
        return current is None or current.digest != trunk

    def _next_trunk(self, last: str | None, meanwhile: Callable[[], None]) -> Trunk | None:
        """The current trunk, once it isn't the last one any more; a dry run doesn't wait for one."""
        said = False
        while (trunk := self.client.current_trunk()) is None or trunk.digest == last or trunk.retired is not None:
            if self.settings.dry_run:
                self.say("there is no trunk, so router contributions can't be computed; the operator merges one")
                return None
            if not said:
                self.watch.enter(Stage.WAITING)
                self.say("waiting for the operator to merge a trunk")
                said = True
            meanwhile()
            time.sleep(POLL_SECONDS)
        return trunk


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class _Work:
    """What one worker contributes of one expert; `expert` is its digest."""

    worker: _Worker
    outbox: Outbox
    data: Data
    owner: str
    expert: str

    @property
    def _settings(self) -> Settings:
        return self.worker.settings

    def contribute_trunk(self) -> tuple[TrunkContribution | None, Path | None]:
        """Sends the expert's trunk contribution, and tells where it lies; rare tokens' counts stay in the journal."""
        settings, folder = self._settings, self._settings.expert
        own = DenseExpert(settings.domain, folder)
        blank = trunk_manifest(self.owner, own, self.expert, settings.statistics)
        work = TrunkPass(folder, blank.exponents, settings.statistics.precision, settings.device)
        with closing(Ledger(self._ledger(blank))) as ledger:
            sums = self._sums(ledger, blank, work)
            made = sums.complete()
            whole = sums.path(ledger.files()[-1] if made is None else made.file)
            if not whole.is_file():
                return None, None
            path = whole.with_name(f"{whole.stem}-sent.safetensors")
            withhold_rare(whole, path, settings.rare_below)
            item = self.outbox.contribution(path, file_sha256(path))
            rows = list(self.worker.client.trunk_contributions())
            self.outbox.settle(rows)
            counts = {row.digest: row for row in rows if row.active}
            if item.digest not in counts and not self.outbox.may_leave(item):
                return None, path
            if made is not None:
                made.note()
        if item.digest not in counts:
            supersedes = [row.digest for row in counts.values() if row.expert == self.expert]
            with self.outbox.sending(item, supersedes):
                new = self._uploaded(path, item.digest, supersedes, "uploading the trunk contribution")
                counts[item.digest] = self.worker.client.contribute_trunk(new)
        return counts[item.digest], path

    def _uploaded(self, path: Path, digest: str, supersedes: list[str], title: str) -> NewContribution:
        self.worker.client.upload(path, self.worker.watch, title=title, compress=True)
        signed = signature(self._settings.home, self.owner, digest)
        return NewContribution(sha256=digest, supersedes=supersedes, signature=signed, software=SOFTWARE)

    def contribute(self, trunk: Trunk, own_grams: Path | None) -> list[Contribution]:
        """Sends what isn't sent yet under a trunk, of the statistics and of the tuning split.

        `own_grams` is the file of the expert's own trunk contribution, with which the trunk is compared.
        """
        settings, client, watch = self._settings, self.worker.client, self.worker.watch
        self.outbox.outdate(lambda item: item.trunk not in ("", trunk.digest))
        folder = settings.home / "trunks" / trunk.digest
        place = f"/v1/trunks/{trunk.digest}/files"
        watch.enter(Stage.DOWNLOADING)
        client.download(place, trunk.files, folder, watch, title="downloading the trunk")
        weights, limit = folder / DENSE_TRUNK_FILE, settings.policy.max_stray
        stray = require_near(settings.expert, weights, limit, own_grams)
        self.worker.say(f"the trunk strays from the expert by at most {stray:.3f} of a tensor's norm (limit {limit:g})")
        expert, mlps = self.expert, settings.expert
        if settings.fit:
            try:
                expert, mlps = self._fitted(trunk, weights)
            except _KeptError:
                return []
        elif (method := METHODS.get(trunk.method)) is not None and method.for_fitted_mlps:
            self.worker.say("the trunk was merged for fitted MLPs; with --fit this domain would do better")
        work = RouterPass(mlps, weights, trunk.exponents, settings.statistics.precision, settings.device)
        sent: list[Contribution] = []
        for split in ("statistics", "tuning"):
            blank = router_manifest(self.owner, expert, settings.domain, trunk, settings.statistics, split)
            path = self._ledger(blank)
            if split == "tuning" and not settings.tuning_share and not path.exists():
                continue
            with closing(Ledger(path)) as ledger:
                sent += self._contribute_split(self._sums(ledger, blank, work), blank)
        return sent

    def _fitted(self, trunk: Trunk, weights: Path) -> tuple[str, Path]:
        """Digest and folder of the expert fitted to a trunk, once the coordinator has it, or in a dry run would.

        The expert as it is, if its owner refuses the fitted one or has withdrawn it, or there is too little text.

        Raises:
            _KeptError: its owner hasn't answered.
        """
        settings, worker = self._settings, self.worker
        folder = fitted(settings, self.data, worker.watch, self.expert, weights)
        if folder is None:
            return self.expert, settings.expert
        new = NewExpert(
            domain=settings.domain,
            files=file_digests(folder),
            license=settings.license,
            fitted=Fitted(expert=self.expert, trunk=trunk.digest),
        )
        try:
            expert = register(
                worker.client,
                folder,
                new,
                worker.watch,
                change=False,
                leaving=partial(worker.expert_leaving, trunk=trunk.digest),
            )
        except WithdrawnError:
            worker.say("the fitted expert was withdrawn; the contribution is made with the expert as it is")
            return self.expert, settings.expert
        except _KeptError as kept:
            item = worker.history.item(kept.digest, settings.coordinator)
            if settings.dry_run:
                return kept.digest, folder
            if item is not None and worker.history.decision(item) == "refused":
                return self.expert, settings.expert
            raise
        self.outbox.settle([expert])
        return expert.digest, folder

    def _contribute_split(self, sums: Sums, blank: RouterManifest) -> list[Contribution]:
        if self._delivered(sums, blank) is None:
            return []
        if (made := sums.complete()) is not None:
            item = self.outbox.contribution(sums.path(made.file), made.file.digest)
            if self.outbox.may_leave(item, lambda: self.worker.is_replaced(blank.trunk)):
                made.note()  # the ledger holds what the owner let leave, and nothing else
        return self._delivered(sums, blank) or []

    def _sums(self, ledger: Ledger, blank: Manifest, work: RouterPass | TrunkPass) -> Sums:
        folder = self._settings.home / "contributions"
        return Sums(self._settings, self.data, blank.split, blank, work, ledger, folder, self.worker.watch)

    def _ledger(self, blank: Manifest) -> Path:
        """The ledger's place: one for all that counts together, however it is computed."""
        fields = blank.model_dump(include={"kind", "owner", "expert", "domain", "trunk", "split"})
        return self._settings.home / "contributions" / f"{digest_of(fields)}.sqlite"

    def _delivered(self, sums: Sums, blank: RouterManifest) -> list[Contribution] | None:
        """The contributions of the ledger's files; sends what doesn't count yet, in the place of what was replaced.

        None: the owner doesn't let one leave that was to be sent earlier, or this is a dry run.
        """
        place = blank.trunk, blank.domain, blank.split
        rows = list(self.worker.client.contributions())
        self.outbox.settle(rows)
        counts = {row.digest: row for row in rows if row.active}
        counts = {digest: row for digest, row in counts.items() if (row.trunk, row.domain, row.split) == place}
        files = sums.ledger.files()
        supersedes = [old.digest for old in sums.ledger.files(replaced=True) if old.digest in counts]
        others = [row for row in counts.values() if row.expert != blank.expert]
        if others and blank.expert == self.expert:
            found, todo = f"its fitted expert {others[0].expert} contributes under this trunk", "run with --fit"
            todo += f", or withdraw it: moerge expert withdraw {others[0].expert}"
            raise MoergeError(found, where=str(self._settings.expert), todo=todo)
        if any(file.digest not in counts and not sums.path(file).is_file() for file in files):
            self.worker.say("a file that was sent neither counts nor is kept here; its documents are sent anew")
            sums.ledger.forget()
            return []
        for file in files:
            if file.digest in counts:
                continue
            item = self.outbox.contribution(sums.path(file), file.digest)
            if not self.outbox.may_leave(item, lambda: self.worker.is_replaced(blank.trunk)):
                if self.worker.history.decision(item) == "refused":
                    sums.ledger.forget()
                return None
            supersedes, others = supersedes + [row.digest for row in others], []
            with self.outbox.sending(item, supersedes):
                new = self._uploaded(sums.path(file), file.digest, supersedes, "uploading the contribution")
                counts[file.digest], supersedes = self.worker.client.contribute(new), []
        if not files and not self._settings.dry_run:
            for digest in supersedes:
                self._withdraw(digest, blank)
        return [counts[file.digest] for file in files]

    def _withdraw(self, digest: str, blank: RouterManifest) -> None:
        self.worker.client.withdraw_contribution(digest)
        self.outbox.withdrawn(digest)
        self.worker.say(f"withdrawn {digest[:12]}: no document of {blank.split} is left")
