"""The worker's loop: register the expert, wait for a trunk, compute, show what leaves, send."""

import errno
import platform
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import stamina
import torch
import transformers
from filelock import FileLock, Timeout
from rich.filesize import decimal

from moerge import __version__
from moerge.architectures.config import read_config
from moerge.architectures.families import family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.client import Client
from moerge.errors import CoordinatorError, MoergeError
from moerge.experts import check_expert
from moerge.files import atomic_file
from moerge.progress import Progress
from moerge.register import register
from moerge.statistics.bounds import attention_size, input_exponents
from moerge.statistics.inspect import summary
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge.trunk.domain_model import require_near
from moerge_proto.contributions import Contribution, NewContribution, TrunkContribution
from moerge_proto.digests import digest_of
from moerge_proto.experts import Expert
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Int64, Manifest, RouterManifest, StatisticsFile, TrunkManifest, write
from moerge_proto.trunks import Trunk
from moerge_workers.data import Data
from moerge_workers.identity import require_approved, signature
from moerge_workers.ledger import Ledger
from moerge_workers.settings import Settings
from moerge_workers.sums import Sums

POLL_SECONDS = 1.0
TRUNK_FILE = "trunk.safetensors"
_NOTHING_YET: dict[str, Any] = {"tokens": 1, "documents": 1, "shards": ["0" * 64]}
SOFTWARE = {
    "moerge": __version__,
    "torch": str(torch.__version__),
    "transformers": transformers.__version__,
    "python": platform.python_version(),
}


def say(text: str) -> None:
    """One line of what happens, on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def full_disk_told(home: Path) -> Iterator[None]:
    """Makes an error that names the file of a write for which there is no room, within it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise _full(error.filename or home) from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_FULL":
            raise
        raise _full(f"{home / 'contributions'}, or SQLite's temporary files ($SQLITE_TMPDIR, /var/tmp)") from error


def _full(where: object) -> MoergeError:
    todo = "make room there, or move --home to a larger disk; then start again: it goes on from the journal"
    return MoergeError("the disk is full, or the user's share of it", where=str(where), todo=todo)


