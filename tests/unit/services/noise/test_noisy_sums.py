"""Router contributions with noise: one document changes the sums by at most the limits, and the file stays usable."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from moerge.documents.shards import plan
from moerge.errors import ContributionError, MoergeError
from moerge.memory.machine import Free
from moerge.memory.needs import SUM_ROWS
from moerge.merging.local_lineages import LocalBody, local_body
from moerge.models.bounds import feature_bounds
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.noise.accountant import rho_of
from moerge.noise.finisher import NoiseFinisher
from moerge.noise.gaussian import SIGMA
from moerge.noise.noisy_sums import features_of, moments_of, write_whitenings
from moerge.noise.whitening import BoundedSum, Limits, Whitening, Whitenings
from moerge.statistics.contribution import Computing, router_contribution
from moerge.statistics.integers import pack
from moerge.statistics.passes import RouterPass
from moerge.statistics.streamed import Streamed
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import (
    Int64,
    Privacy,
    StatisticsFile,
    StatisticsSettings,
    TextBefore,
    gram_length,
)
from support.models import expert

PRIVACY = Privacy(epsilon=1.0)
SETTINGS = StatisticsSettings(context=64).private(PRIVACY)
DOCUMENTS = [Tokens([(7 * row + 3 * place) % 250 for place in range(5 + row % 60)]) for row in range(120)]
COMPUTING = Computing(key=b"the owner's key")
SIZE = 6
PUBLIC = list(torch.randn(40, 30, SIZE, generator=torch.Generator().manual_seed(0)).cumsum(dim=2).unbind())
WHITENING = Whitening.of(PUBLIC)
ODD = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    return DenseExpert("code", expert(tmp_path_factory.mktemp("expert"), 1))


@pytest.fixture(scope="module")
def body(own: DenseExpert, tmp_path_factory: pytest.TempPathFactory) -> LocalBody:
    return local_body([own], tmp_path_factory.mktemp("body"), "average")


def integers(sums: BoundedSum) -> tuple[Int64, Int64]:
    result = sums.rounded(0, None)
    return result.gram.numpy(), result.cross.numpy()


def square(values: Int64) -> int:
    return int((values.astype(object) ** 2).sum())


@settings(deadline=None, max_examples=50)
@given(
    document=st.lists(st.lists(ODD, min_size=SIZE, max_size=SIZE), min_size=1, max_size=4),
    epsilon=st.floats(0.1, 10),
)
def test_any_document_keeps_within_the_limits(document: list[list[float]], epsilon: float) -> None:
    """Whatever features a body gives: the cost of all layers is the budget."""
    limits = Limits.of(Privacy(epsilon=epsilon), 3)
    cost = 3 * sum((limit / SIGMA) ** 2 / 2 for limit in limits)
    assert cost == pytest.approx(rho_of(epsilon, 1e-6))
    sums = BoundedSum(WHITENING, limits, None)
    sums.add(torch.tensor(document))
    assert square(integers(sums)[0]) <= limits.gram**2
    assert square(integers(sums)[1]) <= limits.cross**2


def test_a_long_document_reaches_the_limits() -> None:
    """So that the limits are no larger than they must be."""
    limits = Limits.of(PRIVACY, 1)
    sums = BoundedSum(WHITENING, limits, torch.full((SIZE,), 0.5))
    sums.add(torch.full((3, SIZE), 1e6))
    assert square(integers(sums)[0]) > 0.999 * limits.gram**2
    assert square(integers(sums)[1]) > 0.999 * limits.cross**2


def test_sums_over_blocks_of_rows_are_those_of_the_documents() -> None:
    """Of features of more than one block; documents are added alone, and two at a time."""
    limits, drawing = Limits.of(PRIVACY, 1), torch.Generator().manual_seed(0)
    public = torch.randn(20, 90, SUM_ROWS + 70, generator=drawing)
    whitening, documents = Whitening.of(list(public)), public[:3] * torch.tensor([0.1, 1, 30])[:, None, None]
    sums = BoundedSum(whitening, limits, None)
    sums.add(documents[0])
    sums.add(documents[1:])
    expected = np.zeros(gram_length(documents.shape[2]))
    for document in documents:
        rows = whitening.whitened(document).double()
        square = (rows.T @ rows) / len(rows) * math.sqrt(2)
        square.diagonal().mul_(math.sqrt(0.5))
        square.triu_()
        expected += pack((square * limits.gram / square.norm().clamp_min(whitening.gram)).numpy())
    assert np.abs(expected).max() > 10**4
    assert np.allclose(integers(sums)[0], expected, rtol=1e-5, atol=5)


@pytest.mark.parametrize("public", [torch.zeros(5, SIZE), torch.full((5, SIZE), torch.inf)])
def test_public_text_that_gives_no_clips_is_refused_for_any_documents(public: torch.Tensor) -> None:
    """With clips of 0 a run would end at some documents, and at others not."""
    with pytest.raises(ContributionError, match="the features of the public text are"):
        Whitening.of([public] * 3)


def layers_of(documents: Sequence[Tokens], own: DenseExpert, body: LocalBody, file: Path) -> list[dict[str, Int64]]:
    whitenings = Whitenings(file, PRIVACY, body.layers)
    work = RouterPass(own, body, body.exponents, sums=whitenings)
    shards = list(plan(documents, lambda tokens: tokens, SETTINGS, body.hidden_size, b"key"))
    streamed = Streamed(work, SETTINGS.batch_tokens)
    streamed.begin(shards)
    every = [streamed.sums([shard.name for shard in shards]) for _ in range(body.layers)]
    return [sums.arrays for sums in every if sums is not None]


def test_a_document_changes_the_sums_by_its_own_integers_alone(
    own: DenseExpert, body: LocalBody, tmp_path: Path
) -> None:
    """No other document's integers depend on it, not even in their last bit."""
    file = write_whitenings(RouterPass(own, body, body.exponents), SETTINGS, tmp_path / "whitening")
    some = DOCUMENTS[:12]
    whole, less, alone = (layers_of(item, own, body, file) for item in (some, some[1:], some[:1]))
    for layer in range(body.layers):
        for name, array in whole[layer].items():
            assert np.array_equal(array - less[layer][name], alone[layer][name])
            assert array.any()


