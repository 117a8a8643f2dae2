"""Contributions of one domain: sums over its documents, one statistics file per kind."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from moerge.documents.pool import Pool, require_pool
from moerge.documents.shards import Shard, plan
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.memory.machine import free_for
from moerge.memory.room import Room, Slots, room_for, room_on_device
from moerge.models.bounds import attention_sizes, head_exponents, input_exponents
from moerge.models.dense_files import Dense
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import mlp_layers
from moerge.models.tokens import Tokens
from moerge.progress import NoProgress, Progress
from moerge.statistics.finisher import PLAIN, Finisher
from moerge.statistics.journal import Journal, clear
from moerge.statistics.passes import BodyPass, HeadPass, Pass, RouterPass, need_of
from moerge.statistics.windows import Layered, WindowSize, computed, windows
from moerge_proto.statistics_file import (
    BodyManifest,
    HeadManifest,
    Int64,
    Manifest,
    RouterManifest,
    StatisticsFile,
    StatisticsFileError,
    StatisticsSettings,
    write,
)

_NO_COUNTS: Mapping[str, Any] = {"tokens": 1, "documents": 1, "shards": ["0" * 64]}
_SECONDS = 60.0  # between two savings of hidden states


class BodyFacts(Protocol):
    """Facts about the body of a router contribution."""

    @property
    def digest(self) -> str: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def exponents(self) -> Sequence[int]: ...


class Body(Dense, BodyFacts, Protocol):
    """A body on this machine, with its facts."""


@dataclass(frozen=True)
class Computing:
    """The computation of sums on this machine; only `device` can change integers.

    Attributes:
        slots: most shards at a time, one thread each; fewer if memory is short.
        host_memory: bytes of hidden states; None: half of the free memory.
        key: of shard names.
    """

    device: str = "cpu"
    slots: int = 1
    host_memory: int | None = None
    key: bytes = b""
    progress: Progress = field(default_factory=NoProgress)


def router_manifest(
    owner: str,
    expert: str,
    domain: str,
    body: BodyFacts,
    settings: StatisticsSettings,
    split: str = "statistics",
    keepers: Sequence[str] = (),
) -> RouterManifest:
    """The manifest of a router contribution under a body, without sums; `expert` is a digest."""
    require_pool(settings.before)
    return RouterManifest.model_validate(
        {
            "owner": owner,
            "expert": expert,
            "domain": domain,
            "body": body.digest,
            "split": split,
            "keepers": list(keepers),
            "settings": settings,
            "hidden_size": body.hidden_size,
            "layers": body.layers,
            "exponents": list(body.exponents),
            **_NO_COUNTS,
        }
    )


def body_manifest(owner: str, expert: DenseExpert, digest: str, settings: StatisticsSettings) -> BodyManifest:
    """The manifest of an expert's body contribution, without sums; no count is withheld yet."""
    return BodyManifest(
        **_expert_facts(owner, expert, digest, settings, expert.domain),
        attention_sizes=attention_sizes(expert.family, expert.config),
        vocab_size=expert.config.vocab_size,
        exponents=input_exponents(expert),
        rare_below=0,
    )


def head_manifest(owner: str, expert: Dense, digest: str, settings: StatisticsSettings, domain: str) -> HeadManifest:
    """The manifest of an expert's head contribution, without sums."""
    return HeadManifest(**_expert_facts(owner, expert, digest, settings, domain), exponents=head_exponents(expert))


def _expert_facts(owner: str, expert: Dense, digest: str, settings: StatisticsSettings, domain: str) -> dict[str, Any]:
    return {
        "owner": owner,
        "expert": digest,
        "domain": domain,
        "settings": settings.model_copy(update={"before": None, "privacy": None}),
        "hidden_size": expert.config.hidden_size,
        "layers": len(mlp_layers(expert.config)),
        **_NO_COUNTS,
    }


def router_contribution(
    expert: DenseExpert,
    body: Body,
    documents: Iterable[Tokens],
    path: Path,
    settings: StatisticsSettings | None = None,
    computing: Computing | None = None,
    finisher: Finisher = PLAIN,
) -> Path:
    """Writes gram and cross of every layer's features (DUME eq. 5), from a body with the expert's MLPs.

    With `settings.before` documents stand behind texts of the pool, for the expert's tokenizer. `finisher`: makes the
    file of exact sums, once: a file at `path` stays. An interrupted run continues from its journal beside `path`.
    `documents` are read several times.

    Raises:
        MoergeError: no document has a token, a later reading gives other documents, or a finisher comes without a key.
        ContributionError: a sum is not finite.
    """
    settings, computing = finisher.settings(settings or StatisticsSettings()), computing or Computing()
    if settings.privacy is not None and finisher.is_plain:
        raise ValueError("settings.privacy: expected a finisher that adds noise")
    blank = router_manifest(expert.owner, expert.digest, expert.domain, body, settings)
    if not computing.key and not finisher.is_plain:
        raise MoergeError("names of shards without a key tell their text", where=blank.domain, todo="give a key")
    work = RouterPass(expert, body, blank.exponents, settings.precision, computing.device, settings.before)
    work = finisher.passing(work, path, blank)
    finisher.prepare(work, settings)
    if (journal := _summed(blank, work, documents, path, computing)) is not None:
        finisher.write(journal, path, work)
    finisher.clear(work)
    return path


