"""Contributions of one domain: sums over its documents, one statistics file per kind."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from moerge.documents.shards import Shard, plan
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.models.batches import batches
from moerge.models.bounds import attention_size, input_exponents
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.progress import NoProgress, Progress
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.journal import Journal, join
from moerge.statistics.memory import Free, free_bytes, layer_groups, need
from moerge.statistics.passes import Compute, RouterPass, TrunkPass, named
from moerge.threads import one_thread
from moerge_proto.statistics_file import (
    Int64,
    Manifest,
    RouterManifest,
    StatisticsFile,
    StatisticsFileError,
    StatisticsSettings,
    TrunkManifest,
    write,
)

_NO_COUNTS: Mapping[str, Any] = {"tokens": 1, "documents": 1, "shards": ["0" * 64]}
_JOURNAL_SECONDS = 5.0


class TrunkFacts(Protocol):
    """A router contribution's facts about its trunk."""

    @property
    def digest(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def exponents(self) -> Sequence[int]: ...


class TrunkFile(TrunkFacts, Protocol):
    """A trunk as a local safetensors file."""

    @property
    def path(self) -> Path: ...


@dataclass(frozen=True)
class Computing:
    """The computation of sums on this machine; only `device` can change integers.

    Attributes:
        device: torch device of the model.
        slots: most shards at a time, one thread each; fewer if memory is short.
        key: of shard names.
        progress: gets the number of tokens.
    """

    device: str = "cpu"
    slots: int = 1
    key: bytes = b""
    progress: Progress = field(default_factory=NoProgress)


def router_manifest(
    owner: str, expert: str, domain: str, trunk: TrunkFacts, settings: StatisticsSettings, split: str = "statistics"
) -> RouterManifest:
    """The manifest of a router contribution under a trunk, without sums; `expert` is a digest."""
    return RouterManifest.model_validate(
        {
            "owner": owner,
            "expert": expert,
            "domain": domain,
            "trunk": trunk.digest,
            "split": split,
            "settings": settings,
            "hidden_size": trunk.hidden_size,
            "layers": trunk.layers,
            "exponents": list(trunk.exponents),
            **_NO_COUNTS,
        }
    )


def trunk_manifest(owner: str, expert: DenseExpert, digest: str, settings: StatisticsSettings) -> TrunkManifest:
    """The manifest of an expert's trunk contribution, without sums; no count is withheld yet."""
    config = expert.config
    return TrunkManifest(
        owner=owner,
        expert=digest,
        domain=expert.domain,
        settings=settings,
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        attention_size=attention_size(config),
        vocab_size=config.vocab_size,
        exponents=input_exponents(expert.checkpoint, expert.family, config),
        rare_below=0,
        **_NO_COUNTS,
    )


def router_contribution(
    expert: DenseExpert,
    trunk: TrunkFile,
    documents: Iterable[Tokens],
    path: Path,
    settings: StatisticsSettings | None = None,
    computing: Computing | None = None,
) -> Path:
    """Writes gram and cross of every layer's features (DUME eq. 5), from a trunk with the expert's MLPs.

    An interrupted run continues from its journal beside `path`.

    Args:
        expert: the expert of the MLPs.
        trunk: in the dense family's tensor names.
        documents: read several times, in the same order.
        path: of the statistics file, which appears whole.

    Raises:
        MoergeError: no document has a token, or a journal belongs to other work.
        ContributionError: a sum is not finite.
    """
    settings, computing = settings or StatisticsSettings(), computing or Computing()
    blank = router_manifest(expert.owner, expert.digest, expert.domain, trunk, settings)
    work = RouterPass(expert.folder, trunk.path, trunk.exponents, settings.precision, computing.device)
    journal = _summed(blank, work, documents, path, computing)
    if journal is not None:
        os.replace(journal, path)
    return path


def trunk_contribution(
    expert: DenseExpert,
    documents: Iterable[Tokens],
    path: Path,
    settings: StatisticsSettings | None = None,
    computing: Computing | None = None,
    rare_below: int = 0,
) -> Path:
    """Writes grams of the inputs of the expert's attention and head, and counts of tokens (Jin et al., 2023).

    Arguments and errors are those of `router_contribution`; counts below `rare_below` are withheld.
    """
    settings, computing = settings or StatisticsSettings(), computing or Computing()
    blank = trunk_manifest(expert.owner, expert, expert.digest, settings)
    work = TrunkPass(expert.folder, blank.exponents, settings.precision, computing.device)
    journal = _summed(blank, work, documents, path, computing, rare_below=rare_below)
    if journal is not None:
        withhold_rare(journal, path, rare_below)
        journal.unlink()
    return path


def withhold_rare(whole: Path, path: Path, rare_below: int) -> None:
    """Writes a trunk contribution from sums with all counts."""

    def arrays(file: StatisticsFile) -> Iterator[Int64]:
        for name, _ in file.manifest.layout():
            array = file.array(name)
            yield np.where(array < rare_below, 0, array) if name == "token_counts" else array

    with StatisticsFile(whole) as file, atomic_file(path) as out:
        write(out, file.manifest.model_copy(update={"rare_below": rare_below}), arrays(file))


def _summed(
    blank: Manifest,
    work: RouterPass | TrunkPass,
    documents: Iterable[Tokens],
    path: Path,
    computing: Computing,
    **told: object,
) -> Path | None:
    """The journal with the sums over all documents; None if `path` has them already.

    `told`: further fields of the manifest at `path`.
    """

    def shards() -> Iterator[Shard]:
        return plan(iter(documents), lambda tokens: tokens, blank.settings, blank.hidden_size, computing.key)

    sizes = {shard.name: shard.tokens for shard in shards()}
    if not sizes:
        raise MoergeError("no document has a token that counts", where=blank.domain, todo="give more text")
    if _holds(path, blank.model_copy(update=told), sizes):
        return None
    journal = path.with_name(f"{path.stem}.journal")
    if not _holds(journal, blank, sizes):
        begun = max((int(part.stem.rpartition("-")[2]) for part in _parts(journal)), default=1)
        free, shared = _free(computing.device), computing.device == "cpu"
        passes = layer_groups(work, blank.settings, free, 1, shared=shared, begun=begun)
        parts = [journal]
        if len(passes) > 1:
            parts = [path.with_name(f"{path.stem}.{number}-of-{len(passes)}.journal") for number in range(len(passes))]
        for each, part in zip(passes, parts, strict=True):
            _fill(part, blank, each, shards, sizes, computing)
        if len(passes) > 1:
            join(journal, [(part, each.layers) for part, each in zip(parts, passes, strict=True)])
    for part in _parts(journal):
        part.unlink()
    return journal


def _parts(journal: Path) -> list[Path]:
    """The journals of layer groups of a contribution."""
    return list(journal.parent.glob(f"{journal.stem}.*-of-*.journal"))


def _free(device: str) -> Free:
    host = free_bytes("cpu")
    return Free(host, host if device == "cpu" else free_bytes(device))


def _slots(work: RouterPass | TrunkPass, settings: StatisticsSettings, most: int) -> int:
    """The number of shards at a time that fit into memory; they share the model's weights."""
    own, free = need(work, settings), free_bytes("cpu")
    if work.device != "cpu" or free is None:
        return 1 if work.device != "cpu" else most
    return max(1, min(most, (free - own.weights - own.journal) // (own.sums + own.batch)))


def _holds(path: Path, expected: Manifest, sizes: Mapping[str, int]) -> bool:
    if not path.is_file():
        return False
    try:
        with StatisticsFile(path) as file:
            return file.manifest.shards == sorted(sizes) and file.manifest.model_copy(update=_NO_COUNTS) == expected
    except StatisticsFileError:
        return False


def _fill(
    path: Path,
    blank: Manifest,
    work: RouterPass | TrunkPass,
    shards: Callable[[], Iterator[Shard]],
    sizes: Mapping[str, int],
    computing: Computing,
) -> None:
    """Sums every shard that the journal at `path` lacks."""
    title = f"{blank.kind} statistics of {blank.domain}"
    title += f", layers {named(work.layers)}" if work.layers is not None else ""
    slots = _slots(work, blank.settings, computing.slots)
    if path.is_file() and not _begins(path, blank, work.layers, sizes):
        path.unlink()
    journal = Journal(path, blank, _JOURNAL_SECONDS, layers=work.layers)
    left = (shard for shard in shards() if shard.name not in journal.shards)
    with computing.progress.track(title, sum(sizes.values()), "tokens") as tracker:
        tracker.advance(sum(sizes[name] for name in journal.shards))
        if len(journal.shards) < len(sizes):
            for shard, sums in _computed(work, left, blank.settings, slots):
                if shard.name not in journal.shards:
                    journal.add(shard.name, sums)
                    tracker.advance(shard.tokens)
        journal.save()


def _begins(path: Path, blank: Manifest, layers: range | None, sizes: Mapping[str, int]) -> bool:
    """Tell whether a journal belongs to this work and these shards."""
    try:
        with StatisticsFile(path, layers) as file:
            made = file.manifest
    except StatisticsFileError:
        return False
    return made.model_copy(update=_NO_COUNTS) == blank and set(made.shards) <= sizes.keys()


def _computed(
    work: RouterPass | TrunkPass, shards: Iterator[Shard], settings: StatisticsSettings, slots: int
) -> Iterator[tuple[Shard, ShardSums]]:
    """(shard, its sums), from threads that share one model's weights; one thread per shard, for equal integers."""
    with one_thread(), ThreadPoolExecutor(slots) as threads:
        free = deque(work.loaded(slots))
        running: deque[tuple[Shard, Compute, Future[ShardSums]]] = deque()

        def ended() -> tuple[Shard, ShardSums]:
            shard, compute, future = running.popleft()
            sums = future.result()
            free.append(compute)
            return shard, sums

        for shard in shards:
            if not free:
                yield ended()
            compute = free.popleft()
            cut = batches(shard.rows, settings.batch_tokens)
            running.append((shard, compute, threads.submit(compute, cut, shard.documents)))
        while running:
            yield ended()
