"""`strays`: distances of experts; stray and loss of each method's bodies, as measured by owners."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor

from moerge.errors import MoergeError
from moerge.merging.local import local_body
from moerge.models.dense import body_names, domain_model, expert_model
from moerge.models.dense_files import DenseBody
from moerge.models.distance import distance
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.progress import NoProgress
from moerge.scoring.draw import Cut
from moerge.scoring.perplexity import Score, Window, score, windows
from moerge.settings import named_values, single_values
from moerge.statistics.contribution import body_contribution
from moerge.trunk.methods.registry import METHODS
from moerge.trunk.stray import require_near
from moerge_lab.recipes.dense import takes_base
from moerge_lab.table.texts import Sources, read_texts
from moerge_lab.trials.inputs import first, inputs_of, print_head
from moerge_proto.bodies import BodyMethod, BodyOptions
from moerge_workers.contributing.body_check import TOKENS

Change = Callable[[Tensor], Tensor]
METHODS_AS_THEY_ARE: tuple[BodyMethod, ...] = ("seed", "average", "ties", "dare", "regmean")
BODIES: dict[str, tuple[BodyMethod, BodyOptions]] = {
    **{method: (method, BodyOptions()) for method in METHODS_AS_THEY_ARE},
    "weighted, one expert 3 times": ("weighted", BodyOptions()),
    "ties, scale 1": ("ties", BodyOptions(scale=1.0)),
    "dare, scale 1, retain 0.2": ("dare", BodyOptions(scale=1.0, retain=0.2)),
}
KINDS = {"self_attn": "attention", "mlp": "MLPs", "embed_tokens": "embedding", "lm_head": "head", "norm": "norms"}
"""A part of tensors' names -> their label."""


def _noise(size: float) -> Change:
    """Noise of this share of each tensor's norm."""
    generator = torch.Generator().manual_seed(0)

    def noisy(tensor: Tensor) -> Tensor:
        drawn = torch.randn(tensor.shape, generator=generator)
        return torch.add(tensor, drawn, alpha=size * float(tensor.norm() / drawn.norm()))

    return noisy


CRAFTED: tuple[tuple[str, str, Change], ...] = (
    ("attention output zero", "self_attn.o_proj.weight", lambda tensor: 0 * tensor),
    ("attention output negated", "self_attn.o_proj.weight", lambda tensor: -tensor),
    *((f"noise of {size}", "", _noise(size)) for size in (0.2, 0.5, 1.0)),
)
"""Label, ending of the changed tensors' names, and change of an owner's body."""


class Owner(NamedTuple):
    """An expert, its body contribution for comparing bodies, and the text to score, with the expert's score."""

    expert: DenseExpert
    grams: Path
    sample: Sequence[Window]
    own: Score

    @classmethod
    def of(cls, expert: DenseExpert, rows: Sequence[Sequence[int]], tokens: int, home: Path) -> "Owner":
        sample = windows(first(rows, TOKENS), 2**20, 2**20 - 1)
        grams = body_contribution(expert, first(rows, tokens), home / f"{expert.domain}.grams")
        with NoProgress().track("", 0, "") as tracker:
            return cls(expert, grams, sample, score(expert_model(expert), sample, tracker))

    def judge(self, path: Path) -> tuple[float, float, float, float]:
        """Tensor, size and row of a body's stray; the loss."""
        body = DenseBody(path, self.expert.config)
        stray = require_near(self.expert, body, float("inf"), self.grams)
        with NoProgress().track("", 0, "") as tracker:
            under = score(domain_model(self.expert, body)[0], self.sample, tracker)
        return stray.tensor.value, stray.size.value, stray.row.value, under.perplexity / self.own.perplexity

    def crafted(self, part: str, change: Change, path: Path) -> Path:
        """The expert's body, changed."""
        tensors = {name: self.expert.checkpoint.tensor(name) for name in body_names(self.expert)}
        save_file({name: change(item) if name.endswith(part) else item for name, item in tensors.items()}, path)
        return path


