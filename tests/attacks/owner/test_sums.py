"""An owner whose sums are not those of any text."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from moerge.documents.shards import enough
from moerge.errors import CoordinatorError
from moerge.statistics.accumulate import ShardSums
from moerge_proto.statistics_file import MAX_SHARDS, MAX_TOKENS, RouterManifest
from support.federation import Federation, Member, federation_of, honest, honest_head, send
from support.statistics import written


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("owner"), "law", "art") as made:
        made.contribute(made.body(), "art")
        yield made


def refused(member: Member, path: Path) -> str:
    """The field."""
    with pytest.raises(CoordinatorError) as caught:
        send(member, path)
    assert caught.value.problem().detail
    return caught.value.where


def test_a_head_contribution_of_too_little_text_is_refused(federation: Federation, tmp_path: Path) -> None:
    manifest, sums = honest_head(federation.members["law"])
    few = manifest.model_copy(update={"tokens": enough(manifest.hidden_size) - 1})
    assert refused(federation.members["law"], written(tmp_path / "file", few, sums)) == "manifest.tokens"


@pytest.fixture(scope="module")
def laws(federation: Federation) -> tuple[RouterManifest, ShardSums]:
    """A contribution as law's worker would send it."""
    return honest(federation.server, federation.members["law"], federation.body(), first=1000)


def test_more_tokens_than_its_documents_can_have_are_refused(
    federation: Federation, laws: tuple[RouterManifest, ShardSums], tmp_path: Path
) -> None:
    manifest, sums = laws
    most = manifest.settings.model_copy(update={"tokens_per_document": manifest.tokens // manifest.documents - 1})
    path = written(tmp_path / "file", manifest.model_copy(update={"settings": most}), sums)
    assert refused(federation.members["law"], path) == "manifest.tokens"


def names(count: int) -> list[str]:
    return [f"{number:064x}" for number in range(count)]


@pytest.mark.parametrize("count", [2, MAX_SHARDS + 1])
def test_more_shards_than_text_gives_are_refused(
    federation: Federation, laws: tuple[RouterManifest, ShardSums], tmp_path: Path, count: int
) -> None:
    manifest, sums = laws
    more = {"shards": names(count), "documents": manifest.documents + count, "tokens": manifest.tokens + count}
    path = written(tmp_path / "file", manifest.model_copy(update=more), sums)
    assert refused(federation.members["law"], path) == "manifest.shards"


def test_a_header_of_a_million_names_is_refused_unread(
    federation: Federation, laws: tuple[RouterManifest, ShardSums], tmp_path: Path
) -> None:
    manifest, sums = laws
    more = {"shards": names(200_000), "documents": 200_000, "tokens": 200_000}
    path = written(tmp_path / "file", manifest.model_copy(update=more), sums)
    assert refused(federation.members["law"], path) == "header"


@pytest.mark.parametrize("layer", [0, 2])
def test_sums_that_give_no_router_are_refused(
    federation: Federation, laws: tuple[RouterManifest, ShardSums], tmp_path: Path, layer: int
) -> None:
    manifest, sums = deepcopy(laws)
    sums.arrays[f"layers.{layer}.cross"][:] = 0
    assert refused(federation.members["law"], written(tmp_path / "file", manifest, sums)) == f"layers.{layer}.cross"


def test_excessive_token_count_is_refused_naming_top_owner(
    federation: Federation, laws: tuple[RouterManifest, ShardSums], tmp_path: Path
) -> None:
    manifest, sums = laws
    path = written(tmp_path / "file", manifest.model_copy(update={"tokens": MAX_TOKENS}), sums)
    with pytest.raises(CoordinatorError, match="of owner 'art-owner' has the most") as caught:
        send(federation.members["law"], path)
    assert caught.value.where == "manifest.tokens"


def test_a_gram_of_more_directions_than_tokens_is_refused(
    federation: Federation, laws: tuple[RouterManifest, ShardSums], tmp_path: Path
) -> None:
    manifest, sums = deepcopy(laws)
    corners = np.cumsum([0, *range(32, 1, -1)])
    for layer in range(3):
        packed = sums.arrays[f"layers.{layer}.gram"]
        packed[:] = 0
        packed[corners] = 4 << manifest.exponents[layer]
        sums.arrays[f"layers.{layer}.cross"][:] = 1
    few = manifest.model_copy(update={"tokens": 8})
    assert refused(federation.members["law"], written(tmp_path / "file", few, sums)) == "layers.0.gram"


def test_honest_contributions_pass(
    federation: Federation, laws: tuple[RouterManifest, ShardSums], tmp_path: Path
) -> None:
    law, body = federation.members["law"], federation.body()
    assert send(law, written(tmp_path / "file", *laws)).warnings == []
    several = honest(federation.server, law, body, shards=3, first=2000)
    assert send(law, written(tmp_path / "more", *several)).warnings == []
    assert send(law, written(tmp_path / "head", *honest_head(law))).active
