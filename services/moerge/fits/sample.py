"""The documents to fit an expert's MLPs to, as many as memory has room for."""

from collections.abc import Callable, Sequence

import torch

from moerge.documents.fitting_sample import fitting_tokens
from moerge.memory.machine import Free
from moerge.memory.messages import too_large
from moerge.memory.needs import Need, fitting
from moerge.memory.room import tokens_for
from moerge.memory.shapes import Shape
from moerge.models.batches import Batch, batches
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings

WAYS = ("a larger machine", "another device", "no fit")
_LEAST_SHARE = 4


def need_of(expert: DenseExpert, settings: StatisticsSettings, device: str, threads: int = 1) -> Need:
    tokens = max(settings.batch_tokens, settings.context)
    return fitting(Shape.of(expert.config, torch.float32), tokens, device, threads)


def least_fitting_tokens(hidden_size: int) -> int:
    """The least tokens of a fit for which memory is short: a quarter of `fitting_tokens`, so at least 16 H.

    With I = 3.5 H inputs, a last matrix then has 4.5 tokens per unknown of a row, and its ridge towards the expert's is
    5 % of the mean diagonal.
    """
    return fitting_tokens(hidden_size) // _LEAST_SHARE


def fitting_sample_that_fits(
    expert: DenseExpert,
    settings: StatisticsSettings,
    sample: Callable[[int], list[list[Tokens]]],
    device: str,
    free: Free,
    say: Callable[[str], None],
    least: int = 0,
) -> tuple[list[list[Tokens]], list[Batch]]:
    """The documents' rows to fit to, and their micro-batches: `fitting_tokens`, or fewer if memory is short.

    So on a smaller machine other MLPs may be fitted. `sample` gives the rows of each document of a sample with a number
    of tokens, `least` is a higher bound than `least_fitting_tokens`.
    """
    chunk = expert.family.chunk(expert.config)
    hidden, need = int(expert.config.hidden_size), need_of(expert, settings, device)
    wanted, most, left = tokens_that_fit(need, hidden, free, least), fitting_tokens(hidden), tokens_for(need, free)
    while True:
        documents = sample(wanted)
        rows = [row for document in documents for row in document]
        cut = list(batches(rows, settings.batch_tokens, chunk=chunk))
        read, tokens = _positions(cut), sum(row.count for row in rows)
        if left is None or read <= left:
            break
        wanted = min(tokens, wanted) * left // read
        _require(need, hidden, wanted, free, least)
    if wanted < most and tokens >= wanted:
        say(f"fitting to {tokens:,} tokens instead of {most:,}, because memory is short")
    return documents, cut


def tokens_that_fit(need: Need, hidden_size: int, free: Free, least: int = 0) -> int:
    """`fitting_tokens`, or fewer if memory is short."""
    most, left = fitting_tokens(hidden_size), tokens_for(need, free)
    wanted = most if left is None else min(most, left)
    _require(need, hidden_size, wanted, free, least)
    return wanted


def threads_that_fit(
    expert: DenseExpert, settings: StatisticsSettings, cut: Sequence[Batch], device: str, free: Free, most: int
) -> int:
    """The number of threads that fit beside the residuals, at most one per micro-batch; one on a GPU."""
    for threads in range(min(most, len(cut)) if device == "cpu" else 1, 1, -1):
        left = tokens_for(need_of(expert, settings, device, threads), free)
        if left is None or _positions(cut) <= left:
            return threads
    return 1


def _require(need: Need, hidden_size: int, wanted: int, free: Free, least: int) -> None:
    least = min(fitting_tokens(hidden_size), max(least, least_fitting_tokens(hidden_size)))
    if wanted < least:
        raise too_large(need, free, WAYS, tokens=least)


def _positions(cut: Sequence[Batch]) -> int:
    return sum(batch.input_ids.numel() for batch in cut)
