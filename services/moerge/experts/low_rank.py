"""Experts of low rank: every MLP matrix is the base's plus a low-rank part of its difference from the base.

The factors of that part are stored as a PEFT adapter of the base, together with all other tensors that differ from the
base's. The expert is that adapter, merged: one rounding to the expert's number format. A matrix whose factors would
have as many numbers as it has itself stays as it is.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from moerge.experts.factors import KEPT, Factors, factors
from moerge.files import atomic_file, sync_folder
from moerge.models.adapters import DTYPE, PREFIX, WEIGHTS
from moerge.models.expert_folder import (
    DenseExpert,
    check_expert,
    dense_folder,
    merged_weights,
    remove_dense,
    small_files,
)
from moerge.models.families import EMBEDDING, HEAD
from moerge.models.low_rank import FIELD, LowRank
from moerge.models.reader import Checkpoint
from moerge.models.sources import ADAPTER_CONFIG, BASE
from moerge.models.writer import NAMES, TensorPlan, write_safetensors
from moerge.progress import Progress
from moerge_proto.digests import digest_of
from moerge_proto.experts import Rank

_DIGITS, _PARTS = 16, "parts"
_NAME = "[0-9a-f]" * _DIGITS
_NO_MODULES = "dummy-target-modules"
"""PEFT's name for an adapter of whole tensors alone."""


def low_rank_expert(own: DenseExpert, base: DenseExpert, rank: Rank, home: Path, progress: Progress) -> DenseExpert:
    """The expert of low rank, in a folder of its own below `home`; an existing one is reused.

    The folder is an adapter of the base with all small files of the expert; config.json has its record, `LowRank`. In
    memory are two matrices and the decomposition of their difference. The domain's other folders of this kind are
    removed. If the rank makes no matrix smaller, or the expert is the base, the expert itself is returned.

    Raises:
        CheckpointError, IncompatibleExpertError: the base is no model of the expert's architecture and tokenizer.
    """
    check_expert(base.folder, own.folder, f"base {base.folder}", "pad")
    base = replace(base, folder=dense_folder(base.folder, home / "base"))
    place = str(base.folder.resolve())
    name = digest_of({"expert": own.digest, "base": base.digest, "place": place, "rank": rank, "kept": str(KEPT)})
    folder = home / f"low-rank-{own.domain}-{name[:_DIGITS]}"
    for other in home.glob(f"low-rank-{own.domain}-{_NAME}"):
        if other != folder:
            shutil.rmtree(other)
    if not folder.is_dir():
        part = home / f".{folder.name}.part"
        shutil.rmtree(part, ignore_errors=True)  # of a killed run
        part.mkdir(parents=True)
        if not _write(own, base, rank, part, progress):
            shutil.rmtree(part)
            return own
        os.replace(part, folder)
        sync_folder(home)
    return replace(own, folder=folder, whole=own)


def remove_low_rank(home: Path) -> None:
    """Removes the folders that `low_rank_expert` made below `home`, and `home` if nothing is left."""
    for made in (*home.glob(f"low-rank-*-{_NAME}"), *home.glob(f".low-rank-*-{_NAME}.part")):
        shutil.rmtree(made)
    remove_dense(home / "base")
    with suppress(OSError):
        home.rmdir()


@dataclass
class _Reduction:
    """The tensors of the adapter.

    Attributes:
        plans: of its file.
        modules: those with factors, and their ranks.
        ranks: of every MLP matrix; 0: equal to the base's, None: whole.
        untied: embedding and head, if the base ties them and the expert doesn't.
    """

    untied: Collection[str]
    plans: list[TensorPlan] = field(default_factory=list)
    modules: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, int | None] = field(default_factory=dict)


def _write(own: DenseExpert, base: DenseExpert, rank: Rank, folder: Path, progress: Progress) -> bool:
    """Writes the folder. False: there is nothing to write, or no matrix is smaller."""
    found = _reduced(own, base, rank, folder / _PARTS, progress)
    if not found.plans or all(each is None for each in found.ranks.values()):
        return False
    with atomic_file(folder / WEIGHTS) as out:
        write_safetensors(out, found.plans, metadata={DTYPE: NAMES[_dtype(own)]})
    shutil.rmtree(folder / _PARTS, ignore_errors=True)
    _write_json(folder / ADAPTER_CONFIG, _settings(base.folder, found))
    merged = Checkpoint(folder)
    total = sum(spec.bytes for spec in merged.specs.values())
    with (
        progress.track(f"merging {own.domain} with its base", total, "B") as tracker,
        Path(os.devnull).open("wb") as nowhere,
    ):
        weights = merged_weights(merged, nowhere, tracker.advance)
    content = small_files(own.folder)
    for name, data in content.items():
        with atomic_file(folder / name) as out:
            out.write(data)
    record = _record(own, base, rank, found.ranks, weights)
    _write_json(folder / "config.json", {**json.loads(content["config.json"]), FIELD: record.model_dump(mode="json")})
    return True


