"""`moerge table`"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers import AutoTokenizer
from transformers.utils import logging

from moerge.checkpoint.sources import checkpoint_folder
from moerge.documents import texts_of
from moerge.errors import MoergeError
from moerge.evaluate.perplexity import Window, windows
from moerge.evaluate.table import measure
from moerge.files import atomic_file
from moerge.progress import progress
from moerge_proto.versions import Lineage

app = typer.Typer()


def _pairs(option: str, values: list[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, _, place = value.partition("=")
        if not place:
            raise MoergeError(f"expected NAME=PATH, found {value!r}", where=option)
        pairs[name] = place
    return pairs


def _files(option: str, values: list[str]) -> dict[str, Path]:
    files = {name: Path(place) for name, place in _pairs(option, values).items()}
    for name, path in files.items():
        if not path.is_file():
            raise MoergeError(f"no such file: {path}", where=f"{option} {name}")
    return files


def _in_slot_order(version: Path, experts: dict[str, Path]) -> dict[str, Path]:
    """The experts as the version's slots have them, whatever the order of the options."""
    path = version / "moerge.json"
    if not path.is_file():
        raise MoergeError("not found", where=str(path), todo="name the folder of a version that moerge published")
    domains = Lineage.model_validate_json(path.read_text(encoding="utf-8")).domains
    if set(domains) != experts.keys():
        raise MoergeError(f"expected {', '.join(domains)}, found {', '.join(experts)}", where="--expert")
    return {domain: experts[domain] for domain in domains}


def _cut(tokenizer_folder: Path, text: Path, context: int, stride: int, tokens: int) -> list[Window]:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True)
    cut, scored = [], 0
    for window in windows([tokenizer(each)["input_ids"] for each in texts_of([text])], context, stride):
        if scored >= tokens:
            break
        cut.append(window)
        scored += window.scored
    return cut


@app.callback(invoke_without_command=True)
def table(
    version: Annotated[Path, typer.Option(help="Folder of a published version.")],
    expert: Annotated[list[str], typer.Option(help="NAME=DIR, or NAME=HUB/ID, of each dense expert.")],
    text: Annotated[list[str], typer.Option(help="NAME=FILE of each domain's held-out text, JSON Lines with 'text'.")],
    context: Annotated[int, typer.Option(help="Tokens that the model sees at once.")] = 256,
    stride: Annotated[int, typer.Option(help="Tokens between the starts of two windows.")] = 128,
    tokens: Annotated[int, typer.Option(help="Tokens to score per domain, at most.")] = 100_000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Prints the paper's table: normalised perplexity of each dense expert, model averaging, random routing, the
    oracle and the version, per domain; and which experts the routers chose.

    Example: moerge table --version v1 --expert code=code/ --text code=heldout.jsonl --expert law=law/ --text law=l
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    experts = {name: checkpoint_folder(place) for name, place in _pairs("--expert", expert).items()}
    texts = _files("--text", text)
    if experts.keys() != texts.keys():
        raise MoergeError(f"names differ: {sorted(experts)} and {sorted(texts)}", where="--expert, --text")
    experts = _in_slot_order(version, experts)
    cuts = {name: _cut(experts[name], texts[name], context, stride, tokens) for name in experts}
    result = measure(version, experts, cuts, progress())
    for each in result.render():
        Console().print(each)
    if json_file is not None:
        with atomic_file(json_file) as out:
            out.write((json.dumps(result.to_json(), indent=2) + "\n").encode())
