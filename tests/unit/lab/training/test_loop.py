"""The training loop: AdamW by its formula, mixtures, and a training that is cut and goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from transformers import PretrainedConfig

from moerge.errors import MoergeError
from moerge_lab.training import checkpoint
from moerge_lab.training.batches import batches, joined
from moerge_lab.training.job import LOG, Job, train
from moerge_lab.training.loop import Run, Trainer
from support.progress import Stopped


class Scalar(nn.Module):
    """One number, w; its loss on x is (w x)^2 / 2 plus noise that has no gradient."""

    config = PretrainedConfig()

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(2.0))


def loss(model: nn.Module, ids: Tensor, noise: Generator) -> Tensor:
    w = model.get_parameter("w")
    return (w * ids.float()).square().mean() / 2 * (1 + torch.rand((), generator=noise))


def squared(model: nn.Module, ids: Tensor, noise: Generator) -> Tensor:
    return (model.get_parameter("w") * ids.float()).square().mean()


def test_a_step_is_adamw_s() -> None:
    model, run = Scalar(), Run(4, 1, 0.1, weight_decay=0.5, clip=1e9)
    trainer = Trainer(model, dict(model.named_parameters()), run, squared)
    w, first, second = 2.0, 0.0, 0.0
    for number, x in enumerate((3.0, -1.0, 2.0)):
        result = trainer.step(torch.tensor([[x]]), number, 0.1)
        gradient = 2 * w * x * x
        assert result.loss == pytest.approx((w * x) ** 2)
        first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
        scaled = first / (1 - 0.9 ** (number + 1)), second / (1 - 0.98 ** (number + 1))
        w = w * (1 - 0.1 * 0.5) - 0.1 * scaled[0] / (scaled[1] ** 0.5 + 1e-8)
        assert model.w.item() == pytest.approx(w, rel=1e-5)


def test_the_rate_rises_falls_and_ends_near_zero() -> None:
    rates = [Run(100, 1, 2.0).rate(step) for step in range(100)]
    assert rates[:11] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8, 2, 2])
    assert rates[55] == pytest.approx(1.0)
    assert rates[99] < 0.001


def test_parts_of_a_batch_give_the_gradient_of_the_whole() -> None:
    models = [Scalar(), Scalar()]
    for model, parts in zip(models, (1, 3), strict=True):
        run = Run(1, 5, 0.1, clip=1e9, accumulate=parts)
        trainer = Trainer(model, dict(model.named_parameters()), run, squared)
        trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # type: ignore[assignment]
        trainer.step(torch.arange(1, 6)[:, None], 0, 0.1)  # parts of 2, 2 and 1 rows
    assert models[0].w.item() == pytest.approx(models[1].w.item())


def test_text_is_joined_and_drawn_in_passes_by_weight() -> None:
    rows = joined([[1, 2, 3], [4, 5]], 0, 3)
    assert rows.tolist() == [[1, 2, 3], [0, 4, 5]]
    sources = [torch.arange(10)[:, None], torch.arange(100, 140)[:, None]]
    drawn = torch.cat(list(batches(sources, 100, 4, 1, weights=[3, 1]))).flatten()
    small = drawn[drawn < 100]
    assert 260 <= len(small) <= 340
    assert all(sorted(small[start : start + 10].tolist()) == list(range(10)) for start in range(0, 250, 10))
    again = torch.cat(list(batches(sources, 100, 4, 1, weights=[3, 1]))).flatten()
    assert torch.equal(drawn, again)


def test_a_resumed_training_has_the_losses_of_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS", 0)
    rows, run = torch.arange(1, 30)[:, None], Run(20, 2, 0.05, seed=3)

    def trained(folder: Path, after: int = 0) -> tuple[float, list[str]]:
        model: Any = Scalar()
        train(Job(model, run, [rows], loss=loss, folder=folder, progress=Stopped(after)))
        lines = (folder / LOG).read_text().splitlines()
        return model.w.item(), [line.rpartition(",")[0] for line in lines]  # without seconds

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", 9 * 2)
    with (tmp_path / "cut" / LOG).open("a") as out:
        out.write("10,2,0.0,0.0,0.0\n")  # of a step after the checkpoint
    whole = trained(tmp_path / "whole")
    assert trained(tmp_path / "cut") == whole
    assert len(whole[1]) == 21


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    model: Any = Scalar()
    with pytest.raises(MoergeError, match="the loss of step 2 is not finite") as caught:
        train(Job(model, Run(9, 1, 1e30, clip=1e30), [torch.ones(1, 1) * 1e9], loss=squared))
    assert "lower" in caught.value.todo


def test_other_parameters_than_the_model_s_can_be_trained() -> None:
    model: Any = Scalar()
    other = nn.Parameter(torch.tensor(1.0), requires_grad=False)

    def away(functional: nn.Module, ids: Tensor, noise: Generator) -> Tensor:
        return functional.get_parameter("w") * other

    assert train(Job(model, Run(3, 1, 0.1), [torch.ones(1, 1)], trains={"other": other}, loss=away)) == (1, 3)
    assert other.item() < 1
    assert model.w.item() == 2.0
    assert not other.requires_grad
