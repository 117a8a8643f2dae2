"""The presets of `moerge table --preset`: domains, the training of their experts, and the measurement."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from moerge.errors import MoergeError
from moerge.progress import Progress
from moerge.scoring.draw import Cut
from moerge_lab.experts import corpora
from moerge_lab.experts.smollm import END
from moerge_lab.experts.train import Phase, Scratch, Training, train
from moerge_lab.table.texts import Sources


@dataclass(frozen=True)
class Preset:
    """Domains, their experts' training, and defaults of the table's options; `device` is also that of the training."""

    domains: tuple[str, ...]
    training: Training
    cut: Cut
    statistics_tokens: int
    device: str = "cpu"

    def sources(self, folder: Path, progress: Progress, device: str | None = None) -> tuple[dict[str, Sources], Path]:
        """Each domain's expert and texts, and the folder of the seed model. Missing ones are made in `folder`."""
        device = device or self.device
        if device.startswith("cuda") and not torch.cuda.is_available():
            todo = "run it on a machine with a GPU for torch, or use `preset` standard"
            raise MoergeError("needs a GPU, but torch finds none", where="`preset`", todo=todo)
        texts = corpora.write(folder / "texts", self.domains)
        others = corpora.write_other(folder / "texts", self.domains)
        trained = train(texts, folder / "experts", progress, self.training, device)
        sources = {}
        for domain, files in texts.items():
            kinds = files["statistics"], files["heldout"], others[domain], files["tuning"], files["train"]
            sources[domain] = Sources(trained.experts[domain], *([str(file)] for file in kinds))
        return sources, trained.seed


_SMOLLM = Preset(
    corpora.DOMAINS,
    Training(None, for_expert=Phase(tokens=60_000, learning_rate=2e-4), end=END, context=512, batch_rows=2),
    Cut(context=1024, stride=512, tokens=10_000),
    statistics_tokens=10_000,
)
PRESETS = {
    "small": Preset(
        corpora.DOMAINS,
        Training(
            Scratch(2048, 192, 1024, layers=3, heads=3, phase=Phase(tokens=1_200_000, learning_rate=4e-3)),
            for_expert=Phase(tokens=160_000, learning_rate=1e-3),
        ),
        Cut(context=256, stride=128, tokens=20_000),
        statistics_tokens=10_000,
    ),
    "standard": Preset(
        (*corpora.DOMAINS, *corpora.FURTHER),
        Training(
            Scratch(4096, 256, 768, layers=6, heads=4, phase=Phase(tokens=1_600_000, learning_rate=3e-3)),
            for_expert=Phase(tokens=200_000, learning_rate=1e-3),
        ),
        Cut(context=256, stride=128, tokens=20_000),
        statistics_tokens=20_000,
    ),
    "smollm": _SMOLLM,
    "smollm-mlp": replace(
        _SMOLLM, training=replace(_SMOLLM.training, for_expert=Phase(60_000, learning_rate=4e-4), mlps=True)
    ),
    "smollm-lora": replace(
        _SMOLLM, training=replace(_SMOLLM.training, for_expert=Phase(60_000, learning_rate=4e-3), mlps=True, rank=16)
    ),
    "paper": Preset(
        (*corpora.DOMAINS, *corpora.FURTHER),
        Training(
            Scratch(8192, 768, 2912, layers=12, heads=12, phase=Phase(tokens=10_000_000, learning_rate=6e-4)),
            for_expert=Phase(tokens=2_000_000, learning_rate=3e-4),
            context=1024,
            batch_rows=16,
            bfloat16=True,
        ),
        Cut(context=1024, stride=512, tokens=30_000),
        statistics_tokens=30_000,
        device="cuda",
    ),
}
"""`small` has 2.6 M parameters, `standard` 6 M, `smollm` a pretrained seed of 135 M, `paper` 115 M as in DUME section
3.1. Experts of `smollm-mlp` and `smollm-lora` keep their seed's body and head."""
