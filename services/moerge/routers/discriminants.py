"""Linear discriminants from a ridge solution."""

from collections.abc import Sequence

import torch
from torch import Tensor

from moerge.errors import SolveError


def discriminants(solution: Tensor, cross: Tensor, tokens: Sequence[float], names: Sequence[str] = ()) -> Tensor:
    """Fisher's linear discriminants from the ridge solution, [H, D] float64.

    With domains' means m_d and pooled covariance S, the scores are x^T S^-1 m_d - m_d^T S^-1 m_d / 2 + log p_d: log
    probabilities of the domains if features are Gaussian. S is the gram minus the means' part, so S^-1 m follows from
    the ridge solution by a D x D system (Woodbury). A stock router has no bias: the constants multiply the ridge fit to
    1, the sum of the solution's columns. Subtracting the columns' mean changes no probability and saves bits.

    Args:
        solution: (A + lambda I)^-1 b, [H, D] float64.
        cross: b, [H, D] float64, a domain's weighted sum of features per column.
        tokens: of each domain, with the weight of its features.
        names: of the columns, for errors.

    Raises:
        SolveError: the features of a domain don't vary.
    """
    counts = torch.tensor(tokens, dtype=torch.float64)
    inner = counts.diag() - cross.T @ solution  # symmetric
    rows, failed = torch.linalg.solve_ex(inner, solution.T)
    if int(failed):
        column = int(failed) - 1
        raise SolveError(
            f"the features of column {column}{f', {names[column]},' if names else ''} don't vary",
            todo="withdraw its contribution, or leave its expert out",
        )
    columns: Tensor = counts.sum() * rows.T
    constants = (counts / counts.sum()).log() - (cross / counts * columns).sum(dim=0) / 2
    columns = columns + torch.outer(solution.sum(dim=1), constants)
    return columns - columns.mean(dim=1, keepdim=True)
