"""Transformers' own ways to use a version: each must answer as the plain model does."""

import gc
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from engines.compare import AS_DENSE, Answers, Outcome, difference
from engines.reference import NEW_TOKENS, answers, load, prompts

PAD = 258
_LEAST = 1e-3
"""Rounding to int8 below this difference is as good as none."""


def outcomes(version: Path, dense: Path, *, int8: bool) -> Iterator[Outcome]:
    """Each way with a version, beside one of its dense experts.

    Args:
        int8: whether torchao is installed.
    """
    plain = answers(load(version))
    new = Answers([score[-NEW_TOKENS:] for score in plain.scores], plain.tokens)
    ways: list[tuple[str, Answers, Callable[[Path], Answers]]] = [
        ("`device_map`", plain, _device_map),
        ("cache", new, lambda folder: _generated(folder, prompts())),
        ("left padding", new, lambda folder: _generated(folder, [prompts()])),
        ("PEFT, a new adapter", plain, lambda folder: _adapted(folder, merged=False)),
    ]
    for name, expected, way in ways:
        apart = difference(way(version), expected)
        yield Outcome(name, apart.most, apart.exact)
    apart = difference(_adapted(version, merged=True, seed=1), _adapted(version, merged=False, seed=1))
    yield Outcome("PEFT, merged after training", apart.most, apart.exact)
    apart = difference(*_trained(version))
    yield Outcome("a `Trainer` step, saved and loaded", apart.most, apart.exact)
    if int8:
        ours, theirs = difference(_int8(version), plain), difference(_int8(dense), answers(load(dense)))
        yield Outcome("torchao int8", ours.most, ours.typical <= AS_DENSE * max(theirs.typical, _LEAST))


def _device_map(folder: Path) -> Answers:
    return answers(load(folder, device_map="auto"))


@torch.inference_mode()
def _generated(folder: Path, batches: Any) -> Answers:
    """New tokens through the cache. A batch is a text, or several that are padded on the left."""
    model, scores, tokens = load(folder), list[list[float]](), list[list[int]]()
    model.generation_config.eos_token_id = None  # the texts go on
    for batch in batches:
        rows = batch if isinstance(batch[0], list) else [batch]
        longest = max(map(len, rows))
        made = model.generate(
            torch.tensor([[PAD] * (longest - len(row)) + row for row in rows]),
            attention_mask=torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows]),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        new = made.sequences[:, longest:]
        logits = torch.stack(made.logits, dim=1).double().log_softmax(-1)
        scores += logits.gather(-1, new[:, :, None])[:, :, 0].tolist()
        tokens += new.tolist()
    return Answers(scores, tokens)


def _adapted(folder: Path, *, merged: bool, seed: int | None = None) -> Answers:
    """With a LoRA adapter on values and outputs: a new one, which is zero, or one with random weights."""
    model = get_peft_model(load(folder), LoraConfig(r=4, target_modules=["v_proj", "o_proj"], task_type="CAUSAL_LM"))
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, item in model.named_parameters():
                if "lora_" in name:
                    item.copy_(torch.randn(item.shape, generator=generator) / 20)
    return answers(model.merge_and_unload() if merged else model)


def _trained(folder: Path) -> tuple[Answers, Answers]:
    """After a step of the Trainer: as saved and loaded again, and in memory."""
    rows = [{"input_ids": row, "labels": row} for row in ([*prompt, *prompt][:32] for prompt in prompts()[2:])]
    with TemporaryDirectory() as work:
        settings = TrainingArguments(
            work, max_steps=1, learning_rate=1e-3, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
        )
        model = load(folder)
        before = {name: item.clone() for name, item in model.state_dict().items()}
        trainer = Trainer(model, settings, train_dataset=rows, data_collator=_collated)
        loss = trainer.train().training_loss
        changed = sum(not torch.equal(before[name], item) for name, item in model.state_dict().items())
        assert math.isfinite(loss), loss
        assert changed > len(before) / 2, f"{changed} of {len(before)} tensors changed"
        trainer.save_model(work)
        gc.collect()
        return answers(load(Path(work))), answers(model.eval())


def _collated(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


def _int8(folder: Path) -> Answers:
    """All linear modules rounded to int8 by torchao."""
    from torchao.quantization import Int8WeightOnlyConfig  # type: ignore[import-not-found]
    from transformers import TorchAoConfig

    return answers(load(folder, quantization_config=TorchAoConfig(Int8WeightOnlyConfig())))