@pytest.mark.parametrize("privacy", [Privacy(epsilon=epsilon) for epsilon in (0.01, 10.0)])
def test_a_file_with_noise_is_a_valid_contribution(
    own: DenseExpert, body: LocalBody, tmp_path: Path, privacy: Privacy
) -> None:
    path, how = tmp_path / "sums", (StatisticsSettings(context=64), COMPUTING, NoiseFinisher(privacy))
    router_contribution(own, body, DOCUMENTS, path, *how)
    with StatisticsFile(path) as file:
        assert file.manifest.settings.privacy == privacy
        assert (file.manifest.documents, file.manifest.tokens) == (120, 120 * 64)
        assert validate(file, body.exponents, feature_bounds(body)) == []
    assert [item.name for item in tmp_path.iterdir()] == ["sums"]
    before = path.read_bytes()
    assert router_contribution(own, body, DOCUMENTS, path, *how).read_bytes() == before  # no new noise
    other = router_contribution(own, body, DOCUMENTS, tmp_path / "other", *how)
    assert other.read_bytes() != before


def test_much_noise_gives_the_public_text_and_little_the_owners() -> None:
    whitening, limits, documents = WHITENING, Limits.of(PRIVACY, 1), 10**6
    sums = BoundedSum(whitening, limits, None)
    for item in PUBLIC:
        sums.add(item + 1)
    gram, cross = (part * (documents // len(PUBLIC)) for part in integers(sums))
    exact = moments_of(gram, cross, documents, whitening, limits)
    assert exact.mean.norm() > 0.5
    assert exact.covariance.trace() < SIZE  # features were clipped
    few = moments_of(gram // documents + SIGMA // 9, cross // documents + SIGMA // 9, 1, whitening, limits)
    assert few.mean.norm() < exact.mean.norm() / 4
    assert torch.dist(few.covariance, torch.eye(SIZE)) < 0.2
    unit = exact._replace(mean=0 * exact.mean, covariance=torch.eye(SIZE).double())
    second, mean = features_of(unit, whitening, 1e9)
    joined = torch.cat(PUBLIC).double()
    assert torch.allclose(mean, joined.mean(dim=0), atol=1e-5)
    assert torch.allclose(second, joined.T @ joined / len(joined), atol=0.5)


def test_sums_of_too_many_documents_for_the_integers_are_refused() -> None:
    limits = Limits.of(Privacy(epsilon=100.0, delta=0.01), 1)
    limits.require_room(2**24)
    with pytest.raises(ContributionError, match=r"documents; with this noise at most [0-9,]+ fit into the integers"):
        limits.require_room(2**36)


def test_noise_needs_documents_of_one_row() -> None:
    for changed in ({"tokens_per_document": 65}, {"before": TextBefore(tokens=8, piece=8)}):
        with pytest.raises(ValidationError, match="of at most `context`"):
            StatisticsSettings.model_validate(SETTINGS.model_dump() | changed)
    assert "privacy" not in StatisticsSettings().model_dump()


def test_public_text_that_does_not_fit_into_memory_is_refused(
    own: DenseExpert, body: LocalBody, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moerge.noise.noisy_sums.free_for", lambda device: Free(10**6, None))
    with pytest.raises(MoergeError, match=r"the whitening by public text needs .* this machine has 1\.0 MB") as caught:
        write_whitenings(RouterPass(own, body, body.exponents), SETTINGS, tmp_path / "whitening")
    assert "a machine with more memory" in caught.value.todo
    assert list(tmp_path.iterdir()) == []


def test_other_public_text_and_names_without_a_key_are_refused(
    own: DenseExpert, body: LocalBody, tmp_path: Path
) -> None:
    noise, other = NoiseFinisher(PRIVACY), NoiseFinisher(PRIVACY.model_copy(update={"public": "0" * 64}))
    with pytest.raises(ContributionError, match="expected the pool of this moerge"):
        router_contribution(own, body, DOCUMENTS, tmp_path / "sums", SETTINGS, COMPUTING, other)
    with pytest.raises(MoergeError, match="names of shards without a key"):
        router_contribution(own, body, DOCUMENTS, tmp_path / "sums", SETTINGS, finisher=noise)
    with pytest.raises(ValueError, match="expected a finisher that adds noise"):
        router_contribution(own, body, DOCUMENTS, tmp_path / "sums", SETTINGS, COMPUTING)
    assert not list(tmp_path.iterdir())


def test_the_number_of_shards_does_not_tell_of_lengths() -> None:
    """Shards of documents of one token, and of 64."""
    for length in (1, 64):
        documents = [Tokens([row] * length) for row in range(4 * 32)]
        sizes = [shard.documents for shard in plan(documents, lambda tokens: tokens, SETTINGS, 32, b"key")]
        assert sizes == [32] * 4


def test_counts_do_not_tell_of_lengths_nor_of_equal_beginnings() -> None:
    """Sizes of shards go to the policy, and with progress to the coordinator."""
    begin = list(range(64))
    for documents in ([Tokens([*begin, row]) for row in range(64)], [Tokens([row]) for row in range(64)]):
        sizes = {shard.name: shard.tokens for shard in plan(documents, lambda tokens: tokens, SETTINGS, 32, b"key")}
        assert list(sizes.values()) == [32 * 64] * 2


def test_a_document_is_its_first_row() -> None:
    [shard] = plan([Tokens(list(range(200)))], lambda tokens: tokens, SETTINGS, 32, b"key")
    assert [len(row) for row in shard.rows] == [64]
