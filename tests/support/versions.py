"""A version's folder without a coordinator: every planned file written in its place."""

from contextlib import ExitStack
from pathlib import Path

import torch

from moerge.architectures.config import read_config
from moerge.architectures.families import family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.checkpoint.writer import write_safetensors
from moerge.files import atomic_file, file_sha256
from moerge.publish.version import FilePlan, config_files, expert_file, index_file, router_file, trunk_file
from moerge.statistics.accumulate import shard_sums
from moerge.trunk.domain_model import domain_model
from moerge.trunk.merge import merge_plan
from moerge_proto.statistics_file import Manifest, StatisticsFile, StatisticsSettings, exponent
from moerge_proto.versions import SolveOptions
from moerge_workers.shards import batches
from support.statistics import written

ROWS = [[(7 * row + 3 * column) % 256 for column in range(40)] for row in range(8)]


def merged_trunk(experts: list[Path], path: Path) -> Path:
    """The experts' average trunk as one file."""
    config = read_config(experts[0])
    plans = merge_plan([Checkpoint(each) for each in experts], family_of(config), config.num_hidden_layers, "average")
    with atomic_file(path) as out:
        write_safetensors(out, plans)
    return path


def contribution(expert: Path, trunk: Path, path: Path, domain: str, rows: list[list[int]] = ROWS) -> Path:
    """A statistics file of `rows`, as a worker of `domain` would compute it."""
    model, gains = domain_model(expert, trunk)
    layers, hidden = gains.shape
    bits = [exponent(hidden)] * layers
    sums = shard_sums(model, gains, bits, batches(rows, 512), len(rows))
    manifest = Manifest(
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


def published(experts: list[Path], folder: Path, top_k: int = 1) -> Path:
    """The version of `experts`, whose domains are d0, d1, …; every domain contributes other rows."""
    trunk = merged_trunk(experts, folder / "trunk")
    domains = [f"d{slot}" for slot in range(len(experts))]
    config = read_config(experts[0])
    family, checkpoint = family_of(config), Checkpoint(trunk)
    target = folder / "version"
    with ExitStack() as stack:
        files = []
        for slot, each in enumerate(experts):
            rows = [[(id_ + 31 * slot) % 256 for id_ in row] for row in ROWS]
            path = contribution(each, trunk, folder / domains[slot], domains[slot], rows)
            files.append(stack.enter_context(StatisticsFile(path)))
        weights = [trunk_file(checkpoint, "0" * 64)]
        for slot, each in enumerate(experts):
            weights.append(expert_file(Checkpoint(each), family, config.num_hidden_layers, slot, str(slot)))
        weights.append(router_file(files, domains, checkpoint, family, SolveOptions(top_k=top_k), "0" * 64))
        dtype = next(iter(checkpoint.specs.values())).dtype
        texts = config_files(experts[0], config, family, len(experts), top_k, dtype)
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