def body_contribution(
    expert: DenseExpert,
    documents: Iterable[Tokens],
    path: Path,
    settings: StatisticsSettings | None = None,
    computing: Computing | None = None,
    rare_below: int = 0,
) -> Path:
    """Writes grams of the inputs of the expert's attention, and counts of tokens (Jin et al., 2023).

    Arguments and errors are those of `router_contribution`; counts below `rare_below` are withheld.
    """
    settings, computing = settings or StatisticsSettings(), computing or Computing()
    blank = body_manifest(expert.owner, expert, expert.digest, settings)
    work = BodyPass(expert, blank.exponents, settings.precision, computing.device)
    journal = _summed(blank, work, documents, path, computing, rare_below=rare_below)
    if journal is not None:
        withhold_rare(journal, path, rare_below)
        journal.unlink()
    return path


def head_contribution(
    expert: DenseExpert,
    documents: Iterable[Tokens],
    path: Path,
    settings: StatisticsSettings | None = None,
    computing: Computing | None = None,
    digest: str | None = None,
) -> Path:
    """Writes the gram of the inputs of the expert's head.

    Arguments and errors are those of `router_contribution`; `digest`: that of the expert's parts, if they are named.
    """
    settings, computing = settings or StatisticsSettings(), computing or Computing()
    blank = head_manifest(expert.owner, expert, digest or expert.digest, settings, expert.domain)
    work = HeadPass(expert, blank.exponents, settings.precision, computing.device)
    return summed(blank, work, documents, path, computing)


def withhold_rare(whole: Path, path: Path, rare_below: int) -> None:
    """Writes a body contribution without the counts below `rare_below`, from one with all counts."""

    def arrays(file: StatisticsFile) -> Iterator[Int64]:
        for name, _ in file.manifest.layout():
            array = file.array(name)
            yield np.where(array < rare_below, 0, array) if name == "token_counts" else array

    with StatisticsFile(whole) as file, atomic_file(path, private=True) as out:
        write(out, file.manifest.model_copy(update={"rare_below": rare_below}), arrays(file))


def summed(blank: Manifest, work: Pass, documents: Iterable[Tokens], path: Path, computing: Computing) -> Path:
    """The file at `path`, with the sums of a pass over all documents; errors are those of `router_contribution`."""
    journal = _summed(blank, work, documents, path, computing)
    if journal is not None:
        os.replace(journal, path)
    return path


def _summed(
    blank: Manifest,
    work: Pass,
    documents: Iterable[Tokens],
    path: Path,
    computing: Computing,
    **facts: object,
) -> Path | None:
    """The journal with the sums over all documents; None if `path` has them, with `facts` in its manifest."""

    settings, hidden, key = blank.settings, blank.hidden_size, computing.key
    pool = None if work.before is None else Pool.of(work.before, work.expert.tokenizer, key)

    def shards() -> Iterator[Shard]:
        return plan(iter(documents), lambda tokens: tokens, settings, hidden, key, pool)

    sizes = {shard.name: shard.tokens for shard in shards()}
    if not sizes:
        raise MoergeError("no document has a token that counts", where=blank.domain, todo="give more text")
    if holds(path, blank.model_copy(update=facts), sizes):
        return None
    whole = path.with_name(f"{path.stem}.journal")
    if holds(whole, blank, sizes):
        clear(whole)  # of a run that was killed when it had joined its journal
    else:
        _fill(whole, blank, work, shards, sizes, computing)
    return whole


def holds(path: Path, expected: Manifest, sizes: Collection[str]) -> bool:
    """Tell whether a file has the sums of these shards, of the expected manifest but for its counts."""
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
    work: Pass,
    shards: Callable[[], Iterator[Shard]],
    sizes: Mapping[str, int],
    computing: Computing,
) -> None:
    settings, journal = blank.settings, _journal(path, blank, sizes)
    missing, every = sizes.keys() - journal.complete, sum(sizes.values())
    threads, room = room_of(work, settings, computing, every)
    size = WindowSize(room.states, room.need.token // room.need.positions, every)

    def left() -> Iterator[Shard]:
        for shard in shards():
            if shard.name in missing:
                missing.remove(shard.name)
                yield shard

    with computing.progress.track(f"{blank.kind} statistics of {blank.domain}", every, "tokens") as tracker:
        done = Layered(tracker, blank.layers)
        done.advance(sum(sizes[name] for names in journal.shards for name in names))
        given = windows(left(), journal, size, settings.batch_tokens, _SECONDS)
        device_room = room_on_device(room.need)
        for layer in computed(work, given, settings.batch_tokens, threads, device_room) if missing else ():
            layer.keep(journal)
            done.advance(layer.tokens)
    if missing:
        todo = "give a list or another object that can be read several times, of texts that stay as they are"
        raise MoergeError("the documents were not the same when they were read again", where=blank.domain, todo=todo)
    journal.join()


def _journal(path: Path, blank: Manifest, sizes: Mapping[str, int]) -> Journal:
    """The journal of this work and these shards; another one is removed."""
    with suppress(MoergeError):
        journal = Journal(path, blank)
        if journal.begun <= sizes.keys():
            return journal
    path.unlink(missing_ok=True)
    clear(path)
    return Journal(path, blank)


def room_of(work: Pass, settings: StatisticsSettings, computing: Computing, tokens: int) -> tuple[int, Room]:
    """The number of threads that fit into memory, and the room for hidden states of `tokens`.

    Raises:
        MoergeError: not even one fits.
    """
    free = free_for(computing.device)
    most = computing.slots if computing.device == "cpu" else 1
    for threads in range(most, 0, -1):
        try:
            need = need_of(work, settings, threads)
            return threads, room_for(need, settings, free, Slots(), computing.host_memory, tokens)
        except MoergeError:
            if threads == 1:
                raise
    raise ValueError("computing.slots must be at least 1")
