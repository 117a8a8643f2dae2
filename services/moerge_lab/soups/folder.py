"""Folders of banks and specialists, and their model cards."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from moerge.errors import CheckpointError, MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import expert_files, is_weights
from moerge.models.reader import Checkpoint
from moerge.models.stored import INDEX, SINGLE
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.progress import Progress
from moerge.scoring.perplexity import load
from moerge.versions.card_scores import markdown_rows
from moerge.versions.file_plans import FilePlan, copied_file, record_file, text_file
from moerge.versions.folder import write_folder
from moerge_lab.soups.bank import Bank, model_shapes, shapes
from moerge_lab.soups.domains import Clusters
from moerge_lab.training.folder import record_rows
from moerge_lab.training.job import LOG
from moerge_proto.records import RECORD_FILE, SoupBank, Specialist, read_record
from moerge_proto.version_files import CARD_FILE

BANK_FILE = "soup.safetensors"
SEED_FOLDER = "seed"
_CENTROIDS = "centroids"


class Opened(NamedTuple):
    """A bank's folder; `seed` has the files of the seed model, which is loaded as `model`."""

    record: SoupBank
    seed: DenseFiles
    model: PreTrainedModel
    bank: Bank
    clusters: Clusters


def write_bank(record: SoupBank, seed: DenseFiles, bank: Bank, clusters: Clusters, log: Path, out: Path) -> None:
    """Writes a bank's folder, with copies of the seed model and the log; it appears whole (law 10)."""
    weights = _tensors(BANK_FILE, {**bank.parameters, _CENTROIDS: clusters.centroids})
    copies = [copied_file(path, f"{SEED_FOLDER}/{name}") for name, path in expert_files(seed).items()]
    texts = [record_file(record), text_file(CARD_FILE, _bank_card(record, bank, clusters)), copied_file(log, LOG)]
    write_folder([weights, *copies, *texts], out)


def read_bank(folder: Path, device: str = "cpu") -> Opened:
    """A bank from its folder, on a device.

    Raises:
        MoergeError: the folder has no bank.
        CheckpointError: a tensor is missing or has another shape; names it.
    """
    record = read_record(folder)
    if not isinstance(record, SoupBank):
        todo = "name a folder written by moerge soup train"
        raise MoergeError("not the record of a bank", where=str(folder / RECORD_FILE), todo=todo)
    model, stored = load(folder / SEED_FOLDER, device=device), Checkpoint(folder / BANK_FILE)
    centroids, parameters = stored.tensor(_CENTROIDS), dict[str, Parameter]()
    for name, shape in shapes(model_shapes(model), record.parts, record.rank, len(centroids)).items():
        if (tensor := stored.tensor(name)).shape != shape:
            what = f"expected shape {list(shape)}, found {list(tensor.shape)}"
            raise CheckpointError(what, where=f"{folder / BANK_FILE}: {name}", todo="train the bank again")
        parameters[name] = Parameter(tensor.to(device), requires_grad=False)
    return Opened(record, DenseFiles(folder / SEED_FOLDER), model, Bank(parameters), Clusters(centroids))


def write_specialist(opened: Opened, record: Specialist, out: Path, progress: Progress) -> None:
    """Writes a specialist, which is in the bank's model, in the seed's dtypes; the folder appears whole (law 10)."""
    dtypes = {name: spec.dtype for name, spec in opened.seed.checkpoint.specs.items()}
    weights = _tensors(SINGLE, {name: item.detach().to(dtypes[name]) for name, item in opened.model.named_parameters()})
    small = {name: path for name, path in expert_files(opened.seed).items() if not is_weights(name) and name != INDEX}
    texts = [copied_file(path, name) for name, path in small.items()]
    texts += [record_file(record), text_file(CARD_FILE, _card(record))]
    with progress.track(f"writing {out.name}", sum(weights.tensors.values()), "B") as tracker:
        write_folder([weights, *texts], out, lambda file: tracker.advance(sum(file.tensors.values())))


def _tensors(name: str, tensors: Mapping[str, Tensor]) -> FilePlan:
    plans = [TensorPlan(key, tensor.dtype, tuple(tensor.shape), tensor.detach().cpu) for key, tensor in tensors.items()]
    return FilePlan(name, "", lambda out: write_safetensors(out, plans), {plan.name: plan.bytes for plan in plans})


def _bank_card(record: SoupBank, bank: Bank, clusters: Clusters) -> str:
    parameters = sum(parameter.numel() for parameter in bank.parameters.values())
    return f"""\
# Bank of a Soup-of-Experts

`moerge soup train` trained {parameters:,} parameters on **pooled text**: {", ".join(record.texts)}. It has
{len(clusters.centroids)} pretraining domains. Its experts: {", ".join(record.experts) or "none"}. The bank itself is
no model. This makes a dense model for a text:

```
moerge soup instantiate BANK --text target.jsonl --out specialist
```

{record_rows(record)}

`{SEED_FOLDER}/` is the seed model, which embeds documents. The loss of every step is in `{LOG}`; all inputs
are in `{RECORD_FILE}`.
"""


def _card(record: Specialist) -> str:
    names = list(record.bank.experts) or [str(number) for number in range(record.bank.parts)]
    rows = markdown_rows(
        (name, f"{coefficient:.4f}") for name, coefficient in zip(names, record.coefficients, strict=True)
    )
    return f"""\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- merge
- moerge
---

# Specialist of a Soup-of-Experts

`moerge soup instantiate` made this dense model from a bank, for a text of {record.documents:,} documents. The bank was
trained on **pooled text**: {", ".join(record.bank.texts)}.

{record_rows(record)}

| E_i | coefficient |
|---|---|
{rows}

All inputs are in `{RECORD_FILE}`.
"""
