"""Masked contributions: their files, and a cohort of them, whose sum alone can be read (`moerge_proto.masks`)."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from moerge.errors import ContributionError
from moerge.files import atomic_file
from moerge_proto.masks import MaskSums, mask
from moerge_proto.statistics_file import Int64, Manifest, StatisticsFile, gram_length, write


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
            if (other.exponents, other.settings.before) != (first.exponents, first.settings.before):
                what = f"{other.domain} has other text before its own than {first.domain}, so their sums can't be added"
                todo = "ask their owners for equal settings of `before`"
                raise ContributionError(what, where="manifest.settings.before", todo=todo)
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


Summand = StatisticsFile | Cohort
"""A contribution whose sums can be read, or a cohort of masked ones."""


def members(files: Sequence[Summand]) -> list[StatisticsFile]:
    """Every contribution, of cohorts too."""
    return [item for file in files for item in (file.members if isinstance(file, Cohort) else [file])]


def _difference(added: Iterable[Int64], subtracted: Iterable[Int64]) -> Int64:
    """Sum minus sum, mod 2^64."""
    total: Int64 = sum(added, np.zeros(1, np.int64))
    for array in subtracted:
        total -= array
    return total
