"""A version's folder without a coordinator: every planned file written in its place."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from moerge.architectures.config import read_config
from moerge.architectures.families import EMBEDDING, family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.checkpoint.writer import write_safetensors
from moerge.files import atomic_file, file_sha256
from moerge.publish.version import FilePlan, config_files, expert_file, index_file, router_file, trunk_files
from moerge.routers.layers import solve_layers
from moerge.statistics.accumulate import shard_sums
from moerge.statistics.bounds import feature_exponents, feature_gains
from moerge.trunk.domain_model import domain_model
from moerge.trunk.merge import AVERAGE, Method, merge_plan
from moerge_proto.statistics_file import RouterManifest, StatisticsFile, StatisticsSettings
from moerge_proto.versions import SolveOptions
from moerge_workers.shards import batches
from support.statistics import written

ROWS = [[(7 * row + 3 * column) % 256 for column in range(40)] for row in range(8)]


def merged_trunk(experts: Sequence[Path], path: Path, method: Method = AVERAGE, *, own_head: bool = False) -> Path:
    """The experts' trunk, by default their average, as one file."""
    config = read_config(experts[0])
    checkpoints = [Checkpoint(each) for each in experts]
    plans = merge_plan(checkpoints, family_of(config), config.num_hidden_layers, method, own_head=own_head)
    with atomic_file(path) as out:
        write_safetensors(out, plans)
    return path


def contribution(
    expert: Path,
    trunk: Path,
    path: Path,
    domain: str,
    rows: list[list[int]] = ROWS,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A statistics file of `rows`, as a worker of `domain` would compute it."""
    model, gains = domain_model(expert, trunk, dtype)
    layers, hidden = gains.shape
    config = read_config(expert)
    bits = feature_exponents(Checkpoint(trunk), family_of(config), config)
    sums = shard_sums(model, gains, bits, batches(rows, 512), len(rows))
    manifest = RouterManifest(
        owner=f"{domain}-owner",
        expert=file_sha256(expert / "model.safetensors"),
        domain=domain,
        trunk=file_sha256(trunk),
        settings=StatisticsSettings(),
        hidden_size=hidden,
        layers=layers,
        exponents=bits,
        tokens=sums.tokens,
        documents=sums.documents,
        shards=["0" * 64],
    )
    return written(path, manifest, sums)


def contributed_rows(slot: int) -> list[list[int]]:
    """What the domain of a slot contributes in `published`."""
    return [[(id_ + 31 * slot) % 256 for id_ in row] for row in ROWS]


def published(
    experts: Sequence[Path],
    folder: Path,
    top_k: int = 1,
    *,
    tied: bool = False,
    rows: Sequence[list[list[int]]] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """The version of `experts`, whose domains are d0, d1, …; each contributes its `rows`, by default fixed ones.

    `dtype` is what the statistics are computed in.
    """
    path = merged_trunk(experts, folder / "trunk")
    domains = [f"d{slot}" for slot in range(len(experts))]
    config = read_config(experts[0])
    family, checkpoint, layers = family_of(config), Checkpoint(path), config.num_hidden_layers
    target = folder / "version"
    options = SolveOptions(top_k=top_k)
    with ExitStack() as stack:
        files = []
        for slot, each in enumerate(experts):
            own = rows[slot] if rows else contributed_rows(slot)
            sent = contribution(each, path, folder / domains[slot], domains[slot], own, dtype)
            files.append(stack.enter_context(StatisticsFile(sent)))
        routers, _ = solve_layers(files, domains, feature_gains(checkpoint, family, config), options)
    weights = trunk_files(checkpoint, family, config, "0" * 64, file_sha256(path), tied=tied)
    for slot, each in enumerate(experts):
        weights.append(expert_file(Checkpoint(each), family, layers, slot, str(slot)))
    shape = (len(experts), config.hidden_size)
    kept = checkpoint.specs[EMBEDDING].dtype
    weights.append(router_file(lambda: routers, layers, shape, family, kept, "0" * 64))
    texts = config_files(experts[0], config, family, len(experts), top_k, checkpoint, tied=tied)
    for plan in [*weights, index_file(weights), *texts]:
        _write(plan, target / plan.name)
    return target


def _write(plan: FilePlan, path: Path) -> None:
    with atomic_file(path) as out:
        digest = plan.write(out)
    assert digest == file_sha256(path)


def logits(model: torch.nn.Module) -> torch.Tensor:
    """Logits [8, 40, V] of the fixed rows."""
    with torch.inference_mode():
        result: torch.Tensor = model(torch.tensor(ROWS), use_cache=False).logits
    return result
