"""A description of a contribution and of the information that it reveals."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table

from moerge.errors import ContributionError
from moerge.statistics.integers import effective_rank, square_of
from moerge.statistics.kinds import CONTRIBUTIONS
from moerge.statistics.membership import FEW_DOCUMENTS, expected_auc
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsFile, StatisticsFileError

UNCOVERED = "the expert's weights have no noise: train them with differential privacy, too"
"""On what noise doesn't protect."""
MOST_RANKED = 8  # grams whose rank is measured


def summary(manifest: Manifest) -> str:
    what = CONTRIBUTIONS[manifest.kind].sums(manifest)
    return (
        f"{manifest.kind} contribution, {what}, sums over {manifest.tokens:,} tokens of "
        f"{manifest.documents:,} documents in {len(manifest.shards)} shards{_noise(manifest)}"
    )


def _noise(manifest: Manifest) -> str:
    privacy, masked = manifest.settings.privacy, ", masked" if manifest.is_masked else ""
    if privacy is None:
        return masked
    return f"{masked}, with noise: epsilon {privacy.epsilon:.3g}, delta {privacy.delta:g}"


def describe(path: Path) -> Iterator[RenderableType]:
    """Tables and sentences for a terminal, one tensor in memory at a time.

    Raises:
        ContributionError: the file isn't a statistics file.
    """
    with _opened(path) as file:
        yield from _describe(file)


def description(path: Path) -> dict[str, object]:
    """The same as plain data, for JSON."""
    with _opened(path) as file:
        tensors = [tensor._asdict() for tensor in _tensors(file)]
        return {"manifest": file.manifest, "tensors": tensors, "reveals": list(_reveals(file))}


@contextmanager
def _opened(path: Path) -> Iterator[StatisticsFile]:
    try:
        with StatisticsFile(path) as file:
            if file.manifest.kind not in CONTRIBUTIONS:
                what = f"a {file.manifest.kind} contribution, which no worker sends"
                raise ContributionError(what, where=str(path), todo="name a file written by a worker")
            yield file
    except StatisticsFileError as error:
        todo = "name a file written by a worker"
        raise ContributionError(error.detail, where=f"{path}: {error.field}", todo=todo) from error


class _Tensor(NamedTuple):
    name: str
    length: int
    most_rank: int | None = None
    effective_rank: float | None = None


def _tensors(file: StatisticsFile) -> Iterator[_Tensor]:
    grams = _grams(file.manifest)
    for name, length in file.manifest.layout():
        if name not in grams or file.manifest.is_masked:
            yield _Tensor(name, length)
            continue
        size, exponent = grams[name]
        rank = effective_rank(square_of(file.array(name), exponent))
        yield _Tensor(name, length, min(size, file.manifest.tokens), rank)


def _describe(file: StatisticsFile) -> Iterator[RenderableType]:
    manifest = file.manifest
    fields = Table(title=f"{manifest.kind} contribution of {manifest.domain!r}", show_header=False)
    for name, value in manifest.model_dump(exclude={"shards", "exponents", "domain", "kind"}).items():
        fields.add_row(name, str(value))
    fields.add_row("shards", f"{len(manifest.shards)} names")
    yield fields
    tensors = Table("tensor", "int64", "size", "rank at most", "effective rank", title="Sums, as integers")
    for column in tensors.columns[1:]:
        column.justify = "right"
    for name, length, most, rank in _tensors(file):
        ranks = ("", "") if most is None else (f"{most:,}", f"{rank:,.1f}")
        tensors.add_row(name, f"[{length:,}]", decimal(8 * length), *ranks)
    yield tensors
    yield "What this reveals:\n" + "\n".join(f"  - {item}" for item in _reveals(file))


def median_rank(file: StatisticsFile) -> float | None:
    """The median effective rank of at most MOST_RANKED of a contribution's grams, evenly spaced; None: masked."""
    if file.manifest.is_masked:
        return None
    grams = list(_grams(file.manifest).items())
    some = grams[:: -(-len(grams) // MOST_RANKED)]
    return median(effective_rank(square_of(file.array(name), exponent)) for name, (_, exponent) in some)


def _grams(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Name of every gram -> its size and exponent."""
    grams = zip(manifest.grams().items(), manifest.exponents, strict=True)
    return {name: (size, exponent) for (name, size), exponent in grams}


def _reveals(file: StatisticsFile) -> Iterator[str]:
    manifest, privacy = file.manifest, file.manifest.settings.privacy
    if isinstance(manifest, RouterManifest) and manifest.is_masked:
        yield f"the amount of text: {manifest.tokens:,} tokens, {manifest.documents:,} documents"
        yield f"nothing else, while one of the {len(manifest.keepers)} keepers has answered no request for its mask"
        yield (
            "afterwards, to the coordinator: the domain's mean features, and the sum of its second moments with those "
            "of the cohort's other owners; all others of the cohort together could compute its own"
        )
        yield "this can't be withdrawn from a sum that is known"
    elif privacy is not None:
        yield f"the number of documents, {manifest.documents:,}"
    if privacy is not None:
        yield (
            f"of each document at most what epsilon {privacy.epsilon:.3g} and delta {privacy.delta:g} allow "
            "(differential privacy); sums of the same document in other files add to it"
        )
        yield UNCOVERED
    if manifest.is_masked or privacy is not None:
        return
    yield f"the amount of text: {manifest.tokens:,} tokens, {manifest.documents:,} documents"
    yield "second moments of the model's inputs; the effective rank is the number of directions in them"
    if manifest.tokens < manifest.hidden_size:
        yield (
            f"with fewer tokens than the {manifest.hidden_size} dimensions: the span of the text's vectors. Anyone "
            "with the model can test whether a given text is in it. Send more text"
        )
    few = f". Send at least {FEW_DOCUMENTS:,}" if manifest.documents < FEW_DOCUMENTS else ""
    yield (
        f"over {manifest.documents:,} documents: whether a known one is among them, in a trial with "
        f"{expected_auc(manifest.documents)} (1 is certain, 0.5 chance){few}"
    )
    yield "with a second contribution over nearly the same documents: the statistics of those that differ"
    yield "not the text, its order, token ids in context, hidden states or gradients"
