"""Pretraining domains: clusters, a target's weights, and draws of mixtures."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.errors import MoergeError
from moerge.progress import NoProgress
from moerge_lab.soups.domains import (
    Clusters,
    embedded,
    k_means,
    mixture,
    pooled,
    pretraining_domains,
    sampled_weights,
)
from support.models import expert

SQUARE = torch.tensor([[0.0, 0], [0, 1], [10, 0], [10, 1], [0, 9], [1, 9]])


def test_target_weights_are_shares_of_nearest_documents() -> None:
    clusters = Clusters(torch.tensor([[0.0, 0], [4, 0], [0, 4]]))
    documents = torch.tensor([[1.0, 0], [3, 1], [5, 5.5], [0.5, 0.5]])  # to 0, 1, 2 and 0
    assert clusters.nearest(documents).tolist() == [0, 1, 2, 0]
    assert clusters.weights(documents).tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("seed", range(4))
def test_clusters_of_separate_points_are_their_means(seed: int) -> None:
    result = k_means(SQUARE, 3, seed).centroids
    assert sorted(result.tolist()) == [[0, 0.5], [0.5, 9], [10, 0.5]]
    assert torch.equal(result, k_means(SQUARE, 3, seed).centroids)


def test_equal_points_make_clusters_and_too_few_are_refused() -> None:
    assert k_means(torch.ones(4, 2), 2, 0).centroids.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(MoergeError, match="at least as many documents as clusters, 7, found 6"):
        k_means(SQUARE, 7, 0)


def test_a_cluster_without_a_row_of_text_is_dissolved() -> None:
    documents = [[1] * 4, [2] * 4, [3] * 4, [4] * 4, [5], [6]]
    made = pretraining_domains(documents, SQUARE, 3, 4, 0)
    assert len(made.clusters.centroids) == 2
    assert sorted(row for rows in made.rows for row in rows[:, 0].tolist()) == [1, 2, 3, 4]
    with pytest.raises(MoergeError, match="no cluster of documents has 40 tokens"):
        pretraining_domains(documents, SQUARE, 3, 40, 0)


def test_a_draw_of_the_meta_distribution_has_its_support() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([sampled_weights(8, 2, generator) for _ in range(300)])
    assert (drawn > 0).sum(dim=1).tolist() == [2] * 300
    torch.testing.assert_close(drawn.sum(dim=1), torch.ones(300))
    assert (drawn.mean(dim=0) - 1 / 8).abs().max() < 0.05


def test_a_mixture_has_rows_of_its_domains_by_their_weights() -> None:
    rows = [torch.full((3, 2), number) for number in range(3)]
    drawn = mixture(rows, torch.tensor([0.25, 0, 0.75]), 400, torch.Generator().manual_seed(0))[:, 0]
    assert torch.bincount(drawn, minlength=3)[1] == 0
    assert (drawn == 2).float().mean() == pytest.approx(0.75, abs=0.07)


def test_pool_has_equal_parts_per_text_and_twice_the_tokens() -> None:
    result = pooled([[[1] * 10] * 50, [[2] * 5] * 100, [[3] * 10]], 60, 0)
    assert [sum(map(len, [item for item in result if item[0] == text])) for text in (1, 2, 3)] == [40, 40, 10]


def test_document_vector_is_the_mean_of_last_hidden_states(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(expert(tmp_path, seed=1), dtype=torch.float32)
    documents = [[5, 6, 7], [8] * 12, [9, 1]]
    result = embedded(model, documents, 8, "", NoProgress())
    for vector, document in zip(result, documents, strict=True):
        with torch.no_grad():
            states = model(input_ids=torch.tensor([document[:8]]), output_hidden_states=True).hidden_states[-1]
        torch.testing.assert_close(vector, states[0].mean(dim=0))
