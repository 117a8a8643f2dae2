"""Least squares on grams, and rows of the embedding by the owners' shares."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from moerge.bodies.pieces import Piece
from moerge.errors import SolveError
from moerge.memory.needs import EMBEDDING_ROWS
from moerge.routers.ridge import Ridge
from moerge_proto.statistics_file import StatisticsFile

SHRINKAGE_TO_AVERAGE = 0.1
"""Ridge towards the average, times dimensions per token, in units of the summed grams' mean diagonal.

Measured: much less is inaccurate with few tokens, much more costs quality with many tokens."""
_LEAST_SHRINKAGE = 1e-6
"""Above the error of float32 products in zero eigenvalues."""
EVENNESS = 0.5
"""Weight of equal shares of the embedding, added to shares by frequency. Measured: it costs no quality."""


def least_squares(piece: Piece, grams: Iterable[Tensor], tokens: int) -> Tensor:
    """[out, in]: argmin over W of sum_d E_d |W x - W_d x|^2, shrunk towards the mean.

    Args:
        grams: sums of x x^T of each domain, [in, in] float64, one in memory at a time.
        tokens: number of tokens in all grams together.
    """
    right = torch.zeros_like(piece.tensors[0], dtype=torch.float64)
    mean, columns, share = torch.zeros_like(right), right.shape[1], 1 / len(piece.tensors)
    total = torch.zeros(columns, columns, dtype=torch.float64)
    for gram, tensor in zip(grams, piece.tensors, strict=True):
        wide = tensor.double().mul_(share)
        total += gram * share
        right += wide @ gram
        mean += wide
    shrinkage = max(SHRINKAGE_TO_AVERAGE * columns / tokens, _LEAST_SHRINKAGE) * float(total.diagonal().mean())
    try:
        factor = Ridge.of(total, shrinkage).factor
    except SolveError as error:
        todo = "ask the owners for contributions of more text"
        raise SolveError(error.what, where=piece.name, todo=todo) from error
    right += mean.mul_(shrinkage)
    del wide, mean, total, gram
    return torch.cholesky_solve(right.T, factor).T.to(piece.dtype)


def _shares(piece: Piece, files: Sequence[StatisticsFile]) -> Tensor:
    """The owners' shares of each row by `row_shares`, [D, rows] float64."""
    counts = [torch.from_numpy(file.array("token_counts")).double() for file in files]
    rows = torch.stack([count[piece.start :][: len(piece.tensors[0])] for count in counts])
    return row_shares(rows, torch.tensor([file.manifest.tokens for file in files]), max(map(len, counts)))


def row_shares(counts: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """[D, rows] float64, with a sum of 1 over owners: shares of each token's frequencies, bounded.

    A frequency is count / (tokens + V), so little text has little weight. One count in text of average length is added
    to all frequencies. Then shares are shrunk towards 1 / D by `EVENNESS`: an owner has at most
    (1 + EVENNESS / D) / (1 + EVENNESS) of a row. Weighted by the others' use of the rows, it has about 1 / D at most,
    for any counts.

    `counts`: [D, rows] float64, of each owner; `tokens`: [D], each owner's number.
    """
    sizes = tokens.double() + vocabulary
    frequencies = counts / sizes[:, None] + 1 / sizes.mean()
    return (frequencies / frequencies.sum(dim=0) + EVENNESS / len(counts)) / (1 + EVENNESS)


def weighted_rows(piece: Piece, files: Sequence[StatisticsFile]) -> Tensor:
    """Rows weighted by `_shares`."""
    weights = _shares(piece, files)
    merged = torch.empty(piece.tensors[0].shape, dtype=piece.dtype)
    for start in range(0, len(merged), EMBEDDING_ROWS):
        rows = slice(start, start + EMBEDDING_ROWS)
        parts = zip(weights, piece.tensors, strict=True)
        merged[rows] = sum(share[rows, None] * tensor[rows].double() for share, tensor in parts)
    return merged
