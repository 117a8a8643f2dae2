"""llama.cpp: GGUFs by `moerge export`, read through llama-cpp-python and compared with transformers.

`LLAMA=PYTHON LLAMA_SOURCES=DIR python -m engines.llama_cpp FOLDER` publishes its cases in FOLDER, prints the largest
difference of a log-probability for each, and fails if one in float32 isn't exact. PYTHON has llama-cpp-python, and the
packages of the converter: torch, transformers, gguf and sentencepiece. DIR is llama.cpp's folder, as in
llama-cpp-python's source distribution.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from moerge.export.gguf import export_gguf
from moerge.progress import NoProgress
from support.models import expert
from support.versions import published

CONVERTER = Path(__file__).parent / "converter"
SCRIPT = Path(__file__).parent / "scripts" / "llama_cpp_answers.py"
EXACT = 1e-4
"""Largest difference of a log-probability in float32, in nats, of an exact version."""
NEW_TOKENS = 8
LENGTHS = (3, 9, 17, 30, 41, 48)
"""Of the texts, in tokens: on both sides of a window, and with the new ones within an original context of 64."""
SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "initializer_range": 0.1}
_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1 + i / 8 for i in range(16)],
    "long_factor": [2 + i / 4 for i in range(16)], "original_max_position_embeddings": 64,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_WINDOW = {"use_sliding_window": True, "sliding_window": 12}
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama, llama3 rope, wide heads": ("llama", {"rope_parameters": _LLAMA3, "head_dim": 64}),
    "llama, yarn rope": ("llama", {"rope_parameters": _YARN}),
    "mistral, window": ("mistral", {"sliding_window": 12}),
    "phi3, long rope, window": (
        "phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 64, "sliding_window": 12}
    ),
    "qwen2": ("qwen2", {}),
    "qwen2, wide heads": ("qwen2", {"head_dim": 64}),
    "qwen2, windows in some layers": ("qwen2", {**_WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 64}),
}  # fmt: skip
Answers = tuple[list[list[float]], list[list[int]]]
"""Of each text, log-probabilities of its second and further tokens and of the new ones; and the greedy new tokens."""


def prompts() -> list[list[int]]:
    """Random lower-case letters, one token each."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(97, 123, (length,), generator=generator).tolist() for length in LENGTHS]


@torch.inference_mode()
def expected(version: Path) -> Answers:
    """Transformers' answers in float32."""
    model = AutoModelForCausalLM.from_pretrained(version, dtype=torch.float32)
    scores, tokens = [], []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        for _ in range(NEW_TOKENS):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
        logits = model(ids, use_cache=False).logits.double().log_softmax(-1)
        scores.append(logits[0, :-1].gather(-1, ids[0, 1:, None])[:, 0].tolist())
        tokens.append(ids[0, len(prompt) :].tolist())
    return scores, tokens


def exported(version: Path, out: Path, outtype: str) -> Path:
    """The version's GGUF in one of the converter's number formats, made unless it exists."""
    if not out.exists():
        export_gguf(version, out, CONVERTER, outtype, NoProgress())
    return out


def answers(ggufs: Sequence[Path]) -> list[Answers]:
    """llama.cpp's answers, in one process.

    Raises:
        AssertionError: it can't load a file.
    """
    models = [{"folder": str(each), "options": {}, "answers": f"{each}.json"} for each in ggufs]
    job = ggufs[0].with_suffix(".job")
    job.write_text(json.dumps({"models": models, "prompts": prompts(), "new_tokens": NEW_TOKENS}), encoding="utf-8")
    subprocess.run([os.environ["LLAMA"], SCRIPT, job], check=True)  # noqa: S603  # the tester's Python
    rows = [json.loads(Path(f"{each}.json").read_text(encoding="utf-8")) for each in ggufs]
    assert not any("error" in row for row in rows), rows
    return [(row["scores"], row["tokens"]) for row in rows]


def differences(found: Answers, right: Answers) -> list[float]:
    """Differences of log-probabilities, in nats, as long as the texts agree."""
    apart = []
    for ours, made, theirs, wanted in zip(*found, *right, strict=True):
        agree = next((i for i, (a, b) in enumerate(zip(made, wanted, strict=True)) if a != b), NEW_TOKENS)
        read = len(theirs) - NEW_TOKENS + agree
        apart += [abs(a - b) for a, b in zip(ours[:read], theirs[:read], strict=True)]
    return apart


def main(home: Path) -> int:
    """Prints a line for each case: the largest difference in float32, and the mean in Q8_0; 1 if one isn't exact."""
    logging.disable_progress_bar()
    versions = []
    for number, (family, settings) in enumerate(CASES.values()):
        folder = home / str(number)
        if not (folder / "version").exists():
            experts = [expert(folder / str(seed), seed, family, apart=0.02, **SIZES, **settings) for seed in (1, 2, 3)]
            published(experts, folder, top_k=1 + number % 2)
        versions.append(folder / "version")
    kinds = ("f32", "q8_0")
    files = [exported(each, each.parent / f"{kind}.gguf", kind) for each in versions for kind in kinds]
    found, wrong = iter(answers(files)), False
    for name, version in zip(CASES, versions, strict=True):
        right = expected(version)
        first, second = next(found), next(found)
        exact, rounded = differences(first, right), differences(second, right)
        good = max(exact) <= EXACT and first[1] == right[1]  # false for NaN
        wrong = wrong or not good
        mean = sum(rounded) / len(rounded)
        print(f"{name}: float32 {max(exact):.0e}{'' if good else ' WRONG'}, Q8_0 {mean:.0e} in the mean", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
