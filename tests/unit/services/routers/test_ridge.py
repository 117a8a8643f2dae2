"""The solve equals an independent least-squares solution, has the same bits on any number of threads, fails kindly."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from moerge.errors import SolveError
from support.statistics import ridge_router

Float64 = NDArray[np.float64]


def features(condition: float, rows: int = 200, hidden: int = 24) -> Float64:
    """Integers, so that their gram is exact in float64. Column 1 nearly repeats column 0, columns differ in size."""
    generator = np.random.default_rng(0)
    x = generator.integers(-9, 10, (rows, hidden)).astype(np.float64)
    x[:, 1] = x[:, 0] * np.sqrt(condition).round() + generator.integers(-1, 2, rows)
    return x


def least_squares(x: Float64, y: Float64, ridge_lambda: float) -> Float64:
    """The minimiser of |X W - Y|^2 + lambda |W|^2 by SVD of the augmented system, columns normalised."""
    augmented = np.vstack([x, np.sqrt(ridge_lambda) * np.eye(x.shape[1])])
    targets = np.vstack([y, np.zeros((x.shape[1], y.shape[1]))])
    solution: Float64 = np.linalg.lstsq(augmented, targets, rcond=None)[0]
    normalised: Float64 = solution / np.linalg.norm(solution, axis=0)
    return normalised


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("ridge_lambda", [0.01, 10.0])
def test_the_solve_equals_lstsq_on_the_augmented_system(condition: float, ridge_lambda: float) -> None:
    x = features(condition)
    y = np.eye(3)[np.random.default_rng(1).integers(0, 3, len(x))]
    router = ridge_router(torch.from_numpy(x.T @ x), torch.from_numpy(x.T @ y), ridge_lambda).numpy()
    expected = least_squares(x, y, ridge_lambda)
    assert np.linalg.norm(router - expected) / np.linalg.norm(expected) < 1e-8


def test_fewer_tokens_than_dimensions_still_solve() -> None:
    x = features(1.0, rows=10)
    y = np.eye(2)[np.arange(10) % 2]
    router = ridge_router(torch.from_numpy(x.T @ x), torch.from_numpy(x.T @ y), 0.01).numpy()
    np.testing.assert_allclose(router, least_squares(x, y, 0.01), atol=1e-8)


def test_columns_have_norm_one() -> None:
    x = torch.from_numpy(features(1.0))
    router = ridge_router(x.T @ x, x[:4].T * 100, 0.01)
    torch.testing.assert_close(router.norm(dim=0), torch.ones(4, dtype=torch.float64))


def test_a_matrix_that_is_no_gram_is_refused_with_what_to_do() -> None:
    with pytest.raises(SolveError, match=r"row 2.*-0.99") as caught:
        ridge_router(
            torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)), torch.ones(2, 1, dtype=torch.float64), 0.01
        )
    assert "lambda" in caught.value.todo


def test_a_domain_without_features_is_refused() -> None:
    with pytest.raises(SolveError, match="column 1"):
        ridge_router(
            torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64), 0.01
        )
