"""`python -m trials.heterogeneous [RECIPE ...]`: experts of different architectures (MergeME section 3.2).

The demo's experts, but that of geography is narrower and deeper, and comes from a seed model of its own with the same
tokenizer. It is trained first, if missing. Recipes are compared with the experts on held-out text.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.files import cache_folder
from moerge.progress import progress
from moerge_lab.demo.train import DEMO
from moerge_lab.table.inputs import Inputs
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.runs import with_experts
from moerge_lab.training.job import Job, train
from moerge_lab.training.loop import Run
from trials.output import show, write

OTHER = "geography"
SHAPE = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64}
assert DEMO.scratch is not None
SEED, ON_ALL, ON_OWN = 2, DEMO.scratch.phase, DEMO.for_expert
OPTIONS = ("", ":skip=1", ":frozen=1", ":skip=1,frozen=1")
RECIPES = ("btm", "seed-continued", *(f"mergeme-heterogeneous{item}" for item in OPTIONS))


def other_expert(folder: Path, base: Path, rows: Mapping[str, Tensor]) -> Path:
    """The expert with another width and depth: trained on all domains' rows, then on its own."""
    if folder.exists():
        return folder
    config = AutoConfig.from_pretrained(base)
    config.update({**SHAPE, **HEADS})
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(config)
    for phase, sources in ((ON_ALL, [*rows.values()]), (ON_OWN, [rows[OTHER]])):
        steps, size = phase.tokens // (DEMO.batch_rows * DEMO.context), DEMO.batch_rows
        run = Run(steps, size, phase.learning_rate, DEMO.warmup, DEMO.weight_decay, seed=SEED)
        train(Job(model, run, sources, progress=progress(), title=f"training {OTHER}'s expert"))
    part = folder.with_name(f".{folder.name}.part")
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(base).save_pretrained(part)
    return part.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=[*RECIPES], metavar="RECIPE")
    parser.add_argument("--split", choices=("heldout", "tuning"), default="heldout")
    parser.add_argument("--tokens", type=int, default=20_000, help="scored tokens of each domain")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    chosen = parser.parse_args()
    disable_progress_bar()
    set_verbosity_error()
    folder, preset = cache_folder(), PRESETS["demo"]
    sources, base = preset.sources(folder, progress())
    cut = replace(preset.cut, tokens=chosen.tokens)
    settings = Settings(base, chosen.seeds, preset.statistics_tokens)
    texts = Inputs(sources, cut, settings).texts(chosen.split, training=True)
    rows = {name: text.training for name, text in texts.items()}
    other = other_expert(folder / "experts" / f"{base.parent.name}-{OTHER}-128x4", base, rows)
    texts[OTHER], sources[OTHER] = replace(texts[OTHER], expert=other), replace(sources[OTHER], expert=other)
    table = measure(with_experts(chosen.recipes, sources, base), texts, settings, progress())
    show(table)
    write(table.to_json(), chosen.json)


if __name__ == "__main__":
    main()
