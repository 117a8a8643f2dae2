"""Trains a model on JSON lines in a plain loop of PyTorch: all its parameters, its MLPs, or an adapter by PEFT.

python train.py --model demo/experts/seed --text demo/texts/code/train.jsonl --lora --out out/code
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer


def rows(files: list[Path], tokenizer: Any, length: int) -> Tensor:
    """All documents joined and cut, [rows, length]."""
    texts = [json.loads(line)["text"] for file in files for line in file.open(encoding="utf-8")]
    ids = [number for text in tokenizer(texts)["input_ids"] for number in (*text, tokenizer.eos_token_id)]
    return torch.tensor(ids[: len(ids) // length * length]).view(-1, length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mlps", action="store_true")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1e-2)
    given = parser.parse_args()

    torch.manual_seed(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(given.model)
    model: Any = AutoModelForCausalLM.from_pretrained(given.model.resolve(), dtype=torch.float32)
    if given.mlps:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".mlp." in name)
    if given.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    text = rows(given.text, tokenizer, 256)
    optimizer = torch.optim.AdamW((item for item in model.parameters() if item.requires_grad), given.rate)
    losses = []
    for _ in range(given.steps):
        batch = text[torch.randint(len(text), (8,))]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    few = given.steps // 4
    print(f"loss of the first {few} steps: {sum(losses[:few]) / few:.2f}")
    print(f"loss of the last {few} steps: {sum(losses[-few:]) / few:.2f}")
    model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)


if __name__ == "__main__":
    main()
