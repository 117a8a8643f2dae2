"""Steps of AdamW on a model's trainable parameters, with a warm-up and a cosine decay; and their log."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from moerge_lab.training.losses import Loss

HEADER = "step,tokens,loss,learning_rate,seconds\n"


@dataclass(frozen=True)
class Run:
    """Settings of a training.

    Attributes:
        steps: of the optimizer.
        batch: rows of a step, of all processes.
        learning_rate: the highest.
        warmup: share of the steps in which the rate rises linearly; afterwards it falls to 0 by a cosine.
        clip: largest norm of the gradient.
        accumulate: parts of a batch, computed one after another to save memory.
        seed: of the batches and of the loss's random numbers.
        bfloat16: whether forward and backward pass are autocast; parameters and optimizer keep their dtype.
    """

    steps: int
    batch: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    accumulate: int = 1
    seed: int = 0
    bfloat16: bool = False

    @classmethod
    def of(cls, tokens: float, context: int, batch: int, learning_rate: float, **settings: Any) -> Self:
        """The run of about so many tokens."""
        return cls(max(1, round(tokens / (batch * context))), batch, learning_rate, **settings)

    def rate(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        warmup = max(1, round(self.warmup * self.steps))
        if step < warmup:
            return self.learning_rate * ((step + 1) / warmup)
        return self.learning_rate * (0.5 * (1 + math.cos(math.pi * (step - warmup) / (self.steps - warmup))))


class Step(NamedTuple):
    """A finished step: its number from 1, its tokens, mean loss in nats and learning rate."""

    number: int
    tokens: int
    loss: float
    rate: float


class Trainer:
    """A model, in training mode, with an optimizer of its trainable parameters.

    Args:
        model: a wrapper, such as DDP's, may have the parameters inside.
        parameters: the trainable ones by name; all others must not require a gradient.
    """

    def __init__(self, model: Module, parameters: Mapping[str, Parameter], run: Run, loss: Loss) -> None:
        self.model, self.parameters, self._run, self._loss = model, parameters, run, loss
        every: Any = list(parameters.values())
        self.optimizer = torch.optim.AdamW(every, betas=(0.9, 0.98), weight_decay=run.weight_decay, fused=True)
        self._device = every[0].device
        model.train()

    def step(self, batch: Tensor, number: int, rate: float) -> Step:
        """Takes one step on rows [B, T] int64, and returns it; `number`, from 0, also seeds the random numbers."""
        seed = self._run.seed * 1_000_003 + number
        noise = torch.Generator().manual_seed(seed)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts, total = batch.to(self._device).chunk(self._run.accumulate), 0.0
        with torch.random.fork_rng([] if self._device.type == "cpu" else [self._device]):
            torch.manual_seed(seed)  # of dropout
            for part in parts:
                with torch.autocast(self._device.type, torch.bfloat16, enabled=self._run.bfloat16):
                    loss = self._loss(self.model, part, noise)
                share = len(part) / len(batch)
                (loss if share == 1 else share * loss).backward()
                total += share * float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self._run.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Step(number + 1, batch.numel(), total, rate)


class Log:
    """Step, its tokens, mean loss in nats, learning rate, and seconds since the last line.

    The file is begun, or loses the lines of later steps than those of the checkpoint.
    """

    def __init__(self, path: Path, steps: int) -> None:
        self._path, self._before = path, time.monotonic()
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join([HEADER, *lines[1 : steps + 1]]), encoding="utf-8")

    def add(self, step: Step) -> None:
        now = time.monotonic()
        with self._path.open("a", encoding="utf-8") as out:
            out.write(f"{step.number},{step.tokens},{step.loss:.6f},{step.rate:.6g},{now - self._before:.3f}\n")
        self._before = now


def losses(log: Path) -> tuple[float, float]:
    """The mean losses of the first and the last tenth of the steps in a training's log."""
    result = [float(line.split(",")[2]) for line in log.read_text(encoding="utf-8").splitlines()[1:]]
    tenth = max(1, len(result) // 10)
    return fmean(result[:tenth]), fmean(result[-tenth:])
