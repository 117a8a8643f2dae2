"""`moerge inspect` tells what a contribution contains and reveals, and names what it can't read."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from moerge.errors import ContributionError
from moerge.models.bounds import attention_sizes, input_exponents
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import head_contribution
from moerge.statistics.describe import describe, median_rank, summary
from moerge.statistics.passes import BodyPass
from moerge_proto.statistics_file import BodyManifest, Privacy, StatisticsFile, StatisticsSettings
from support.models import expert
from support.passes import sums_of
from support.statistics import honest_sums, manifest_of, written


def shown(path: Path) -> str:
    console = Console(width=200, file=io.StringIO(), record=True)
    for part in describe(path):
        console.print(part)
    return console.export_text()


def test_description_shows_router_counts_tensors_and_ranks(tmp_path: Path) -> None:
    sums = honest_sums(8, 500, 1, 2, 0)
    text = shown(written(tmp_path / "file", manifest_of(sums, 1, domain="law"), sums))
    for part in (
        "router contribution of 'law'",
        "layers.1.gram",
        "[36]",
        "500 tokens, 1 documents",
        "over 1 documents: whether a known one is among them, in a trial with AUC over 0.94",
        "Send at least 1,000",
    ):
        assert part in text
    assert "fewer tokens" not in text
    ranks = [float(line.split("│")[5]) for line in text.splitlines() if "layers.0.gram" in line]
    assert 1 < ranks[0] <= 2  # two directions, however many dimensions


def test_sums_with_noise_tell_the_bound_and_what_it_does_not_cover(tmp_path: Path) -> None:
    sums, noise = honest_sums(8, 500, 1, 2, 0), StatisticsSettings().private(Privacy(epsilon=2.0))
    text = shown(written(tmp_path / "file", manifest_of(sums, 1).model_copy(update={"settings": noise}), sums))
    assert "of each document at most what epsilon 2 and delta 1e-06 allow" in text
    assert "the expert's weights have no noise" in text
    assert "AUC" not in text


def test_fewer_tokens_than_dimensions_are_warned_of(tmp_path: Path) -> None:
    sums = honest_sums(64, 20, 1, 64, 0)
    assert "fewer tokens than the 64 dimensions" in shown(written(tmp_path / "file", manifest_of(sums, 1), sums))


def test_a_body_contribution_is_refused(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    own = DenseFiles(folder)
    config, exponents = own.config, input_exponents(own)
    sums = sums_of(BodyPass(own, exponents), [[1, 2, 3, 3]] * 9)
    manifest = BodyManifest(
        owner="owner", expert="e" * 64, domain="law", settings=StatisticsSettings(), hidden_size=32, layers=3,
        attention_sizes=attention_sizes(own.family, config), vocab_size=300, exponents=exponents, tokens=36,
        documents=9, shards=["0" * 64], rare_below=10,
    )  # fmt: skip
    with pytest.raises(ContributionError, match="a body contribution, which no worker sends"):
        shown(written(tmp_path / "file", manifest, sums))


def test_a_head_contribution_tells_its_gram_and_no_counts(tmp_path: Path) -> None:
    own = DenseExpert("law", expert(tmp_path / "expert", seed=1))
    path = head_contribution(own, all_counted([[1, 2, 3, 3]] * 9), tmp_path / "file")
    text = shown(path)
    for part in ("head contribution of 'law'", "head_input", "[528]", "36 tokens, 9 documents"):
        assert part in text
    assert "counts" not in text
    with StatisticsFile(path) as file:
        assert summary(file.manifest).startswith("head contribution, gram 32 x 32, sums over 36 tokens")
        rank = median_rank(file)
        assert rank is not None
        assert 1 < rank <= 3


def test_another_file_is_refused_by_its_part(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no statistics at all")
    with pytest.raises(ContributionError) as caught:
        shown(tmp_path / "file")
    assert "header" in caught.value.where
    assert "worker" in caught.value.todo
