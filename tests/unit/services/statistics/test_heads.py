"""Head contributions are sums over a dense expert's last outputs; router contributions depend on no head."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from moerge.bodies.merge import DENSE_BODY_FILE, FolderFiles, MergedBody, seed_body
from moerge.errors import ContributionError
from moerge.models.bounds import factors, head_bounds, head_exponents
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import FINAL_NORM
from moerge.models.stored import SINGLE
from moerge.models.tokens import Tokens, all_counted
from moerge.progress import NoProgress
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import head_contribution
from moerge.statistics.integers import square_of
from moerge.statistics.passes import HeadPass, RouterPass
from moerge.statistics.validate import validate_grams
from moerge_proto.statistics_file import StatisticsFile
from support.models import DISTINCT, expert
from support.passes import sums_of

ROWS = [[(11 * row + 3 * place) % 256 for place in range(4 + 9 * row)] for row in range(6)]
PRECISIONS = ("float32", "bfloat16")


def with_head(folder: Path, into: Path, seed: int, scale: float) -> Path:
    """A copy of a model with a random last norm and head."""
    generator, own = torch.Generator().manual_seed(seed), DenseFiles(folder)
    tensors = {name: own.checkpoint.tensor(name) for name in own.checkpoint.specs}
    for name in own.family.head_names:
        tensors[name] = scale * torch.randn(tensors[name].shape, generator=generator)
    shutil.copytree(folder, into)
    save_file(tensors, into / SINGLE)
    return into


def under_its_body(folder: Path, into: Path, precision: str) -> tuple[MergedBody, ShardSums]:
    """The body of a model, and the sums of a router contribution with the same model's MLPs and head."""
    own = DenseFiles(folder)
    merged = seed_body(own, FolderFiles(into), NoProgress())
    body = DenseBody(into / DENSE_BODY_FILE, own.config)
    return merged, sums_of(RouterPass(own, body, merged.exponents, precision), ROWS, 150)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**30),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    precision=st.sampled_from(PRECISIONS),
)
def test_bodies_and_integers_of_router_contributions_are_equal_under_any_head(
    tmp_path_factory: pytest.TempPathFactory, seed: int, scale: float, precision: str
) -> None:
    """Law 2, which its own tests show for every family."""
    folder = tmp_path_factory.mktemp("heads")
    model = expert(folder / "expert", 1)
    body, expected = under_its_body(model, folder / "own", precision)
    same, sums = under_its_body(with_head(model, folder / "other", seed, scale), folder / "body", precision)
    assert (body.digest, body.exponents, body.bounds) == (same.digest, same.exponents, same.bounds)
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(sums.arrays[name], array, err_msg=name)


@pytest.fixture(scope="module", params=DISTINCT)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("model") / "expert", 1, request.param)


def test_a_head_contribution_is_the_textbook_s_gram_of_last_outputs(model: Path) -> None:
    """With the whole model in memory, a document at a time, in float64."""
    dense, own = expert_model(DenseFiles(model)), DenseFiles(model)
    rows = [Tokens(row, [place % 3 != 1 for place in range(len(row))]) for row in ROWS]
    gain, expected = factors(own, own.family.final_norm).double(), torch.zeros(32, 32, dtype=torch.float64)
    assert gain.std() > 0.05
    with torch.inference_mode():
        for row in rows:
            outputs = dense.model(torch.tensor([row.ids]), use_cache=False).last_hidden_state[0].double()
            u = (outputs / gain)[torch.tensor(row.mask)]
            expected += u.T @ u
    [exponent] = head_exponents(own)
    sums = sums_of(HeadPass(own, [exponent]), rows, 150)
    assert list(sums.arrays) == ["head_input"]
    square = square_of(sums.arrays["head_input"], exponent)
    torch.testing.assert_close(square, expected, rtol=0, atol=2e-5 * float(expected.diagonal().mean()))


def test_a_head_contribution_is_one_gram_that_passes_the_checks(model: Path, tmp_path: Path) -> None:
    own = DenseExpert("law", model)
    path = head_contribution(own, all_counted(ROWS * 9), tmp_path / "head")
    assert [item.name for item in tmp_path.iterdir()] == ["head"]
    before = path.stat().st_mtime_ns
    assert head_contribution(own, all_counted(ROWS * 9), path).stat().st_mtime_ns == before
    with StatisticsFile(path) as file:
        assert (file.manifest.kind, file.manifest.expert) == ("head", own.digest)
        assert (file.manifest.tokens, file.manifest.documents) == (9 * sum(map(len, ROWS)), 9 * len(ROWS))
        assert file.manifest.layout() == [("head_input", 32 * 33 // 2)]
        validate_grams(file, head_exponents(own), head_bounds(own))
        with pytest.raises(ContributionError, match="trace") as caught:
            validate_grams(file, head_exponents(own), [bound / 2 for bound in head_bounds(own)])
    assert caught.value.where == "head_input"


def test_zero_gains_of_the_last_norm_leave_no_trace(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1)
    tensors = load_file(folder / SINGLE)
    tensors[FINAL_NORM][7] = 0
    save_file(tensors, folder / SINGLE)
    own = DenseFiles(folder)
    assert head_bounds(own) == [31]
    sums = sums_of(HeadPass(own, head_exponents(own)), ROWS)
    square = square_of(sums.arrays["head_input"], *head_exponents(own))
    assert not square[7].any()
    assert float(square.trace()) == pytest.approx(31 * sums.tokens, rel=0.05)
