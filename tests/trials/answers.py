"""`python -m trials.answers [RECIPE ...]`: greedy answers to chat prompts by a preset's seed, experts and versions.

The first prompt belongs to no domain, each other one to one domain. A version is a recipe's, such as `recommended`.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.files import cache_folder
from moerge.progress import progress
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.models import Routed, load
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import Settings, fleet_of
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.texts import read_texts

PROMPTS = (
    "Name three things that a gardener does in spring.",
    "Write a Python function that returns the sum of a list of numbers.",
    "Which languages are spoken in Switzerland?",
    "What is asthma?",
    "What is SQL injection, and how is it prevented?",
)


@contextmanager
def version(spec: str, fleet: Fleet) -> Iterator[PreTrainedModel]:
    recipe, options, label = parse(spec)
    with TemporaryDirectory() as work:
        [(_, model)] = recipe.build(replace(fleet, work=Path(work)), options)
        assert isinstance(model, Routed), label
        yield model.model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["dume", "recommended"])
    parser.add_argument("--preset", default="smollm", choices=sorted(PRESETS))
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    disable_progress_bar()
    set_verbosity_error()
    preset = PRESETS[given.preset]
    sources, base = preset.sources(cache_folder(), progress(), given.device)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    texts = {domain: read_texts(domain, source, preset.cut) for domain, source in sources.items()}

    @torch.inference_mode()
    def answers(name: str, model: PreTrainedModel) -> None:
        generate: Any = model.generate  # whose type transformers hides
        print(f"## {name}")
        for prompt in PROMPTS:
            turn = [{"role": "user", "content": prompt}]
            asked = str(tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))
            ids = tokenizer(asked, add_special_tokens=False, return_tensors="pt")["input_ids"].to(given.device)
            text = generate(input_ids=ids, max_new_tokens=given.tokens, do_sample=False)
            print(f"> {prompt}\n{tokenizer.decode(text[0, ids.shape[1] :])}\n", flush=True)

    for name, folder in {"seed": base, **{domain: source.expert for domain, source in sources.items()}}.items():
        answers(name, load(folder, given.device))
    fleet = fleet_of(texts, Settings(base, 1, preset.statistics_tokens, given.device), 0, Path())
    for spec in given.recipes:
        with version(spec, fleet) as model:
            answers(spec, model)


if __name__ == "__main__":
    main()
