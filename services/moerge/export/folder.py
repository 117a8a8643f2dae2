"""A version's folder in the form that llama.cpp's converter reads right."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from moerge.errors import CheckpointError
from moerge.export.llama_cpp import Form
from moerge.models.families.family import Host
from moerge.models.stored import INDEX, StoredTensors
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.progress import Progress

_ADDED = "model-llama-cpp.safetensors"
_SINK = -1e30
"""The logarithm of a sink's weight: none."""


def converter_folder(version: Path, form: Form, folder: Path, progress: Progress) -> Path:
    """Writes `version` in another form into a new folder, with links to its unchanged files, and returns it.

    Raises:
        CheckpointError: a weight file is missing or damaged, or the shared expert is not zero.
    """
    folder.mkdir(parents=True)
    stored = StoredTensors(version)
    names = _names(stored, form)
    files = {_ADDED: _added(form)}
    for old, new in names.items():
        spec = stored.specs[old]
        plan = TensorPlan(new, spec.dtype, spec.shape, partial(stored.tensor, old))
        files.setdefault(spec.file.name, []).append(plan)
    changed = {_ADDED} | {spec.file.name for name, spec in stored.specs.items() if names.get(name) != name}
    _write(folder, {name: plans for name, plans in files.items() if plans and name in changed}, progress)
    where = {plan.name: name for name, plans in files.items() for plan in plans}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(form.config, indent=2), encoding="utf-8")
    for path in version.iterdir():
        is_wanted = path.is_file() and (path.suffix != ".safetensors" or path.name in files)
        if is_wanted and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path.resolve())
    return folder


def _write(folder: Path, files: Mapping[str, Sequence[TensorPlan]], progress: Progress) -> None:
    total = sum(plan.bytes for plans in files.values() for plan in plans)
    with progress.track("writing another form", total, "B") as tracker:
        for name, plans in files.items():
            with (folder / name).open("wb") as out:
                write_safetensors(out, plans, tracker.advance)


def _names(stored: StoredTensors, form: Form) -> dict[str, str]:
    """Tensor of the version -> its name in the other form; a dropped tensor must be zero."""
    renamed = _other_names(form, *form.renamed) if form.renamed else {}
    names = {old: new for old in stored.specs if (new := renamed.get(old, old)) is not None}
    for dropped in stored.specs.keys() - names.keys():
        if stored.tensor(dropped).any():
            raise CheckpointError("expected zeros, as moerge publishes it", where=f"{stored.path}: {dropped}")
    return names


def _other_names(form: Form, ours: Host, theirs: Host) -> dict[str, str | None]:
    """A host's name -> another's; None for its constants."""
    names: dict[str, str | None] = {}
    for layer in range(form.config["num_hidden_layers"]):
        names |= {constant.name.format(layer=layer): None for constant in ours.constants}
        names[ours.router.format(layer=layer)] = theirs.router.format(layer=layer)
        for expert in range(form.config["num_local_experts"]):
            for matrix, name in ours.experts.items():
                names[name.format(layer=layer, expert=expert)] = theirs.experts[matrix].format(
                    layer=layer, expert=expert
                )
    return names


def _added(form: Form) -> list[TensorPlan]:
    plans, heads = [], (form.config["num_attention_heads"],)
    if form.sinks:
        for layer in range(form.config["num_hidden_layers"]):
            name = f"model.layers.{layer}.self_attn.sinks"
            plans.append(TensorPlan(name, torch.float32, heads, lambda: torch.full(heads, _SINK)))
    if form.frequencies:
        divisors = torch.tensor(form.frequencies)  # [head_dim / 2] float32
        plans.append(TensorPlan("rope.freqs.weight", torch.float32, tuple(divisors.shape), lambda: divisors))
    return plans
