"""Parsed options of `moerge table`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from moerge.errors import MoergeError
from moerge.models.sources import checkpoint_folder
from moerge.settings import named_values, single_values
from moerge_lab.table.measure import Texts
from moerge_lab.table.texts import Cut, Sources, Split, read_texts, require_one_tokenizer, switched
from moerge_proto.tuned import TunedMixture, tuned
from moerge_proto.versions import Lineage


def sources(expert: Sequence[str], **files: Sequence[str]) -> dict[str, Sources]:
    """Each domain's expert and files; `files` are the options text, held_out and other."""
    experts = single_values("--expert", expert)
    if not files["text"] and not files["held_out"]:
        todo = "name each domain's text with --text NAME=FILES, or use a --preset"
        raise MoergeError("no text is given", where="--text", todo=todo)
    places = {kind: named_values(_option(kind), values) for kind, values in files.items()}
    for kind, found in places.items():
        if found and found.keys() != experts.keys():
            names = f"{', '.join(found)}, but {', '.join(experts) or 'none'} by --expert"
            raise MoergeError(f"names differ: {names}", where=_option(kind), todo="name the same domains")
    return {
        name: Sources(checkpoint_folder(folder), **{kind: found.get(name, ()) for kind, found in places.items()})
        for name, folder in experts.items()
    }


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def in_slot_order(version: Path, sources: Mapping[str, Sources]) -> dict[str, Sources]:
    """The domains in the version's slot order."""
    path = version / "moerge.json"
    if not path.is_file():
        raise MoergeError("not found", where=str(path), todo="name the folder of a version published by moerge")
    content = path.read_bytes()
    made = tuned(content)
    if isinstance(made, TunedMixture):
        todo = "name the folder of a version; --recipe bam, bam-adapters and bts train and score mixtures"
        raise MoergeError("is a mixture", where=str(version), todo=todo)
    domains = (Lineage.model_validate_json(content) if made is None else made.parent).domains
    if set(domains) != sources.keys():
        raise MoergeError(f"expected {', '.join(domains)}, found {', '.join(sources)}", where="--expert")
    return {domain: sources[domain] for domain in domains}


def values(sweep: str) -> tuple[str, list[float]]:
    """The option of a sweep, and its values."""
    option, _, values = sweep.partition("=")
    try:
        return option, [float(value) for value in values.split(",")]
    except ValueError as error:
        raise MoergeError(f"expected OPTION=NUMBER,NUMBER,…, found {sweep!r}", where="--sweep") from error


def texts(
    sources: Mapping[str, Sources], cut: Cut, split: Split, *, switch: bool, training: bool = False
) -> dict[str, Texts]:
    if switch:
        every = replace(cut, tokens=sys.maxsize)
        return switched(texts(sources, every, split, switch=False, training=training), cut)
    require_one_tokenizer(sources)
    return {name: read_texts(name, each, cut, split, training=training) for name, each in sources.items()}
