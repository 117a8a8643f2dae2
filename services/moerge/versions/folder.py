"""A version as a folder, without a coordinator: every planned file written in its place."""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from moerge.files import atomic_file, file_sha256
from moerge.models.config import read_config, trunk_config
from moerge.models.families import EMBEDDING, family_of
from moerge.models.reader import Checkpoint
from moerge.models.writer import write_safetensors
from moerge.trunk.merge import AVERAGE, Method, merge_plan
from moerge.versions.files import config_files, expert_file, index_file, router_file, trunk_files

_UNNAMED = "0" * 64  # what is not kept by its name


def write_trunk(experts: Sequence[Path], path: Path, method: Method = AVERAGE) -> Path:
    """The experts' trunk, by default their average, as one file."""
    config = read_config(experts[0])
    checkpoints = [Checkpoint(each) for each in experts]
    plans = merge_plan(checkpoints, family_of(config), config.num_hidden_layers, method)
    with atomic_file(path) as out:
        write_safetensors(out, plans)
    return path


def write_version(
    experts: Sequence[Path],
    trunk: Path,
    routers: Callable[[], Sequence[Tensor]],
    folder: Path,
    top_k: int = 1,
    *,
    tied: bool = False,
) -> Path:
    """Writes the version of `experts`, in the order of their slots, under a trunk's file; returns its folder.

    `routers` gives one [D, H] per layer.
    """
    merged = Checkpoint(trunk)
    config = trunk_config(read_config(experts[0]), merged.shapes)
    family, layers = family_of(config), config.num_hidden_layers
    weights = trunk_files(merged, family, config, _UNNAMED, file_sha256(trunk), tied=tied)
    for slot, each in enumerate(experts):
        weights.append(expert_file(Checkpoint(each), family, layers, slot, str(slot)))
    shape = (len(experts), config.hidden_size)
    weights.append(router_file(routers, layers, shape, family, merged.specs[EMBEDDING].dtype, _UNNAMED))
    tokenizer = max(experts, key=lambda each: int(read_config(each).vocab_size))
    texts = config_files(tokenizer, config, family, len(experts), top_k, merged, tied=tied)
    for plan in [*weights, index_file(weights), *texts]:
        with atomic_file(folder / plan.name) as out:
            plan.write(out)
    return folder
