"""Heads: last norm and language model head, made from a version's experts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from moerge.bodies.heads import HeadInputs, head_plan, is_tied
from moerge.bodies.least_squares import SHRINKAGE_TO_AVERAGE
from moerge.errors import IncompatibleExpertError
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING, FINAL_NORM, HEAD
from moerge.models.reader import Checkpoint
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import head_contribution
from moerge_proto.bodies import HeadMethod
from support.models import expert
from support.versions import body_file, contributed_rows


def inputs_of(
    experts: Sequence[Path], folder: Path, *, seed: Path | None = None, as_embedding: bool = False
) -> HeadInputs:
    """The inputs of the experts' head, with head contributions over the n-th rows."""

    def statistics() -> list[Path]:
        texts = [(DenseExpert("law", item), all_counted(contributed_rows(n))) for n, item in enumerate(experts)]
        return [head_contribution(own, rows, folder / f"head-{n}") for n, (own, rows) in enumerate(texts)]

    body = DenseBody(body_file(experts, folder / "body"), DenseFiles(experts[0]).config)
    origin = None if seed is None else Checkpoint(seed)
    return HeadInputs(list(map(Checkpoint, experts)), statistics, origin, body, as_embedding)


def head(method: HeadMethod, inputs: HeadInputs) -> dict[str, Tensor]:
    return {plan.name: plan.compute() for plan in head_plan(method, inputs)}


@torch.inference_mode()
def read_by_head(folder: Path, rows: list[list[int]]) -> Tensor:
    """[n, H] float64: the head's inputs, by a hook of our own."""
    model, seen = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64), []
    model.lm_head.register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
    for row in rows:
        model(torch.tensor([row]), use_cache=False)
    return torch.cat(seen).clone()


def test_regmean_head_is_the_least_squares_fit_of_equal_domains(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    left, right = [], []
    for slot, folder in enumerate(experts):
        x = read_by_head(folder, contributed_rows(slot))
        x = x / ((x**2).sum(dim=0).mean().sqrt() * 2**0.5)  # each domain's gram has a mean diagonal of 1 / D
        left.append(x)
        right.append(x @ Checkpoint(folder).tensor(HEAD).double().T)
    size, tokens = left[0].shape[1], sum(map(len, left))
    shrinkage = (SHRINKAGE_TO_AVERAGE * size / tokens) ** 0.5 * torch.eye(size, dtype=torch.float64)
    mean = torch.stack([Checkpoint(folder).tensor(HEAD).double() for folder in experts]).mean(dim=0)
    expected = torch.linalg.lstsq(torch.cat([*left, shrinkage]), torch.cat([*right, shrinkage @ mean.T])).solution.T
    result = head("regmean", inputs_of(experts, tmp_path))
    torch.testing.assert_close(result[HEAD].double(), expected, rtol=0, atol=1e-3 * float(expected.std()))
    norms = [Checkpoint(folder).tensor(FINAL_NORM) for folder in experts]
    torch.testing.assert_close(result[FINAL_NORM], (norms[0] + norms[1]) / 2)


def test_regmean_head_of_one_expert_is_its_own_for_any_number_of_row_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    alone = head("regmean", inputs_of(experts[:1], tmp_path / "one"))
    torch.testing.assert_close(alone[HEAD], Checkpoint(experts[0]).tensor(HEAD), rtol=0, atol=1e-5)
    inputs = inputs_of(experts, tmp_path)
    whole = head("regmean", inputs)[HEAD]
    monkeypatch.setattr("moerge.bodies.heads.HEAD_ROWS", 70)
    torch.testing.assert_close(head("regmean", inputs)[HEAD], whole, rtol=0, atol=1e-6)


def test_average_of_tied_experts_is_the_embedding_of_their_own_average_body_only(tmp_path: Path) -> None:
    tied, untied = (expert(tmp_path / str(tie), seed=1, tie_word_embeddings=tie) for tie in (True, False))
    mean = (Checkpoint(tied).tensor(EMBEDDING) + Checkpoint(untied).tensor(HEAD)) / 2
    for order in ([tied, untied], [untied, tied]):
        torch.testing.assert_close(head("average", inputs_of(order, tmp_path, as_embedding=True))[HEAD], mean)
    same = inputs_of([tied, tied], tmp_path, as_embedding=True)
    assert is_tied("average", same)
    assert head("average", same).keys() == {FINAL_NORM}
    other = inputs_of([tied, tied], tmp_path)  # under another body, such as a seed's
    assert not is_tied("average", other)
    torch.testing.assert_close(head("average", other)[HEAD], Checkpoint(tied).tensor(EMBEDDING))


def test_seed_s_head_is_its_own(tmp_path: Path) -> None:
    experts, seed = [expert(tmp_path / str(n), seed=n) for n in (1, 2)], expert(tmp_path / "seed", seed=3)
    result = head("seed", inputs_of(experts, tmp_path, seed=seed))
    own = load_file(seed / "model.safetensors")
    assert all(torch.equal(tensor, own[name]) for name, tensor in result.items())
    assert result.keys() == {FINAL_NORM, HEAD}
    with pytest.raises(IncompatibleExpertError, match="the body isn't a seed's"):
        head_plan("seed", inputs_of(experts, tmp_path))


@pytest.mark.parametrize("method", ["average", "regmean"])
def test_head_of_experts_that_all_keep_the_seed_s_is_that(tmp_path: Path, method: HeadMethod) -> None:
    for tied in (True, False):
        seed = expert(tmp_path / str(tied), seed=1, tie_word_embeddings=tied)
        one = inputs_of([seed], tmp_path / f"of-{tied}", seed=seed)
        kept = HeadInputs([None, None], list, one.seed, one.body, as_embedding=False)
        assert is_tied(method, kept) == tied
        result, own = head(method, kept), load_file(seed / "model.safetensors")
        assert result.keys() == ({FINAL_NORM} if tied else {FINAL_NORM, HEAD})
        assert all(torch.equal(tensor, own[name]) for name, tensor in result.items())
        assert not is_tied("average", HeadInputs([None, *one.experts], list, one.seed, one.body, as_embedding=False))


def test_rows_of_a_head_are_those_of_the_embedding(tmp_path: Path) -> None:
    short, long = (expert(tmp_path / str(size), seed=1, vocab_size=size) for size in (300, 310))
    inputs = inputs_of([short, long], tmp_path)
    assert len(head("average", inputs)[HEAD]) == 310
    shorter = inputs_of([short], tmp_path / "short")
    cut = HeadInputs(inputs.experts, inputs.statistics, None, shorter.body, as_embedding=False)
    assert len(head("average", cut)[HEAD]) == 300
    with pytest.raises(IncompatibleExpertError, match="expected 310 rows as in the body's embedding, found 300"):
        head_plan("average", HeadInputs(shorter.experts, shorter.statistics, None, inputs.body, as_embedding=False))
