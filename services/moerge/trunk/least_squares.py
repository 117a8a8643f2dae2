"""Least squares on grams: a module's weights, the head's rows by kinds, and the owners' shares of a row."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from moerge.errors import SolveError
from moerge.models.reader import Checkpoint
from moerge.routers.ridge import Ridge
from moerge.trunk.pieces import Piece
from moerge_proto.statistics_file import StatisticsFile

_ROWS = 4096
_STEPS = 8
"""A token's shares are rounded to multiples of 1 / _STEPS of the largest, so that many rows of the head are alike.

Measured: exact shares gain 0.02 points, at nine times the cost."""
_ROUNDS = 5
"""Of Lloyd's algorithm."""
SHRINKAGE_TO_AVERAGE = 0.1
"""Ridge towards the average, times dimensions per token, in units of the summed grams' mean diagonal.

Measured: much less is inaccurate with few tokens, much more costs quality with many tokens."""
_LEAST_SHRINKAGE = 1e-6
"""Above the error of float32 products in zero eigenvalues."""
_ALIGNMENT_RIDGE = 1e-3
EVENNESS = 0.5
"""Weight of equal shares of embedding and head, added to shares by frequency. Measured: it costs no quality."""


class Grams(Protocol):
    """One owner's expert, token counts, and grams by weight of the module."""

    @property
    def expert(self) -> Checkpoint: ...
    @property
    def file(self) -> StatisticsFile: ...
    def __contains__(self, weight: str) -> bool: ...
    def gram(self, weight: str) -> Tensor:
        """[in, in] float64 of the inputs of the module with that weight, scaled to a mean diagonal of 1."""


def head_alignment(body: Tensor, own: Tensor, counts: Tensor) -> Tensor:
    """[H, H] float64: the matrix M for which body (M x) is nearest to own x.

    The distance is the logits' variance under the tokens' frequencies: the cost of small errors to a softmax.
    `body` and `own`, the expert's, are heads [V, H]; `counts`, [V] float64: each token's in the domain's text.
    """
    probabilities = (counts + 1) / (counts + 1).sum()
    hidden = body.shape[1]
    square, cross = (torch.zeros(hidden, hidden, dtype=torch.float64, device=body.device) for _ in range(2))
    for start in range(0, len(body), _ROWS):
        rows = slice(start, start + _ROWS)
        weighted = body[rows].double() * probabilities[rows, None]
        square += weighted.T @ body[rows].double()
        cross += weighted.T @ own[rows].double()
    mean, other = (probabilities @ head.double() for head in (body, own))
    square -= torch.outer(mean, mean)
    cross -= torch.outer(mean, other)
    ridge = _ALIGNMENT_RIDGE * square.diagonal().mean() * torch.eye(hidden, dtype=torch.float64, device=body.device)
    solution: Tensor = torch.linalg.solve(square + ridge, cross + ridge)
    return solution


