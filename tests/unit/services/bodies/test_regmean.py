"""RegMean bodies: each linear module is the least-squares fit to the experts' own, from grams of their own inputs."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.bodies import least_squares
from moerge.bodies.least_squares import (
    EVENNESS,
    SHRINKAGE_TO_AVERAGE,
    row_shares,
)
from moerge.bodies.lineage import BodyOptions
from moerge.bodies.methods.method import MethodInputs
from moerge.bodies.methods.regmean import ModuleGrams, plan
from moerge.files import atomic_file
from moerge.models.batches import batches
from moerge.models.bounds import factors, feature_bounds, input_bounds, input_exponents, input_grams
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING
from moerge.models.families.registry import FAMILIES
from moerge.models.reader import Checkpoint
from moerge.models.tokens import all_counted
from moerge.models.writer import write_safetensors
from moerge.routers.ridge import Ridge
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import body_contribution
from moerge.statistics.integers import to_floats, unpack
from moerge.statistics.passes import BodyPass
from moerge.threads import at_once
from moerge_proto.statistics_file import StatisticsFile
from support.models import expert
from support.passes import sums_of, visit_features
from support.versions import contributed_rows

QUERY, VALUE, OUTPUT = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "qvo")
NORM = "model.layers.1.input_layernorm.weight"


def sums(folder: Path, rows: list[list[int]]) -> ShardSums:
    own = DenseFiles(folder)
    return sums_of(BodyPass(own, input_exponents(own)), rows)


def sent(folder: Path, rows: list[list[int]], path: Path) -> Path:
    """An expert's body contribution over `rows`."""
    return body_contribution(DenseExpert("law", folder), all_counted(rows), path)


def merged(
    experts: Sequence[Path],
    folder: Path,
    rows: Sequence[list[list[int]]] | None = None,
) -> dict[str, Tensor]:
    """The experts' regmean body; the n-th contributes the n-th rows."""
    with ExitStack() as stack:
        files = []
        for slot, item in enumerate(experts):
            path = sent(item, rows[slot] if rows else contributed_rows(slot), folder / f"sent-{slot}")
            files.append(stack.enter_context(StatisticsFile(path)))
        domains = [folder.name for folder in experts]
        opened = MethodInputs(list(map(DenseFiles, experts)), domains, BodyOptions(), statistics=files)
        plans = plan(opened)
        with atomic_file(folder / "body") as out:
            write_safetensors(out, plans, at_once=at_once())
    return load_file(folder / "body")


@torch.inference_mode()
def inputs(folder: Path, module: str, rows: list[list[int]]) -> Tensor:
    """[n, in] float64: what a module reads, document by document, by a hook of our own."""
    model, seen = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64), []
    model.get_submodule(module).register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
    for row in rows:
        model(torch.tensor([row]), use_cache=False)
    return torch.cat(seen)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_grams_equal_the_textbook_and_stay_within_their_bounds(tmp_path: Path, family: str) -> None:
    folder = expert(tmp_path / "expert", seed=1, family=family, apart=0.02)
    rows, own = contributed_rows(0), DenseFiles(folder)
    summed, exponents = sums(folder, rows), input_exponents(own)
    bounds, [first, *grams] = input_bounds(own), input_grams(own)
    for n, gram in enumerate(grams):
        x = inputs(folder, gram.modules[0], rows)
        u = x / factors(own, gram.gain) if gram.gain else x
        result = unpack(to_floats(summed.arrays[gram.name], exponents[n]), x.shape[1])
        np.testing.assert_allclose(result, (u.T @ u).numpy(), atol=2e-5 * float((u**2).sum(dim=0).mean()))
        assert float((u**2).sum(dim=1).max()) <= bounds[n] * (1 + 1e-6)
    assert (
        summed.arrays["token_counts"].tolist()
        == np.bincount([id_ for row in rows for id_ in row], minlength=300).tolist()
    )
    with StatisticsFile(sent(folder, rows, tmp_path / "sent")) as file:
        x, moment = inputs(folder, first.modules[0], rows), ModuleGrams(own, file).second_moment
        torch.testing.assert_close(moment(f"{first.modules[0]}.weight"), x.T @ x / len(x), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("family", ["olmo2", "llama"])
def test_features_stay_within_their_bounds(tmp_path: Path, family: str) -> None:
    folder = expert(tmp_path / "expert", seed=1, family=family)
    own = DenseFiles(folder)
    model, bounds = expert_model(own), feature_bounds(own)
    gains = torch.stack([layer.post_attention_layernorm.weight for layer in model.model.layers])
    largest = [0.0] * 3

    def visit(layer: int, x: Tensor) -> None:
        u = x / gains[layer] if family == "llama" else x
        largest[layer] = max(largest[layer], float((u**2).sum(dim=1).max()))

    for batch in batches(all_counted(contributed_rows(0)), 512):
        visit_features(model, batch, visit)
    assert all(bound / 200 < result <= bound for result, bound in zip(largest, bounds, strict=True))


def textbook(experts: Sequence[Path], name: str, rows: slice, shares: Sequence[float]) -> Tensor:
    """Rows of a module by the textbook: what its inputs by the experts' own weights give, each domain by its share."""
    left, right = [], []
    for slot, folder in enumerate(experts):
        x = inputs(folder, name.removesuffix(".weight"), contributed_rows(slot))
        x = x / (x**2).mean().sqrt()  # each domain's gram has a mean diagonal of n, which is alike here
        left.append(x * (shares[slot] / len(x)) ** 0.5)
        right.append(left[-1] @ Checkpoint(folder).tensor(name)[rows].double().T)
    size, tokens = left[0].shape[1], sum(map(len, left))
    shrinkage = (SHRINKAGE_TO_AVERAGE * size / tokens) ** 0.5 * torch.eye(size, dtype=torch.float64)
    own = [Checkpoint(folder).tensor(name)[rows].double() for folder in experts]
    mean = torch.einsum("d,dri->ri", torch.tensor(shares, dtype=torch.float64), torch.stack(own))
    fit: Tensor = torch.linalg.lstsq(torch.cat([*left, shrinkage]), torch.cat([*right, shrinkage @ mean.T])).solution
    return fit.T


@pytest.mark.parametrize("name", [QUERY, VALUE, OUTPUT])
def test_every_module_is_the_least_squares_fit_to_the_experts(tmp_path: Path, name: str) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    result = merged(experts, tmp_path)[name].double()
    expected = textbook(experts, name, slice(None), [0.5, 0.5])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-3 * float(expected.std()))