def _reduced(own: DenseExpert, base: DenseExpert, rank: Rank, parts: Path, progress: Progress) -> _Reduction:
    mlp, theirs = set(own.family.dense_mlp_names(own.config.num_hidden_layers)), base.checkpoint
    sources = _sources(own.checkpoint, theirs)
    found = _Reduction({EMBEDDING, HEAD} if HEAD in sources and HEAD not in theirs.specs else ())
    total = sum(own.checkpoint.specs[source].bytes for source in sources.values())
    with progress.track(f"reducing MLPs of {own.domain} to rank {rank}", total, "B") as tracker:
        for name, source in sorted(sources.items()):
            tensor = own.checkpoint.tensor(source)
            same = name not in found.untied and tensor.dtype == _dtype(own) and _is_equal(theirs, name, tensor)
            made = None if same or name not in mlp else factors(theirs.tensor(name), tensor, rank)
            if name in mlp:
                found.ranks[name] = 0 if same else made and made.rank
            if made is not None:
                module = name.removesuffix(".weight")
                found.modules[module] = made.rank
                found.plans += _kept(made, PREFIX + module, parts / f"{len(found.modules)}.safetensors")
            elif not same:
                whole = partial(own.checkpoint.tensor, source)
                found.plans.append(TensorPlan(PREFIX + name, tensor.dtype, tuple(tensor.shape), whole))
            tracker.advance(tensor.nbytes)
    return found


def _dtype(own: DenseExpert) -> torch.dtype:
    """The number format of tensors that the adapter lacks."""
    return own.checkpoint.specs[EMBEDDING].dtype


def _sources(own: Checkpoint, base: Checkpoint) -> dict[str, str]:
    """Names of the merged tensors -> those of the expert's. A tied head is the embedding."""
    names = {name: name for name in own.specs}
    if HEAD in base.specs:
        return {HEAD: EMBEDDING, **names}
    if HEAD in names and _is_equal(own, EMBEDDING, own.tensor(HEAD)):
        del names[HEAD]
    return names


def _is_equal(checkpoint: Checkpoint, name: str, tensor: Tensor) -> bool:
    spec = checkpoint.specs.get(name)
    return spec is not None and spec.shape == tensor.shape and bool((checkpoint.tensor(name) == tensor).all())


def _kept(found: Factors, module: str, path: Path) -> list[TensorPlan]:
    """Keeps a matrix's factors in a file, to have few in memory. Returns the plans of their tensors."""
    path.parent.mkdir(exist_ok=True)
    named = {f"{module}.lora_A.weight": found.down, f"{module}.lora_B.weight": found.up}
    save_file(named, path)
    kept = Checkpoint(path)
    return [TensorPlan(name, spec.dtype, spec.shape, partial(kept.tensor, name)) for name, spec in kept.specs.items()]


def _settings(base: Path, found: _Reduction) -> dict[str, object]:
    """The adapter's settings, as PEFT reads them; scales are 1."""
    modules = found.modules
    common = Counter(modules.values()).most_common(1)[0][0] if modules else 1
    others = {module: rank for module, rank in modules.items() if rank != common}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        BASE: str(base.resolve()),
        "r": common,
        "lora_alpha": common,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": list(modules) or _NO_MODULES,
        "modules_to_save": sorted(name.removesuffix(".weight") for name in found.untied) or None,
        "inference_mode": True,
    }


def _record(own: DenseExpert, base: DenseExpert, rank: Rank, ranks: Mapping[str, int | None], weights: str) -> LowRank:
    found = [each for each in ranks.values() if each is not None]
    shapes = {name: own.checkpoint.specs[name].shape for name in ranks}
    return LowRank(
        rank=rank,
        base=base.digest,
        expert=own.digest,
        weights=weights,
        least=min(found),
        most=max(found),
        unchanged=len(ranks) - len(found),
        numbers=sum(_numbers(shapes[name], each) for name, each in ranks.items()),
        whole=sum(_numbers(shape, None) for shape in shapes.values()),
    )


def _numbers(shape: tuple[int, ...], rank: int | None) -> int:
    """Numbers of a matrix's factors, or without a rank of the matrix."""
    return torch.Size(shape).numel() if rank is None else rank * sum(shape)


def _write_json(path: Path, content: object) -> None:
    with atomic_file(path) as out:
        out.write((json.dumps(content, indent=2) + "\n").encode())