def least_squares(
    piece: Piece,
    grams: Iterable[tuple[Tensor, Tensor]],
    tokens: int,
    shares: Sequence[float] | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """[out, in]: argmin over W of sum_d s_d E_d |W y - W_d x|^2, shrunk towards the mean by `shares` s.

    Args:
        grams: sums of x y^T and of y y^T of each domain, [in, in] float64 each, one domain's in memory at a time.
        tokens: number of tokens in all grams together.
        shares: one per expert of the piece, with a sum of 1; equal by default.
        rows: [out] bool, of the piece's rows to solve; all by default.
    """
    chosen = slice(None) if rows is None else rows
    right = torch.zeros_like(piece.tensors[0][chosen], dtype=torch.float64)
    mean, columns = torch.zeros_like(right), right.shape[1]
    count = len(piece.tensors)
    total = torch.zeros(columns, columns, dtype=torch.float64)
    for (cross, square), tensor, share in zip(grams, piece.tensors, shares or [1 / count] * count, strict=True):
        wide = tensor[chosen].double().mul_(share)
        total += square * share
        right += wide @ cross
        mean += wide
    shrinkage = max(SHRINKAGE_TO_AVERAGE * columns / tokens, _LEAST_SHRINKAGE) * float(total.diagonal().mean())
    try:
        factor = Ridge.of(total, shrinkage).factor
    except SolveError as error:
        todo = "ask the owners for body contributions of more text"
        raise SolveError(error.what, where=piece.name, todo=todo) from error
    right += mean.mul_(shrinkage)
    del wide, mean, total, square, cross
    return torch.cholesky_solve(right.T, factor).T.to(piece.dtype)


def _shares(piece: Piece, files: Sequence[StatisticsFile]) -> tuple[Tensor, Tensor]:
    """The owners' shares of each row by `row_shares`, [D, rows] float64, and its mean frequency, [rows], never 0."""
    counts = [counts_of(file) for file in files]
    rows = torch.stack([count[piece.start :][: len(piece.tensors[0])] for count in counts])
    tokens, vocabulary = torch.tensor([file.manifest.tokens for file in files]), max(map(len, counts))
    return row_shares(rows, tokens, vocabulary), ((rows + 1) / (tokens[:, None] + vocabulary)).mean(dim=0)


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


def counts_of(file: StatisticsFile) -> Tensor:
    """[V] float64: each token's count."""
    return torch.from_numpy(file.array("token_counts")).double()


def kinds_of_rows(shares: Tensor, use: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """From shares [D, rows] float64: rounded ones, [kinds, D] float64 with sums of 1, and each row's kind, [rows].

    If more than `most` differ, rows are clustered instead, and have the mean of their cluster. `use`, [rows] float64,
    is about the tokens' frequencies: weights of errors.
    """
    steps = (_STEPS * shares / shares.amax(dim=0)).round().T
    kinds, which = steps.unique(dim=0, return_inverse=True)
    kinds /= kinds.sum(dim=1, keepdim=True)
    if len(kinds) <= most:
        return kinds, which
    used = torch.zeros(len(kinds), dtype=torch.float64).index_add_(0, which, use)
    kinds, rows = kinds[used.argsort(descending=True, stable=True)[:most]], shares.T.contiguous()
    for _ in range(_ROUNDS):
        which = _nearest(rows, kinds)
        used = torch.zeros(most, dtype=torch.float64).index_add_(0, which, use)[:, None]
        sums = torch.zeros_like(kinds).index_add_(0, which, rows * use[:, None])
        kinds = torch.where(used > 0, sums / used, kinds)
    return kinds, _nearest(rows, kinds)


def _nearest(rows: Tensor, kinds: Tensor) -> Tensor:
    """[rows], the number of the nearest kind."""
    return torch.cat([torch.cdist(some, kinds).argmin(dim=1) for some in rows.split(_ROWS)])


def most_kinds(experts: int, vocabulary: int, hidden: int) -> int:
    """The number of kinds whose factorisations, H^3 / 3 each, cost as much as the products, 2 (D + 1) V H^2."""
    return max(1, 6 * (experts + 1) * vocabulary // hidden)


def solved_head(
    piece: Piece, owners: Sequence[Grams], tokens: int, alignments: Mapping[int, Tensor], threads: int
) -> Tensor:
    """Least squares row by row, domains weighted by `_shares`.

    An error of a token's logit costs about its probability. Rows of about equal shares are solved together. Each
    expert's vectors are multiplied by its alignment, if any.
    """
    rows, hidden = piece.tensors[0].shape
    shares, use = _shares(piece, [owner.file for owner in owners])
    kinds, which = kinds_of_rows(shares, use, most_kinds(len(owners), rows, hidden))
    grams = []
    for expert, gram in zip(piece.experts, (owner.gram(piece.name) for owner in owners), strict=True):
        matrix = alignments.get(expert)
        cross = gram if matrix is None else gram @ matrix.T
        grams.append((cross, cross if matrix is None else matrix @ cross))
    merged = torch.empty(piece.tensors[0].shape, dtype=piece.dtype)

    def solve(number: int) -> tuple[Tensor, Tensor]:
        chosen = which == number
        return chosen, least_squares(piece, grams, tokens, kinds[number].tolist(), chosen)

    pool = ThreadPoolExecutor(threads)
    try:
        for chosen, result in pool.map(solve, range(len(kinds))):
            merged[chosen] = result
    finally:
        pool.shutdown(cancel_futures=True)  # of an interrupted merge
    return merged


def weighted_rows(piece: Piece, files: Sequence[StatisticsFile]) -> Tensor:
    """Rows weighted by `_shares`."""
    weights, _ = _shares(piece, files)
    merged = torch.empty(piece.tensors[0].shape, dtype=piece.dtype)
    for start in range(0, len(merged), _ROWS):
        rows = slice(start, start + _ROWS)
        parts = zip(weights, piece.tensors, strict=True)
        merged[rows] = sum(share[rows, None] * tensor[rows].double() for share, tensor in parts)
    return merged
