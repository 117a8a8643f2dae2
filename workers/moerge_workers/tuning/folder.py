"""The folder of a tuned model: the parent's files, with the trained tensors under the same published names."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torch import Tensor
from transformers import PretrainedConfig

from moerge.models.config import read_config
from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.families import Family, published_family
from moerge.models.reader import INDEX, Checkpoint
from moerge.models.side_files import GENERATION
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.training.routing import experts_per_token
from moerge.versions.card_scores import CARD_FILE
from moerge.versions.files import LINEAGE_FILE, FilePlan, copied_bytes, text_file
from moerge.versions.folder import write_version
from moerge.versions.plan import VersionPlan
from moerge_proto.digests import canonical_json
from moerge_workers.tuning.card import card
from moerge_workers.tuning.request import Request
from moerge_workers.tuning.training import LOG, TRAINED, Done

_CONFIG, _TOP_K = "config.json", "num_experts_per_tok"


def write_tuned(request: Request, work: Path, done: Done, out: Path, written: Callable[[int], None]) -> None:
    """Writes the folder, which appears whole (law 10).

    Args:
        work: with the trained tensors and the log.
        written: called with the bytes of each file's tensors.
    """
    parent, trained, config = Checkpoint(request.version), Checkpoint(work / TRAINED), read_config(request.version)
    new = dict(_published(trained, published_family(config), config))
    weights = [_weights(parent, file, new) for file in sorted({spec.file for spec in parent.specs.values()})]
    small = [name for name in (GENERATION, *TOKENIZER_FILES, INDEX) if (request.version / name).is_file()]
    texts = [_copy(request.version / name) for name in small]
    experts = len(request.record.parent.domains)
    texts.append(_config(request.version / _CONFIG, experts_per_token(request.routing, experts)))
    texts.append(text_file(LINEAGE_FILE, canonical_json(request.record.model_dump(mode="json")).decode() + "\n"))
    texts += [text_file(CARD_FILE, card(request, work / LOG, done)), _copy(work / LOG)]
    write_version(VersionPlan(weights, [], texts), out, lambda file: written(sum(file.tensors.values())))


def tensor_bytes(version: Path) -> int:
    """Bytes of all tensors of a folder."""
    return sum(spec.bytes for spec in Checkpoint(version).specs.values())


def _published(
    trained: Checkpoint, family: Family, config: PretrainedConfig
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """The published name of every trained tensor; the stock class has all experts of a layer in two tensors."""
    names, apart = set(trained.specs), set[str]()
    for layer in range(config.num_hidden_layers):
        module = family.router_module.format(layer=layer)
        experts = f"{module.rpartition('.')[0]}.experts"
        if (router := f"{module}.weight") in names:
            yield family.router.format(layer=layer), partial(trained.tensor, router)
        for expert in range(getattr(config, family.experts)):
            gate, up, down = (
                name.format(layer=layer, expert=expert) for block in family.mlp.values() for name in block
            )
            for source, targets in (("gate_up_proj", (gate, up)), ("down_proj", (down,))):
                if (name := f"{experts}.{source}") in names:
                    for number, target in enumerate(targets):
                        yield target, partial(_block, trained, name, expert, number, len(targets))
        apart |= {router, f"{experts}.gate_up_proj", f"{experts}.down_proj"}
    for name in sorted(names - apart):
        yield name, partial(trained.tensor, name)


def _block(trained: Checkpoint, name: str, expert: int, number: int, count: int) -> Tensor:
    return trained.tensor(name)[expert].chunk(count)[number]


def _weights(parent: Checkpoint, file: Path, new: dict[str, Callable[[], Tensor]]) -> FilePlan:
    """A file of the parent, with the trained tensors in its dtypes; copied if it has none of them."""
    specs = {name: spec for name, spec in parent.specs.items() if spec.file == file}
    sizes = {name: spec.bytes for name, spec in specs.items()}
    if not specs.keys() & new.keys():
        return FilePlan(file.name, "", partial(copied_bytes, file), sizes)

    def compute(name: str) -> Tensor:
        return new[name]().to(specs[name].dtype) if name in new else parent.tensor(name)

    plans = [TensorPlan(name, spec.dtype, spec.shape, partial(compute, name)) for name, spec in specs.items()]
    return FilePlan(file.name, "", lambda out: write_safetensors(out, plans), sizes)


def _copy(path: Path) -> FilePlan:
    return FilePlan(path.name, "", partial(copied_bytes, path), {})


def _config(path: Path, top_k: int) -> FilePlan:
    content = json.loads(path.read_bytes())
    if content[_TOP_K] == top_k:
        return _copy(path)
    return text_file(_CONFIG, json.dumps({**content, _TOP_K: top_k}, indent=2, sort_keys=True) + "\n")
