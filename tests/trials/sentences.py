"""`python -m trials.sentences [RECIPE ...]`: the share of a text's tokens for its own domain's expert.

The first n tokens of a long text are routed like a text of n tokens. Texts begin at the start of a held-out document,
at one of its sentences or lines, or at one of a document from another source. Rows of counts are bounds: the domain
whose statistics documents give the token, or all tokens so far, the highest probability. The second table has shares by
layer, and of all experts.
"""

import argparse
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.files import cache_folder
from moerge.models.batches import pad
from moerge.progress import progress
from moerge.scoring.perplexity import Rows
from moerge.scoring.routers import routers
from moerge_lab.recipes.models import Routed
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import Settings, Texts, fleet_of
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.texts import Sources, read_texts

LENGTHS = (8, 16, 32, 64, 256)
SHORTEST, BATCH = 12, 16
BREAK = re.compile(r"\n\s*|[.;] +")


@dataclass(frozen=True)
class Kind:
    """The source of texts, and their beginning."""

    name: str
    files: Callable[[Sources], Sequence[str]]
    inside: bool


KINDS = (
    Kind("held-out, whole documents", lambda sources: sources.held_out, inside=False),
    Kind("held-out, from a sentence on", lambda sources: sources.held_out, inside=True),
    Kind("another source, from a sentence on", lambda sources: sources.other, inside=True),
)


def texts_of(kind: Kind, sources: Sources, tokenizer: PreTrainedTokenizerBase, most: int) -> list[list[int]]:
    """Up to `most` texts as token ids, at most as long as the longest length and a first token."""
    drawn = random.Random(0)  # noqa: S311  # no secret
    lines = [line for file in kind.files(sources) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    documents = [json.loads(line)["text"] for line in lines]
    drawn.shuffle(documents)
    rows = (tokenizer(_from(text, kind, drawn))["input_ids"][: LENGTHS[-1] + 1] for text in cycle(documents))
    return list(islice((row for row in islice(rows, 4 * most) if len(row) >= SHORTEST), most))


def _from(text: str, kind: Kind, drawn: random.Random) -> str:
    places = [result.end() for result in BREAK.finditer(text)] if kind.inside else []
    return text[drawn.choice(places) :] if places else text


def batches(rows: Sequence[list[int]]) -> Iterator[Rows]:
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        yield Rows(pad(some), [len(row) for row in some], "")


@torch.inference_mode()
def chosen(model: PreTrainedModel, rows: Sequence[list[int]]) -> list[Tensor]:
    """The first-choice expert of each token except the first, [L, T - 1] int64 for each row of T tokens."""
    seen: list[Tensor] = []
    handles = [
        router.register_forward_hook(lambda _, given, out: seen.append(out[2][:, 0])) for router in routers(model)
    ]
    result = []
    for batch in batches(rows):
        seen.clear()
        model.base_model(input_ids=batch.ids, use_cache=False)
        choices = torch.stack(seen).unflatten(1, batch.ids.shape)  # [L, B, T]
        result += [choices[:, row, 1:length] for row, length in enumerate(batch.lengths)]
    for handle in handles:
        handle.remove()
    return result


def by_counts(frequencies: Tensor, rows: Sequence[list[int]], *, so_far: bool) -> list[Tensor]:
    """The likeliest domain of each token except the first, alone or with those before it: [1, T - 1] per row.

    Args:
        frequencies: log p(token | domain), [D, V].
    """
    evidence = (frequencies[:, row[1:]] for row in rows)
    return [(item.cumsum(dim=1) if so_far else item).argmax(dim=0, keepdim=True) for item in evidence]


def frequencies_of(texts: Sequence[Texts], vocabulary: int) -> Tensor:
    """log p(token | domain) in statistics documents, half a count added: [D, V] float64."""
    ids = (torch.tensor(list(chain.from_iterable(text.statistics))) for text in texts)
    counts = torch.stack([torch.bincount(item, minlength=vocabulary) for item in ids]) + 0.5
    return (counts.double() / counts.sum(dim=1, keepdim=True)).log()


def shares(choices: Sequence[Tensor], length: int, domains: int) -> Tensor:
    """[L, D]: the share of each expert in the first tokens of texts."""
    those = torch.cat([choice[:, :length] for choice in choices], dim=1)  # [L, n]
    return torch.nn.functional.one_hot(those, domains).double().mean(dim=1)


def print_row(name: str, found: Mapping[str, Sequence[Tensor]]) -> None:
    """Own shares by length, as means over domains; and each domain's in the first 32 tokens."""

    def own(length: int) -> list[float]:
        return [
            100 * float(shares(item, length, len(found))[:, slot].mean()) for slot, item in enumerate(found.values())
        ]

    cells = [f"{fmean(own(length)):.0f} %" for length in LENGTHS]
    print(f"| {name} | {' | '.join(cells)} | {' / '.join(f'{item:.0f}' for item in own(32))} |", flush=True)


def print_layers(name: str, found: Mapping[str, Sequence[Tensor]]) -> None:
    for slot, (domain, choices) in enumerate(found.items()):
        by_layer = 100 * shares(choices, 32, len(found))
        layers = " / ".join(f"{share:.0f}" for share in by_layer[:, slot])
        print(f"| {name} | {domain} | {layers} | {' / '.join(f'{share:.0f}' for share in by_layer.mean(dim=0))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["recommended"])
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS))
    parser.add_argument("--texts", type=int, default=60, help="of each domain and kind")
    given = parser.parse_args()
    disable_progress_bar()
    set_verbosity_error()
    preset = PRESETS[given.preset]
    sources, base = preset.sources(cache_folder(), progress())
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    texts = {
        kind.name: {domain: texts_of(kind, source, tokenizer, given.texts) for domain, source in sources.items()}
        for kind in KINDS
    }
    read = {domain: read_texts(domain, source, preset.cut) for domain, source in sources.items()}
    settings, names = Settings(base, 1, preset.statistics_tokens), " / ".join(sources)
    layers: dict[str, dict[str, list[Tensor]]] = {}
    print(f"| | {' | '.join(f'{length} tokens' for length in LENGTHS)} | {names}, 32 tokens |")
    print("|---" * (2 + len(LENGTHS)) + "|")
    for spec in given.recipes:
        recipe, options, label = parse(spec)
        with TemporaryDirectory() as work:
            [(_, model)] = recipe.build(fleet_of(read, settings, 0, Path(work)), options)
            assert isinstance(model, Routed), label
            for kind, rows in texts.items():
                layers[f"{label}, {kind}"] = {domain: chosen(model.model, row) for domain, row in rows.items()}
                print_row(f"{label}, {kind}", layers[f"{label}, {kind}"])
    frequencies = frequencies_of([*read.values()], len(tokenizer))
    for name, so_far in (("counts of the token alone", False), ("counts of all tokens so far", True)):
        for kind, rows in texts.items():
            result = {domain: by_counts(frequencies, row, so_far=so_far) for domain, row in rows.items()}
            print_row(f"{name}, {kind}", result)
    print(f"\n| 32 tokens | text of | own share, layer by layer | {names} |")
    print("|---" * 4 + "|")
    for name, result in layers.items():
        print_layers(name, result)


if __name__ == "__main__":
    main()
