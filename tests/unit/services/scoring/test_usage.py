"""The use of experts is that of the whole model, counted by hand, with the ratio estimator's error."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.models.published import published_weights
from moerge.models.tokens import Tokens
from moerge.scoring import usage as module
from moerge.scoring.perplexity import load
from moerge.scoring.routers import routers
from moerge.scoring.streamed import StreamedModel
from moerge.scoring.usage import Ratio, Usage, usage
from support.models import DISTINCT, allowed, expert
from support.progress import Silent
from support.versions import published

CONTEXT = 32
TEXTS = [[(7 * row + 3 * column) % 256 for column in range(5 + 9 * row)] for row in range(9)]
DOCUMENTS = [Tokens(ids) for ids in TEXTS]
SOME = [Tokens(ids, [place % 3 > 0 for place in range(len(ids))]) for ids in TEXTS]


def version_of(folder: Path, top_k: int, family: str = "llama", experts: int = 3) -> Path:
    return published([expert(folder / str(seed), seed, family) for seed in range(experts)], folder, top_k)


def measured(version: Path, documents: Sequence[Tokens], context: int = CONTEXT) -> Usage:
    model = StreamedModel(published_weights(version), torch.float32, "cpu", 2**30)
    domains = [f"d{slot}" for slot in range(model.routed.shape[1])]
    return usage(model, domains, documents, context, Silent())


def shares(result: Usage, kind: str) -> list[list[float]]:
    """[D][L + 1]: of each layer, and all."""
    every = [[*(getattr(layer, kind) for layer in item.layers), getattr(item, kind)] for item in result.experts]
    return [[estimate.share for estimate in row] for row in every]


def errors(result: Usage, kind: str) -> list[float | None]:
    return [getattr(item, kind).error for item in result.experts]


@torch.inference_mode()
def by_hand(version: Path, documents: Sequence[Tokens]) -> tuple[list[int], dict[str, Tensor]]:
    """Each document's counted tokens, and [n, L, D] of them by first choice and by weight; one piece at a time."""
    model = load(version)
    lengths, seen = list[int](), list[tuple[Tensor, Tensor]]()
    for router in routers(model):
        router.register_forward_hook(lambda module, inputs, output: seen.append(output[1:]))
    tokens, weight = list[Tensor](), list[Tensor]()
    layers, experts = len(routers(model)), 3
    for document in documents:
        first, given = torch.zeros(layers, experts), torch.zeros(layers, experts)
        for piece in document.pieces(CONTEXT):
            seen.clear()
            model(torch.tensor([list(piece.ids)]), use_cache=False)
            for layer, (weights, chosen) in enumerate(seen):
                for place, counts in enumerate(piece.mask):
                    if counts:
                        first[layer, chosen[place, 0]] += 1
                        given[layer, chosen[place]] += weights[place] / weights[place].sum()
        lengths.append(document.count)
        tokens.append(first)
        weight.append(given)
    return lengths, {"tokens": torch.stack(tokens), "weight": torch.stack(weight)}


@pytest.mark.parametrize("family", DISTINCT)
@pytest.mark.parametrize("documents", [DOCUMENTS, SOME], ids=["all", "some"])
def test_shares_and_errors_are_those_of_a_count_by_hand(tmp_path: Path, family: str, documents: list[Tokens]) -> None:
    version = version_of(tmp_path, allowed(family)[-1], family)
    result = measured(version, documents)
    lengths, sums = by_hand(version, documents)
    x, n = torch.tensor(lengths), len(lengths)
    assert (result.documents, result.tokens) == (n, int(x.sum()))
    for kind, layers in sums.items():
        y = torch.cat([layers, layers.mean(1, keepdim=True)], dim=1)  # [n, L + 1, D]
        ratio = y.sum(0) / x.sum()
        assert shares(result, kind) == [pytest.approx(row, abs=1e-5) for row in ratio.T.tolist()]
        left = (y[:, -1] - ratio[-1] * x[:, None]).double()
        expected = (n / (n - 1) * left.square().sum(0)).sqrt() / x.sum()
        assert errors(result, kind) == pytest.approx(expected.tolist(), abs=1e-5)