def _body(owners: Sequence[Owner], seed: Owner, name: str, folder: Path) -> Path:
    """A body of these owners' experts; of one, with the seed model."""
    method, options = BODIES[name]
    kind, merged = METHODS[method], owners if len(owners) > 1 else [*owners, seed]
    if "weights" in kind.needs:
        options = options.model_copy(update={"weights": {owners[0].expert.domain: 3.0}})
    contributions = [owner.grams for owner in merged] if kind.solved else []
    base = seed.expert if takes_base(method) else None
    return local_body([owner.expert for owner in merged], folder, method, contributions, options, base=base).path


def _largest(figures: Sequence[tuple[float, ...]]) -> str:
    most = map(max, zip(*figures, strict=True))
    return " | ".join(f"{item:.2f}" if item < 10 else f"{item:.0f}" if item < 1000 else "over 1000" for item in most)


def _print_distances(experts: Sequence[DenseExpert]) -> None:
    result = dict.fromkeys([*KINDS.values(), "a row of these"], 0.0)
    for one, two in combinations(experts, 2):
        for name in one.checkpoint.specs:
            kind = next(label for part, label in KINDS.items() if part in name)
            apart = distance(one.checkpoint.tensor(name), two.checkpoint.tensor(name), rows=name in (EMBEDDING, HEAD))
            for label, value in ((kind, apart.whole), ("a row of these", apart.row)):
                result[label] = max(result[label], value)
    print_head("largest distance", *result)
    print(f"| of two experts | {' | '.join(f'{item:.3f}' for item in result.values())} |\n")


def strays(
    expert: Annotated[list[str] | None, typer.Option(help="DOMAIN=DIR. Default: the small experts.")] = None,
    text: Annotated[list[str] | None, typer.Option(help="DOMAIN=FILES")] = None,
    seed: Annotated[Path | None, typer.Option(help="Folder of your experts' seed model.")] = None,
    tokens: Annotated[int, typer.Option(help="Of each owner's text; default: 64 H of the small experts.")] = 12_288,
) -> None:
    """Measure distances of experts, and stray and loss of each method's bodies, as owners do.

    Each body is merged from all experts, and for each owner from all others; if that is one, from it and the seed
    model. A crafted body is the owner's with a change. Figures are the largest of all owners. The loss is the
    perplexity of text under body and own MLPs, divided by the expert's.
    """
    texts, folders = named_values("text", text or []), single_values("expert", expert or [])
    sources: Mapping[str, Sources] = {name: Sources(Path(folder), texts[name]) for name, folder in folders.items()}
    if not sources:
        _, sources, seed, _ = inputs_of("small")
    elif seed is None:
        raise MoergeError("the seed model is missing", where="`seed`", todo="name its folder")
    with TemporaryDirectory() as folder:
        home = Path(folder)
        rows = {name: read_texts(name, source, Cut()).statistics for name, source in sources.items()}
        experts = [DenseExpert(name, source.expert) for name, source in sources.items()]
        _print_distances(experts)
        owners = [Owner.of(item, rows[item.domain], tokens, home) for item in experts]
        mixed = [row for several in zip(*rows.values(), strict=False) for row in several]
        base = Owner.of(DenseExpert("seed", seed), mixed, tokens, home)
        print_head("body", "tensor", "size", "row", "loss", "tensor, newcomer", "size", "row", "loss")
        for name in BODIES:
            whole = _body(owners, base, name, home / "whole")
            members, newcomers = [owner.judge(whole) for owner in owners], list[tuple[float, ...]]()
            for owner in owners:
                others = [item for item in owners if item is not owner]
                newcomers.append(owner.judge(_body(others, base, name, home / "others")))
            print(f"| {name} | {_largest(members)} | {_largest(newcomers)} |", flush=True)
        for name, part, change in CRAFTED:
            figures = [owner.judge(owner.crafted(part, change, home / "crafted")) for owner in owners]
            print(f"| crafted: {name} | {_largest(figures)} |", flush=True)
