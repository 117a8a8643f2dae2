"""The worker's loop: register the expert, wait for a trunk, compute, show what leaves, send."""

import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from filelock import FileLock, Timeout
from rich.filesize import decimal
from transformers import AutoTokenizer

from moerge import __version__
from moerge.architectures.config import read_config
from moerge.architectures.families import family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.client import Client
from moerge.documents import data_files, documents
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
from moerge_workers import actors
from moerge_workers.identity import read_key, require_approved, signature
from moerge_workers.journal import Journal
from moerge_workers.settings import Settings
from moerge_workers.shards import Shard, plan

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


def run(settings: Settings, progress: Progress) -> None:
    """Contributes under the current trunk, and under every later one unless `once` is set.

    Raises:
        MoergeError: the expert, the data, the trunk or the coordinator's answer is not what it should be.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(settings.home / "lock")
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        todo = "stop it first, or give each worker a --home of its own"
        raise MoergeError("another worker uses this folder", where=str(settings.home), todo=todo) from error
    with lock, Client(settings.coordinator, settings.token) as client:
        owner = _own_name(client, settings.domain)
        if not require_approved(client, settings.home):
            say("contributions go unsigned: you have no key (moerge worker init makes one)")
        check_expert(settings.expert, None, str(settings.expert))
        for data in filter(None, (settings.data, settings.tuning_data)):
            data_files(data)
        expert = register(client, settings.expert, progress, domain=settings.domain, license=settings.license)
        statistics = None
        if settings.trunk_contribution:
            sent, statistics = _contribute_trunk(client, settings, owner, expert, progress)
            say(f"contributed {sent.digest[:12]} for trunks")
        for asked in client.rounds():
            if settings.domain in asked.missing:
                say(f"asked for {asked.kind} contributions by {asked.deadline:%Y-%m-%d %H:%M} UTC: round {asked.name}")
        last = None
        while True:
            trunk = _next_trunk(client, last)
            last = trunk.digest
            try:
                for contribution in _contribute(client, settings, owner, expert, trunk, statistics, progress):
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
    client: Client, settings: Settings, owner: str, expert: Expert, progress: Progress
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
    journal = _journal(settings, blank)
    work = TrunkPass(folder, exponents, settings.statistics.precision, settings.device)
    _compute(settings, settings.data, work, config.hidden_size, journal, progress)
    complete = journal.save()
    path = journal.path.with_name(f"{journal.path.stem}-sent.safetensors")
    manifest = complete.model_copy(update={"rare_below": settings.rare_below})
    with StatisticsFile(journal.path) as file, atomic_file(path) as out:
        write(out, manifest, _without_rare(file, settings.rare_below))
    _show(manifest, path)
    stored = client.upload(path, progress, title="uploading the trunk contribution", compress=True)
    active = [row.digest for row in client.trunk_contributions() if row.active and row.expert == expert.digest]
    supersedes = active[0] if active and active[0] != stored.sha256 else None
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
    owner: str,
    expert: Expert,
    trunk: Trunk,
    statistics: Path | None,
    progress: Progress,
) -> list[Contribution]:
    """Sends the router contribution under a trunk, and that of the tuning split if there is one.

    `statistics` is the expert's own trunk contribution, with which the trunk is compared.
    """
    folder = settings.home / "trunks" / trunk.digest
    client.download(f"/v1/trunks/{trunk.digest}/files", trunk.files, folder, progress, title="downloading the trunk")
    weights = folder / TRUNK_FILE
    stray = require_near(settings.expert, weights, settings.max_stray, statistics)
    say(f"the trunk strays from the expert by at most {stray:.3f} of a tensor's norm (limit {settings.max_stray:g})")
    work = RouterPass(settings.expert, weights, trunk.exponents, settings.statistics.precision, settings.device)
    sent = []
    for split, data in (("statistics", settings.data), ("tuning", settings.tuning_data)):
        if data is None:
            continue
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
        journal = _journal(settings, blank)
        _compute(settings, data, work, trunk.hidden_size, journal, progress)
        _show(journal.save(), journal.path)
        stored = client.upload(journal.path, progress, title="uploading the contribution", compress=True)
        signed = signature(settings.home, owner, stored.sha256)
        sent.append(client.contribute(NewContribution(sha256=stored.sha256, signature=signed, software=SOFTWARE)))
    return sent


def _journal(settings: Settings, blank: Manifest) -> Journal:
    name = digest_of(blank.model_dump(mode="json"))
    return Journal(settings.home / "contributions" / f"{name}.safetensors", blank, settings.journal_seconds)


def _compute(
    settings: Settings,
    data: str,
    work: RouterPass | TrunkPass,
    hidden_size: int,
    journal: Journal,
    progress: Progress,
) -> None:
    """Computes every planned shard that is not in the journal, each once."""
    tokenizer = AutoTokenizer.from_pretrained(settings.expert, local_files_only=True)
    key = read_key(settings.home)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, verbose=False)["input_ids"]
        return ids

    def planned() -> Iterator[Shard]:
        return plan(documents(data_files(data)), encode, settings.statistics, hidden_size, key)

    sizes = {shard.name: shard.tokens for shard in planned()}
    left = {name for name in sizes if name not in journal.shards}
    if stale := journal.shards - sizes.keys():
        raise MoergeError(
            f"the journal holds {len(stale)} shards that the data no longer gives",
            where=data,
            todo=f"restore the data, or remove {settings.home / 'contributions'} to begin anew",
        )
    kind = "trunk statistics" if isinstance(work, TrunkPass) else "statistics"
    with progress.track(f"{kind} of {settings.domain}", sum(sizes.values()), "tokens") as tracker:
        tracker.advance(sum(size for name, size in sizes.items() if name not in left))
        if not left:
            return
        with actors.cluster(settings.ray_address, settings.slots):
            shards = _each_once(planned(), left)
            for shard, sums in actors.compute(shards, settings.slots, work, settings.statistics.batch_tokens):
                journal.add(shard.name, sums)
                tracker.advance(shard.tokens)


def _each_once(shards: Iterator[Shard], wanted: set[str]) -> Iterator[Shard]:
    todo = set(wanted)
    for shard in shards:
        if shard.name in todo:
            todo.remove(shard.name)
            yield shard


def _show(manifest: Manifest, path: Path) -> None:
    say(f"leaving this machine: {summary(manifest)}, {decimal(path.stat().st_size)}; kept at {path}")
