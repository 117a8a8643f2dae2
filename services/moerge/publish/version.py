"""The files of a version. A plan names its content before it is written, so that what exists is found, not made."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from transformers import PretrainedConfig

from moerge.architectures.config import published_config
from moerge.architectures.families import Family
from moerge.checkpoint.reader import Checkpoint
from moerge.checkpoint.writer import TensorPlan, write_safetensors
from moerge.routers.ridge import solve
from moerge.routers.sums import ridge_system
from moerge_proto.digests import digest_of, sha256_hex
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import SolveOptions

TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
TRUNK_FILE, ROUTER_FILE, INDEX_FILE = (
    "model-trunk.safetensors",
    "model-router.safetensors",
    "model.safetensors.index.json",
)
_LAYOUT = 1  # raise when the bytes of a planned file change for the same inputs


@dataclass(frozen=True)
class FilePlan:
    """One file of a version.

    Attributes:
        name: in the version's folder.
        key: a digest of everything that the content is a function of.
        write: writes the content and returns its SHA-256.
        tensors: names and bytes of the tensors in it.
    """

    name: str
    key: str
    write: Callable[[BinaryIO], str]
    tensors: dict[str, int]


def _weights(name: str, plans: Sequence[TensorPlan], **inputs: object) -> FilePlan:
    key = digest_of({"layout": _LAYOUT, "name": name, **inputs})  # type: ignore[dict-item]  # callers pass JSON
    return FilePlan(name, key, lambda out: write_safetensors(out, plans), {plan.name: plan.bytes for plan in plans})


def trunk_file(trunk: Checkpoint, digest: str) -> FilePlan:
    """The trunk under its published names, always with a head of its own."""
    sources = {name: name for name in sorted(trunk.specs)}
    sources.setdefault("lm_head.weight", "model.embed_tokens.weight")
    plans = [_copy(trunk, source, name) for name, source in sources.items()]
    return _weights(TRUNK_FILE, plans, trunk=digest)


def expert_file(expert: Checkpoint, family: Family, layers: int, slot: int, digest: str) -> FilePlan:
    """One expert's MLPs under the names of slot `slot`."""
    names = [pair for layer in range(layers) for pair in family.mlp_names(layer, slot).items()]
    plans = [_copy(expert, dense, published) for dense, published in names]
    return _weights(f"model-expert-{slot:05d}.safetensors", plans, expert=digest, family=family.model_type)


def _copy(source: Checkpoint, name: str, target: str) -> TensorPlan:
    spec = source.specs[name]
    return TensorPlan(target, spec.dtype, spec.shape, lambda: source.tensor(name))


def router_file(
    files: Sequence[StatisticsFile],
    domains: Sequence[str],
    trunk: Checkpoint,
    family: Family,
    options: SolveOptions,
    lineage: str,
    solved: Callable[[int], None] = lambda layer: None,
) -> FilePlan:
    """The routers, [D, H] per layer in the trunk's dtype, each solved when its turn to be written comes."""
    layers, hidden = files[0].manifest.layers, files[0].manifest.hidden_size

    def plan(layer: int) -> TensorPlan:
        gain = family.gain.format(layer=layer)
        dtype = trunk.specs[gain].dtype

        def compute() -> torch.Tensor:
            gram, cross = ridge_system(files, domains, layer, trunk.tensor(gain))
            router = solve(gram, cross, options.ridge_lambda) / options.temperature
            solved(layer)
            return router.T.contiguous().to(dtype)

        return TensorPlan(family.router.format(layer=layer), dtype, (len(domains), hidden), compute)

    return _weights(ROUTER_FILE, [plan(layer) for layer in range(layers)], lineage=lineage)


def text_file(name: str, text: str) -> FilePlan:
    """A small file whose content is known."""
    data = text.encode()

    def write(out: BinaryIO) -> str:
        out.write(data)
        return sha256_hex(data)

    return FilePlan(name, digest_of({"text": text}), write, {})


def index_file(weights: Sequence[FilePlan]) -> FilePlan:
    """The index over exactly the tensors of `weights`."""
    where = {name: plan.name for plan in weights for name in plan.tensors}
    size = sum(sum(plan.tensors.values()) for plan in weights)
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    return text_file(INDEX_FILE, json.dumps(index, indent=1) + "\n")


def config_files(
    expert: Path, config: PretrainedConfig, family: Family, experts: int, top_k: int, dtype: torch.dtype
) -> list[FilePlan]:
    """config.json, generation_config.json and the tokenizer, the last two from the first expert's folder."""
    published = published_config(family, config, experts, top_k, str(dtype).removeprefix("torch."))
    plans = [text_file("config.json", json.dumps(published, indent=2, sort_keys=True) + "\n")]
    generation = expert / "generation_config.json"
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    default = json.dumps({name: published.get(name) for name in ids}, indent=2) + "\n"
    text = generation.read_text(encoding="utf-8") if generation.is_file() else default
    plans.append(text_file("generation_config.json", text))
    return plans + [_copied(expert / name) for name in TOKENIZER_FILES if (expert / name).is_file()]


def _copied(path: Path) -> FilePlan:
    data = path.read_bytes()

    def write(out: BinaryIO) -> str:
        out.write(data)
        return sha256_hex(data)

    return FilePlan(path.name, digest_of({"sha256": sha256_hex(data)}), write, {})
