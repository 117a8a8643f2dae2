"""Masked contributions: their files, and a cohort of them, whose sum alone can be read (`moerge_proto.masks`)."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from moerge.errors import ContributionError
from moerge.files import atomic_file
from moerge.statistics.noise import Generator
from moerge.statistics.whitening import Limits, counted
from moerge_proto.masks import MaskSums, mask
from moerge_proto.ranges import Source
from moerge_proto.statistics_file import (
    Int64,
    Manifest,
    Privacy,
    StatisticsFile,
    StatisticsSettings,
    gram_length,
    write,
)


def write_masked(exact: Path, path: Path, seeds: Sequence[bytes], noise: Limits | None = None) -> Manifest:
    """Writes the masked contribution of exact sums, and returns its manifest. Each seed must be new and secret.

    Args:
        noise: adds new noise to sums on its grid, within these limits. The sum over a cohort is to be released, see
            `moerge.statistics.release`.
    """
    with StatisticsFile(exact) as file, atomic_file(path, private=True) as out:
        manifest = file.manifest if noise is None else counted(file.manifest, noise)
        write(out, manifest, _masked(file, seeds, noise))
        return manifest


def _masked(file: StatisticsFile, seeds: Sequence[bytes], noise: Limits | None) -> Iterator[Int64]:
    hidden, generator = file.manifest.hidden_size, Generator.secret()
    length = gram_length(hidden)
    for layer in range(file.manifest.layers):
        gram, cross = file.gram(layer), file.cross(layer)
        if noise is not None:
            noise.add_noise(gram, cross, generator)
        words = np.concatenate([gram, cross]).view(np.uint64)
        for seed in seeds:
            words += mask(seed, layer, length + hidden)
        yield words[:length].view(np.int64)
        yield words[length:].view(np.int64)


class Cohort:
    """Masked contributions with the sums of their masks, one answer of each keeper; read like one contribution.

    With noise, its `released` sums are read, or else those on the noise's grid.

    Attributes:
        members: their files.
        manifest: with the counts of all.

    Raises:
        ContributionError: their sums can't be added.
    """

    def __init__(
        self, members: Sequence[StatisticsFile], masks: Sequence[MaskSums] = (), released: MaskSums | None = None
    ) -> None:
        self.members, self._masks, self._released = members, masks, released
        manifests = [file.manifest for file in members]
        first = manifests[0]
        for other in manifests[1:]:
            _require_alike(first, other)
        self.manifest = first.model_copy(
            update={
                "settings": max((item.settings for item in manifests), key=lambda settings: settings.batch),
                "tokens": sum(item.tokens for item in manifests),
                "documents": sum(item.documents for item in manifests),
                "shards": [shard for item in manifests for shard in item.shards],
            }
        )
        if first.settings.privacy is not None:
            Limits.of(first.settings.privacy, first.layers).require_room(self.manifest.documents)

    @cached_property
    def domains(self) -> list[str]:
        return sorted({file.manifest.domain for file in self.members})

    @property
    def name(self) -> str:
        return f"the cohort of {', '.join(self.domains)}"

    def gram(self, layer: int) -> Int64:
        """[H(H+1)/2], the sum of all grams."""
        if self._released is not None:
            return self._released.gram(layer)
        return _difference((file.gram(layer) for file in self.members), (item.gram(layer) for item in self._masks))

    def cross(self, layer: int, domain: str | None = None) -> Int64:
        """[H], the sum of a domain's features; None: of all."""
        if domain is None:
            return _difference((self.cross(layer, item) for item in self.domains), ())
        if self._released is not None:
            return self._released.cross(layer, domain)
        files = (file for file in self.members if file.manifest.domain == domain)
        return _difference((file.cross(layer) for file in files), (item.cross(layer, domain) for item in self._masks))

    def array(self, name: str) -> Int64:
        """A tensor of the sum, by its name in the members' files."""
        layer, kind = name.removeprefix("layers.").split(".")
        return self.gram(int(layer)) if kind == "gram" else self.cross(int(layer))


@dataclass(frozen=True)
class CohortFiles:
    """A cohort by the names of its contributions; its keepers' answers; with noise, its released sums."""

    members: Collection[str]
    answers: Sequence[Source]
    released: Source | None = None

    def opened(self, stack: ExitStack, members: Sequence[StatisticsFile]) -> Cohort:
        """The cohort of these opened contributions."""
        first, domains = members[0].manifest, {file.manifest.domain for file in members}

        def sums(source: Source) -> MaskSums:
            return stack.enter_context(MaskSums(source, first.hidden_size, first.layers, [*domains]))

        released = None if self.released is None else sums(self.released)
        return Cohort(members, [sums(answer) for answer in self.answers], released)


Summand = StatisticsFile | Cohort
"""A contribution whose sums can be read, or a cohort of masked ones."""


def members(files: Sequence[Summand]) -> list[StatisticsFile]:
    """Every contribution, of cohorts too."""
    return [item for file in files for item in (file.members if isinstance(file, Cohort) else [file])]


def _require_alike(first: Manifest, other: Manifest) -> None:
    ours, theirs = (_common(manifest.settings) for manifest in (first, other))
    for name, value in ours.items():
        if theirs[name] != value:
            what = (
                f"expected {value} as in {first.domain}, found {theirs[name]} in {other.domain}, so their sums differ"
            )
            todo = "ask their owners for equal settings"
            raise ContributionError(what, where=f"manifest.settings.{name}", todo=todo)


def _common(settings: StatisticsSettings) -> dict[str, object]:
    """The settings that a cohort's contributions have in common; with noise, also those of its whitening."""
    result = dict[str, object]({"before": settings.before})
    for name in Privacy.model_fields:
        result[f"privacy.{name}"] = getattr(settings.privacy, name, None)
    if settings.privacy is not None:
        result |= {name: getattr(settings, name) for name in ("tokens_per_document", "context", "precision")}
    return result


def _difference(added: Iterable[Int64], subtracted: Iterable[Int64]) -> Int64:
    """Sum minus sum, mod 2^64."""
    total: Int64 = sum(added, np.zeros(1, np.int64))
    for array in subtracted:
        total -= array
    return total