def test_solved_body_has_the_same_bits_for_any_thread_count(tmp_path: Path) -> None:
    """Law 3. Each module is solved by one thread, however many are solved at a time."""
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    before, bits, seen = torch.get_num_threads(), set(), set[int]()

    def factorised(gram: Tensor, ridge_lambda: float) -> Ridge:
        seen.add(torch.get_num_threads())
        return Ridge.of(gram, ridge_lambda)

    try:
        with patch.object(least_squares, "Ridge", SimpleNamespace(of=factorised)):
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)
                merged(experts, tmp_path)
                bits.add((tmp_path / "body").read_bytes())
    finally:
        torch.set_num_threads(before)
    assert (len(bits), seen) == (1, {1})


def test_of_one_expert_the_body_is_its_own(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    own = Checkpoint(folder)
    for name, tensor in merged([folder], tmp_path).items():
        torch.testing.assert_close(tensor, own.tensor(name), rtol=0, atol=1e-5)


def test_where_no_text_points_the_body_is_the_average(tmp_path: Path) -> None:
    """One token: its direction is fitted, all others are averaged."""
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    result = merged(experts, tmp_path, [[[5]], [[5]]])[QUERY].double()
    mean = torch.stack([Checkpoint(item).tensor(QUERY).double() for item in experts]).mean(dim=0)
    directions = torch.cat([inputs(item, QUERY.removesuffix(".weight"), [[5]]) for item in experts])
    unseen = torch.linalg.svd(directions).Vh[2:]
    torch.testing.assert_close(result @ unseen.T, mean @ unseen.T, rtol=0, atol=1e-5)
    assert not torch.allclose(result @ directions.T, mean @ directions.T, atol=1e-3)


def test_embedding_rows_are_weighted_and_norms_averaged(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed, tie_word_embeddings=True) for seed in (1, 2)]
    body = merged(experts, tmp_path, [[[5, 5, 5, 6]], [[5, 7]]])
    own = [Checkpoint(item).tensor(EMBEDDING) for item in experts]
    for token, counts in {5: (3, 1), 6: (1, 0), 7: (0, 1), 8: (0, 0)}.items():
        one, other = (count / (tokens + 300) + 1 / 303 for count, tokens in zip(counts, (4, 2), strict=True))
        share = (one / (one + other) + EVENNESS / 2) / (1 + EVENNESS)
        torch.testing.assert_close(body[EMBEDDING][token], share * own[0][token] + (1 - share) * own[1][token])
    gains = [Checkpoint(item).tensor(NORM) for item in experts]
    torch.testing.assert_close(body[NORM], (gains[0] + gains[1]) / 2)


@settings(max_examples=60, deadline=None)
@given(owners=st.integers(2, 6), tokens=st.integers(1, 10**6), sharpness=st.floats(0, 4), seed=st.integers(0, 2**30))
def test_owner_share_of_rows_used_by_others_is_bounded(owners: int, tokens: int, sharpness: float, seed: int) -> None:
    """Its text may be any. Others use a row as often as their frequencies say, with the added count."""
    generator, vocabulary = torch.Generator().manual_seed(seed), 50
    frequencies = (sharpness * torch.randn(owners, vocabulary, generator=generator).double()).softmax(dim=1)
    sizes = torch.tensor([tokens, *[20_000] * (owners - 1)])
    shares = row_shares((frequencies * sizes[:, None]).floor(), sizes, vocabulary)
    torch.testing.assert_close(shares.sum(dim=0), torch.ones(vocabulary).double())
    assert float(shares.max()) <= (1 + EVENNESS / owners) / (1 + EVENNESS) + 1e-12
    added = vocabulary / (sizes + vocabulary).double().mean()
    use = (frequencies[1:] + added / vocabulary).mean(dim=0)
    worth = tokens / (tokens + vocabulary) + added
    bound = worth / (worth + (owners - 1) * (20_000 / (20_000 + vocabulary) + added))
    assert float(shares[0] @ use / use.sum()) <= (bound + EVENNESS / owners) / (1 + EVENNESS) + 2e-3
