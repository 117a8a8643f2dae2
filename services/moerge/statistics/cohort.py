"""Masked contributions: their files, and a cohort of them, whose sum alone can be read (`moerge_proto.masks`)."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from moerge.errors import ContributionError
from moerge.files import atomic_file
from moerge_proto.masks import MaskSums, mask
from moerge_proto.ranges import Source
from moerge_proto.statistics_file import (
    Int64,
    Manifest,
    StatisticsFile,
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


class Cohort:
    """Masked contributions with the sums of their masks, one answer of each keeper; read like one contribution.

    Attributes:
        members: their files.
        manifest: with the counts of all.

    Raises:
        ContributionError: their sums can't be added.
    """

    def __init__(self, members: Sequence[StatisticsFile], masks: Sequence[MaskSums] = ()) -> None:
        self.members, self._masks = members, masks
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

    @cached_property
    def domains(self) -> list[str]:
        return sorted({file.manifest.domain for file in self.members})

    def counts(self, domain: str) -> tuple[int, int]:
        """Tokens and shards of a domain."""
        some = [file.manifest for file in self.members if file.manifest.domain == domain]
        return sum(item.tokens for item in some), sum(len(item.shards) for item in some)

    @property
    def name(self) -> str:
        return f"the cohort of {', '.join(self.domains)}"

    def gram(self, layer: int) -> Int64:
        """[H(H+1)/2], the sum of all grams."""
        return _difference((file.gram(layer) for file in self.members), (item.gram(layer) for item in self._masks))

    def cross(self, layer: int, domain: str | None = None) -> Int64:
        """[H], the sum of a domain's features; None: of all."""
        if domain is None:
            return _difference((self.cross(layer, item) for item in self.domains), ())
        files = (file for file in self.members if file.manifest.domain == domain)
        return _difference((file.cross(layer) for file in files), (item.cross(layer, domain) for item in self._masks))

    def array(self, name: str) -> Int64:
        """A tensor of the sum, by its name in the members' files."""
        layer, kind = name.removeprefix("layers.").split(".")
        return self.gram(int(layer)) if kind == "gram" else self.cross(int(layer))


@dataclass(frozen=True)
class CohortFiles:
    """A cohort by the names of its contributions, and its keepers' answers."""

    members: Collection[str]
    answers: Sequence[Source]

    def opened(self, stack: ExitStack, members: Sequence[StatisticsFile]) -> Cohort:
        """The cohort of these opened contributions."""
        first, domains = members[0].manifest, [*{file.manifest.domain for file in members}]
        opened = (MaskSums(answer, first.hidden_size, first.layers, domains) for answer in self.answers)
        return Cohort(members, [stack.enter_context(sums) for sums in opened])


Summand = StatisticsFile | Cohort
"""A contribution whose sums can be read, or a cohort of masked ones."""


def members(files: Sequence[Summand]) -> list[StatisticsFile]:
    """Every contribution, of cohorts too."""
    return [item for file in files for item in (file.members if isinstance(file, Cohort) else [file])]


def _require_alike(first: Manifest, other: Manifest) -> None:
    expected, found = first.settings.before, other.settings.before
    if expected != found:
        what = f"expected {expected} as in {first.domain}, found {found} in {other.domain}, so their sums differ"
        raise ContributionError(what, where="manifest.settings.before", todo="ask their owners for equal settings")


def _difference(added: Iterable[Int64], subtracted: Iterable[Int64]) -> Int64:
    """Sum minus sum, mod 2^64."""
    total: Int64 = sum(added, np.zeros(1, np.int64))
    for array in subtracted:
        total -= array
    return total