def run(settings: Settings, progress: Progress) -> None:
    """Contributes under the current trunk, and under every later one unless `once` is set.

    Raises:
        MoergeError: the expert, the data, the trunk or the coordinator's answer is not what it should be.
    """
    stamina.instrumentation.set_on_retry_hooks([])  # the client says what it waits for
    settings.home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(settings.home / "lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        todo = "stop it first, or give each worker a --home of its own"
        raise MoergeError("another worker uses this folder", where=str(settings.home), todo=todo) from error
    with (
        lock,
        full_disk_told(settings.home),
        Client(settings.coordinator, settings.token, patience=None, say=say) as client,
    ):
        owner = _own_name(client, settings.domain)
        if not require_approved(client, settings.home):
            say("contributions go unsigned: you have no key (moerge worker init makes one)")
        check_expert(settings.expert, None, str(settings.expert))
        data = Data(settings, say)
        expert = register(client, settings.expert, progress, domain=settings.domain, license=settings.license)
        statistics = None
        if settings.trunk_contribution:
            sent, statistics = _contribute_trunk(client, settings, data, owner, expert, progress)
            say(f"contributed {sent.digest[:12]} for trunks")
        for asked in client.rounds():
            if settings.domain in asked.missing:
                say(f"asked for {asked.kind} contributions by {asked.deadline:%Y-%m-%d %H:%M} UTC: round {asked.name}")
        last = None
        while True:
            trunk = _next_trunk(client, last)
            last = trunk.digest
            try:
                for contribution in _contribute(client, settings, data, owner, expert, trunk, statistics, progress):
                    say(f"contributed {contribution.digest[:12]} under trunk {trunk.digest[:12]}")
            except CoordinatorError as error:
                if error.type != ProblemType.WRONG_TRUNK.urn:
                    raise
                say(f"trunk {trunk.digest[:12]} was replaced meanwhile")
                continue
            if settings.once:
                return


def _own_name(client: Client, domain: str) -> str:
    identity = client.identity()
    if identity.owner is None or domain not in identity.domains:
        raise MoergeError(
            f"the token is for {', '.join(identity.domains) or 'no domain'}, not {domain!r}",
            where="--domain",
            todo="use the token that the operator made for this domain's owner",
        )
    return identity.owner


def _next_trunk(client: Client, last: str | None) -> Trunk:
    said = False
    while (trunk := client.current_trunk()) is None or trunk.digest == last or trunk.retired is not None:
        if not said:
            say("waiting for the operator to merge a trunk")
            said = True
        time.sleep(POLL_SECONDS)
    return trunk


def _contribute_trunk(
    client: Client, settings: Settings, data: Data, owner: str, expert: Expert, progress: Progress
) -> tuple[TrunkContribution, Path]:
    """Sends the expert's trunk contribution, and tells where it lies; rare tokens' counts stay in the journal."""
    folder = settings.expert
    config, checkpoint = read_config(folder), Checkpoint(folder)
    exponents = input_exponents(checkpoint, family_of(config), config)
    blank = TrunkManifest(
        owner=owner,
        expert=expert.digest,
        domain=settings.domain,
        settings=settings.statistics,
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        attention_size=attention_size(config),
        vocab_size=config.vocab_size,
        exponents=exponents,
        rare_below=0,
        **_NOTHING_YET,
    )
    work = TrunkPass(folder, exponents, settings.statistics.precision, settings.device)
    with closing(Ledger(_ledger(settings, blank))) as ledger:
        sums = _sums(settings, data, ledger, blank, work, progress)
        if (note := sums.complete()) is not None:
            note()
        whole = sums.path(ledger.files()[-1])
    path = whole.with_name(f"{whole.stem}-sent.safetensors")
    with StatisticsFile(whole) as file, atomic_file(path) as out:
        manifest = file.manifest.model_copy(update={"rare_below": settings.rare_below})
        write(out, manifest, _without_rare(file, settings.rare_below))
    _show(path)
    stored = client.upload(path, progress, title="uploading the trunk contribution", compress=True)
    active = [row.digest for row in client.trunk_contributions() if row.active and row.expert == expert.digest]
    supersedes = [digest for digest in active if digest != stored.sha256]
    signed = signature(settings.home, owner, stored.sha256)
    new = NewContribution(sha256=stored.sha256, supersedes=supersedes, signature=signed, software=SOFTWARE)
    return client.contribute_trunk(new), path


def _without_rare(file: StatisticsFile, rare_below: int) -> Iterator[Int64]:
    for name, _ in file.manifest.layout():
        array = file.array(name)
        yield np.where(array < rare_below, 0, array) if name == "token_counts" else array


def _contribute(
    client: Client,
    settings: Settings,
    data: Data,
    owner: str,
    expert: Expert,
    trunk: Trunk,
    statistics: Path | None,
    progress: Progress,
) -> list[Contribution]:
    """Sends what isn't sent yet under a trunk, of the statistics and of the tuning split.

    `statistics` is the expert's own trunk contribution, with which the trunk is compared.
    """
    folder = settings.home / "trunks" / trunk.digest
    client.download(f"/v1/trunks/{trunk.digest}/files", trunk.files, folder, progress, title="downloading the trunk")
    weights = folder / TRUNK_FILE
    stray = require_near(settings.expert, weights, settings.max_stray, statistics)
    say(f"the trunk strays from the expert by at most {stray:.3f} of a tensor's norm (limit {settings.max_stray:g})")
    work = RouterPass(settings.expert, weights, trunk.exponents, settings.statistics.precision, settings.device)
    sent: list[Contribution] = []
    for split in ("statistics", "tuning"):
        blank = RouterManifest.model_validate(
            {
                "owner": owner,
                "expert": expert.digest,
                "domain": settings.domain,
                "trunk": trunk.digest,
                "split": split,
                "settings": settings.statistics,
                "hidden_size": trunk.hidden_size,
                "layers": trunk.layers,
                "exponents": trunk.exponents,
                **_NOTHING_YET,
            }
        )
        path = _ledger(settings, blank)
        if split == "tuning" and not settings.tuning_share and not path.exists():
            continue
        with closing(Ledger(path)) as ledger:
            sums = _sums(settings, data, ledger, blank, work, progress)
            _delivered(client, settings, sums, blank, progress)
            if (note := sums.complete()) is not None:
                note()
            sent += _delivered(client, settings, sums, blank, progress)
    return sent


def _sums(
    settings: Settings,
    data: Data,
    ledger: Ledger,
    blank: Manifest,
    work: RouterPass | TrunkPass,
    progress: Progress,
) -> Sums:
    folder = settings.home / "contributions"
    return Sums(settings, data, blank.split, blank, work, ledger, folder, progress, say)


def _ledger(settings: Settings, blank: Manifest) -> Path:
    """The ledger's place: one for all that counts together, however it is computed."""
    fields = blank.model_dump(include={"kind", "owner", "expert", "domain", "trunk", "split"})
    return settings.home / "contributions" / f"{digest_of(fields)}.sqlite"


def _delivered(
    client: Client, settings: Settings, sums: Sums, blank: RouterManifest, progress: Progress
) -> list[Contribution]:
    """The contributions of the ledger's files; sends what doesn't count yet, in the place of what was replaced."""
    place = blank.trunk, blank.domain, blank.split
    counts = {row.digest: row for row in client.contributions() if row.active}
    counts = {digest: row for digest, row in counts.items() if (row.trunk, row.domain, row.split) == place}
    files = sums.ledger.files()
    supersedes = [old.digest for old in sums.ledger.files(replaced=True) if old.digest in counts]
    if any(file.digest not in counts and not sums.path(file).is_file() for file in files):
        say("a file that was sent neither counts nor is kept here; its documents are sent anew")
        sums.ledger.forget()
        return []
    for file in files:
        if file.digest not in counts:
            _show(sums.path(file))
            client.upload(sums.path(file), progress, title="uploading the contribution", compress=True)
            signed = signature(settings.home, blank.owner, file.digest)
            new = NewContribution(sha256=file.digest, supersedes=supersedes, signature=signed, software=SOFTWARE)
            counts[file.digest], supersedes = client.contribute(new), []
    if not files:
        for digest in supersedes:
            say(f"withdrawn {client.withdraw_contribution(digest).digest[:12]}: no document of {blank.split} is left")
    return [counts[file.digest] for file in files]


def _show(path: Path) -> None:
    with StatisticsFile(path) as file:
        manifest = file.manifest
    say(f"leaving this machine: {summary(manifest)}, {decimal(path.stat().st_size)}; kept at {path}")
