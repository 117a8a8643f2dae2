"""Files of masked contributions: one of them, and the sum of a cohort, without masks (`moerge_proto.masks`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from moerge.errors import ContributionError
from moerge.files import atomic_file
from moerge_proto.digests import Digest
from moerge_proto.masks import MaskSums, mask
from moerge_proto.statistics_file import (
    DomainCounts,
    Int64,
    Manifest,
    RouterManifest,
    StatisticsFile,
    SumManifest,
    gram_length,
    write,
)


def write_masked(exact: Path, path: Path, seeds: Sequence[bytes]) -> Manifest:
    """Writes the masked contribution of exact sums, and returns its manifest. Each seed must be new and secret."""
    with StatisticsFile(exact) as file, atomic_file(path, private=True) as out:
        write(out, file.manifest, _masked(file, seeds))
        return file.manifest


def _masked(file: StatisticsFile, seeds: Sequence[bytes]) -> Iterator[Int64]:
    hidden = file.manifest.hidden_size
    length = gram_length(hidden)
    for layer in range(file.manifest.layers):
        words = np.concatenate([file.gram(layer), file.cross(layer)]).view(np.uint64)
        for seed in seeds:
            words += mask(seed, layer, length + hidden)
        yield words[:length].view(np.int64)
        yield words[length:].view(np.int64)


def write_sum(out: BinaryIO, members: Mapping[Digest, StatisticsFile], answers: Sequence[MaskSums] = ()) -> Digest:
    """Writes the sum of contributions without their masks, and returns its SHA-256. Memory: three grams.

    Args:
        members: by the SHA-256 of their files.
        answers: the sums of their masks, one answer of each keeper.

    Raises:
        ContributionError: they can't be added.
    """
    manifest = sum_manifest(members)
    return write(out, manifest, _sums(manifest, list(members.values()), answers))


def sum_manifest(members: Mapping[Digest, StatisticsFile]) -> SumManifest:
    """The manifest of the sum of contributions, by the SHA-256 of their files.

    Raises:
        ContributionError: they can't be added.
    """
    found = [members[digest].manifest for digest in sorted(members)]
    manifests = [manifest for manifest in found if isinstance(manifest, RouterManifest)]
    first = manifests[0]
    for other in manifests[1:]:
        _require_alike(first, other)
    same = first.model_dump(include={"body", "hidden_size", "layers", "exponents"})
    settings = max((manifest.settings for manifest in manifests), key=lambda settings: settings.batch)
    domains = [_counts(item for item in manifests if item.domain == domain) for domain in _domains(manifests)]
    return SumManifest(**same, settings=settings, domains=domains, contributions=sorted(members))


def _domains(manifests: Sequence[Manifest]) -> list[str]:
    return sorted({manifest.domain for manifest in manifests})


def _counts(manifests: Iterable[Manifest]) -> DomainCounts:
    """The counts of a domain's contributions together."""
    every = [item for manifest in manifests for item in manifest.by_domain()]
    totals = {field: sum(getattr(item, field) for item in every) for field in ("tokens", "documents", "shards")}
    return every[0].model_copy(update=totals)


def _sums(manifest: SumManifest, members: Sequence[StatisticsFile], answers: Sequence[MaskSums]) -> Iterator[Int64]:
    domains = [item.domain for item in manifest.domains]
    for layer in range(manifest.layers):
        yield _difference((file.gram(layer) for file in members), (item.gram(layer) for item in answers))
        crosses = []
        for domain in domains:
            files = [file for file in members if domain in file.domains]
            added, masks = ([item.cross(layer, domain) for item in items] for items in (files, answers))
            crosses.append(_difference(added, masks))
        yield np.concatenate(crosses)


def _difference(added: Iterable[Int64], subtracted: Iterable[Int64]) -> Int64:
    """Sum minus sum, mod 2^64."""
    total: Int64 = sum(added, np.zeros(1, np.int64))
    for array in subtracted:
        total -= array
    return total


def _require_alike(first: Manifest, other: Manifest) -> None:
    expected, found = first.settings.before, other.settings.before
    if expected != found:
        what = f"expected {expected} as in {first.domain}, found {found} in {other.domain}, so their sums differ"
        raise ContributionError(what, where="manifest.settings.before", todo="ask their owners for equal settings")
