"""A coordinator that follows the protocol solves linear equations for the counts of rare tokens that are withheld."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import body_contribution
from moerge.statistics.integers import square_of
from moerge_proto.statistics_file import StatisticsFile
from support.models import expert

RARE = 10
VOCABULARY = 300


def zipf(tokens: int) -> list[list[int]]:
    """Rows of tokens of which most are rare."""
    shares = 1 / torch.arange(1, VOCABULARY + 1).double()
    drawn = shares.multinomial(tokens, replacement=True, generator=torch.Generator().manual_seed(1))
    return [list(map(int, row)) for row in drawn.split(40)]


def solved(gram: Tensor, known: Tensor, shown: Tensor) -> Tensor:
    """[V] the counts that fit a gram [H, H] best, if each token's vector is the known one [V, H]."""
    upper = torch.triu_indices(len(gram), len(gram))
    products = known[:, upper[0]] * known[:, upper[1]]
    rest = gram[upper[0], upper[1]] - shown @ products
    result: Tensor = torch.linalg.lstsq(products.T, rest[:, None], driver="gelsd").solution[:, 0]
    return result.round()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    return DenseExpert("law", expert(tmp_path_factory.mktemp("owner") / "expert", 1))


def test_withheld_counts_don_t_follow_from_the_grams(own: DenseExpert, tmp_path: Path) -> None:
    rows = zipf(4000)
    embedding = own.checkpoint.tensor(EMBEDDING).double()
    known = embedding * torch.rsqrt(embedding.square().mean(dim=1, keepdim=True) + own.config.rms_norm_eps)
    counts = torch.bincount(torch.tensor([token for row in rows for token in row]), minlength=VOCABULARY)
    withheld = (counts > 0) & (counts < RARE)
    first = (known * counts[:, None]).T @ known  # of the first layer's inputs: it would show all
    assert torch.equal(solved(first, known, torch.zeros(VOCABULARY).double()), counts.double())
    with StatisticsFile(body_contribution(own, all_counted(rows), tmp_path / "file", rare_below=RARE)) as file:
        shown = torch.from_numpy(file.array("token_counts")).double()
        assert torch.equal(shown, torch.where(withheld, 0, counts).double())
        grams = file.manifest.grams()
        sized = [(place, name) for place, (name, size) in enumerate(grams.items()) if size == known.shape[1]]
        assert sized
        for place, name in sized:
            guessed = solved(square_of(file.array(name), file.manifest.exponents[place]), known, shown)
            assert (guessed == counts)[withheld].double().mean() < 0.5, name