def test_weights_are_the_softmax_of_the_chosen_logits(tmp_path: Path) -> None:
    """Without moerge's own words for a router: from the logits that transformers' class gives back."""
    version = version_of(tmp_path, 2)
    model: Any = AutoModelForCausalLM.from_pretrained(version)
    expected = torch.zeros(3)
    for document in DOCUMENTS[:3]:
        with torch.inference_mode():
            given = model(torch.tensor([list(document.ids)]), output_router_logits=True).router_logits
        for logits in given:
            best = logits.topk(2)
            expected.index_add_(0, best.indices.flatten(), best.values.softmax(-1).flatten())
    expected /= 3 * sum(map(len, DOCUMENTS[:3]))
    found = [item.weight.share for item in measured(version, DOCUMENTS[:3]).experts]
    assert found == pytest.approx(expected.tolist(), abs=1e-6)


def test_every_token_counts_once_and_padding_never(tmp_path: Path) -> None:
    result = measured(version_of(tmp_path, 2), DOCUMENTS)
    assert result.tokens == sum(map(len, TEXTS))
    for kind in ("tokens", "weight"):
        for column in zip(*shares(result, kind), strict=True):
            assert sum(column) == pytest.approx(1)


def test_one_expert_per_token_gets_all_of_its_weight(tmp_path: Path) -> None:
    result = measured(version_of(tmp_path, 1), DOCUMENTS)
    assert all(item.tokens == item.weight for item in result.experts)


def test_blocks_of_documents_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = version_of(tmp_path, 2)
    whole = measured(version, DOCUMENTS)
    monkeypatch.setattr(module, "_NUMBERS", 2 * 3 * 3)  # two documents
    blocks = measured(version, DOCUMENTS)
    assert (blocks.documents, blocks.tokens) == (whole.documents, whole.tokens)
    for kind in ("tokens", "weight"):
        assert shares(blocks, kind) == [pytest.approx(row, abs=1e-6) for row in shares(whole, kind)]
        assert errors(blocks, kind) == pytest.approx(errors(whole, kind), abs=1e-6)


def test_the_tracker_gets_each_token_once_and_documents_without_one_are_left_out(tmp_path: Path) -> None:
    done = list[int]()

    class Told:
        def advance(self, n: int) -> None:
            done.append(n)

    model = StreamedModel(published_weights(version_of(tmp_path, 1)), torch.float32, "cpu", 1)
    result = usage(model, ["a", "b", "c"], [Tokens([]), *SOME, Tokens([1, 2], [False, False])], CONTEXT, Told())
    assert sum(done) == result.tokens == sum(item.count for item in SOME)
    assert result.documents == len(SOME)


def test_a_single_document_has_no_error(tmp_path: Path) -> None:
    result = measured(version_of(tmp_path, 1), DOCUMENTS[:1])
    assert {item.tokens.error for item in result.experts} == {None}


def test_a_ratio_s_error_is_near_the_jackknife_s() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(1, 200, (300,), generator=generator).double()
    y = (x * torch.rand(300, generator=generator)).round()[:, None]
    ratio = Ratio()
    for part in (slice(100), slice(100, 300)):
        ratio.add(x[part], y[part])
    left = (y.sum() - y[:, 0]) / (x.sum() - x)
    jackknife = (299 / 300 * (left - left.mean()).square().sum()).sqrt()
    assert ratio.error is not None
    assert float(ratio.error) == pytest.approx(float(jackknife), rel=0.02)
    assert float(ratio.value) == float(y.sum() / x.sum())


def test_a_ratio_of_two_documents_by_hand() -> None:
    """r = 3 / 6; residuals 1 - 2 r = 0 and 2 - 4 r = 0; then r = 4 / 6, residuals 2 / 3 and -2 / 3."""
    for y, expected in (([1.0, 2.0], 0.0), ([2.0, 2.0], (2 * (2 * (2 / 3) ** 2)) ** 0.5 / 6)):
        ratio = Ratio()
        ratio.add(torch.tensor([2.0, 4.0]).double(), torch.tensor(y).double())
        assert ratio.error is not None
        assert float(ratio.error) == pytest.approx(expected, abs=1e-9)
