"""The memory of a fit, and the tokens that it has room for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.filesize import decimal

from moerge.documents.fitting_sample import fitting_tokens
from moerge.errors import MoergeError
from moerge.models.batches import Batch, batches
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.statistics.memory import Free, layer_bytes
from moerge_proto.statistics_file import StatisticsSettings

_LEAST_SHARE = 4
_TODO = "use a larger machine or another --device, or run without --fit"


@dataclass(frozen=True)
class FittingNeed:
    """The memory of a fit in bytes, whatever the number of layers.

    Attributes:
        weights: two layers of the expert and two of the trunk with its MLPs, float32; the second is read ahead.
        solve: of the last matrix, with I inputs: gram and factor, 16 I^2, and four times its cross product, 32 I H. Or,
            if that is more, both heads and their alignment: 16 V H + 48 H^2.
        batch: activations of one micro-batch.
        token: two residuals of one token, 8 H, in host memory.
    """

    weights: int
    solve: int
    batch: int
    token: int

    @property
    def device(self) -> int:
        """Where the models are."""
        return self.weights + self.solve + self.batch

    def host(self, tokens: int, *, on_gpu: bool = False) -> int:
        """In host memory, with the residuals of all tokens, those that don't count and padding included."""
        return tokens * self.token + (0 if on_gpu else self.device)

    def told(self, tokens: int, *, on_gpu: bool = False) -> str:
        """The need of a fit to a number of tokens, for a message."""
        there = f"{decimal(self.device)} of GPU memory and " if on_gpu else ""
        parts = f"two layers of both models {decimal(self.weights)}, a solve {decimal(self.solve)}"
        parts += f", residuals of {tokens:,} tokens {decimal(tokens * self.token)}"
        return f"fitting needs {there}{decimal(self.host(tokens, on_gpu=on_gpu))} of host memory ({parts})"


def fitting_need(expert: DenseExpert, settings: StatisticsSettings) -> FittingNeed:
    """The memory of a fit, by the expert's config."""
    config, single = expert.config, torch.float32
    hidden, inner = int(config.hidden_size), int(config.intermediate_size)
    heads = 16 * int(config.vocab_size) * hidden + 48 * hidden**2
    return FittingNeed(
        weights=2 * 2 * layer_bytes(config, single),
        solve=max(16 * inner**2 + 32 * inner * hidden, heads),
        batch=4 * max(settings.batch_tokens, settings.context) * (8 * hidden + 4 * inner),
        token=2 * single.itemsize * hidden,
    )


def fitting_disk(expert: DenseExpert) -> int:
    """The bytes that a fit writes: the fitted expert, and until it is whole its MLPs in float32."""
    specs = expert.checkpoint.specs
    mlps = expert.family.dense_mlp_names(int(expert.config.num_hidden_layers))
    fitted = sum(torch.Size(specs[name].shape).numel() for name in mlps)
    return sum(spec.bytes for spec in specs.values()) + torch.float32.itemsize * fitted


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
    free: Free,
    say: Callable[[str], None],
    least: int = 0,
) -> tuple[list[list[Tokens]], list[Batch]]:
    """The documents' rows to fit to, and their micro-batches: `fitting_tokens`, or fewer if memory is short.

    Args:
        sample: the rows of each document of a sample with a number of tokens.
        free: memory; by it the number is chosen, so on a smaller machine other MLPs may be fitted.
        say: gets a message if they are fewer.
        least: of tokens, if that is more than `least_fitting_tokens`.

    Raises:
        MoergeError: not even the least fit.
    """
    asked = tokens_that_fit(expert, settings, free, least)
    need, most = fitting_need(expert, settings), fitting_tokens(int(expert.config.hidden_size))
    left = _tokens_left(need, free)
    while True:
        documents = sample(asked)
        rows = [row for document in documents for row in document]
        cut = list(batches(rows, settings.batch_tokens))
        read, tokens = _positions(cut), sum(row.count for row in rows)
        if left is None or read <= left:
            break
        asked = min(tokens, asked) * left // read
        _require(asked, expert, need, free, least)
    if asked < most and tokens >= asked:
        say(f"fitting to {tokens:,} tokens instead of {most:,}, because memory is short")
    return documents, cut


def tokens_that_fit(expert: DenseExpert, settings: StatisticsSettings, free: Free, least: int = 0) -> int:
    """`fitting_tokens`, or fewer if memory is short; all count.

    Raises:
        MoergeError: not even the least fit.
    """
    need, most = fitting_need(expert, settings), fitting_tokens(int(expert.config.hidden_size))
    left = _tokens_left(need, free)
    asked = most if left is None else min(most, left)
    _require(asked, expert, need, free, least)
    return asked


def _tokens_left(need: FittingNeed, free: Free) -> int | None:
    """The tokens whose residuals fit."""
    return None if free.host is None else (free.host - need.host(0, on_gpu=free.device is not None)) // need.token


def _require(asked: int, expert: DenseExpert, need: FittingNeed, free: Free, least: int) -> None:
    hidden, on_gpu = int(expert.config.hidden_size), free.device is not None
    least = min(fitting_tokens(hidden), max(least, least_fitting_tokens(hidden)))
    if asked < least or (free.device is not None and need.device > free.device):
        there = f"; the GPU has {decimal(free.device)}" if free.device is not None else ""
        found = f"{need.told(least, on_gpu=on_gpu)}; {decimal(free.host or 0)} are free{there}"
        raise MoergeError(found, where="--fit", todo=_TODO)


def _positions(cut: Sequence[Batch]) -> int:
    """The tokens that the models read, and padding."""
    return sum(batch.input_ids.numel() for batch in cut)
