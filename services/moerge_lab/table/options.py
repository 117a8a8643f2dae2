"""Options that several commands of `moerge table` have."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

Experts = Annotated[
    list[str] | None, typer.Option(help="NAME=DIR, or NAME=HUB/ID, of each domain's dense expert or PEFT adapter.")
]
Text = Annotated[
    list[str] | None,
    typer.Option(help="NAME=FILES of each domain: a file, folder or pattern as in `worker run --data`; repeat."),
]
HeldOut = Annotated[
    list[str] | None, typer.Option(help="NAME=FILES to score. Default: a tenth of the documents of --text.")
]
Other = Annotated[list[str] | None, typer.Option(help="NAME=FILES of each domain's other text, to specialise on.")]
Base = Annotated[str | None, typer.Option(help="DIR or HUB/ID of the experts' seed model.")]
PresetName = Annotated[
    Literal["demo", "standard", "smollm", "smollm-mlp", "smollm-lora", "paper"] | None,
    typer.Option(help="Ready-made experts, texts and base; missing experts are trained."),
]
Recipes = Annotated[
    list[str] | None, typer.Option(help="NAME, or NAME:OPTION=VALUE,… such as dume:k=2,lambda=0.1; repeat.")
]
StatisticsTokens = Annotated[
    int | None,
    typer.Option(min=0, help="Statistics tokens per domain, drawn by seed; 0: all. Default: 20000, or a preset's."),
]
Context = Annotated[
    int | None, typer.Option(min=2, help="Context of the models, in tokens. Default: 256, or a preset's.")
]
Tokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens to score per domain, over all documents. Default: 20000, or a preset's."),
]
Device = Annotated[str | None, typer.Option(help="Device of the models: cpu or cuda. Default: cpu, or a preset's.")]
JsonFile = Annotated[Path | None, typer.Option(help="File for the figures as JSON.")]
SvgFile = Annotated[Path | None, typer.Option("--svg", help="File for the figures as SVG.")]


@dataclass(frozen=True)
class Given:
    """Values of the shared options; None: the default, or the preset's."""

    expert: Sequence[str] | None = None
    text: Sequence[str] | None = None
    held_out: Sequence[str] | None = None
    base: str | None = None
    statistics_tokens: int | None = None
    context: int | None = None
    tokens: int | None = None
    device: str | None = None
    preset: str | None = None
    other: Sequence[str] | None = None
    seeds: int = 1
