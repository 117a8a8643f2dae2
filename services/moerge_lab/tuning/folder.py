"""The folder of a tuned model: the files of its start, with the trained tensors under the same names."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.reader import Checkpoint
from moerge.models.side_files import GENERATION
from moerge.models.stored import INDEX
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.versions.card_scores import CARD_FILE
from moerge.versions.files import FilePlan, copied_bytes, copied_file, record_file, text_file
from moerge.versions.folder import write_version
from moerge.versions.plan import VersionPlan
from moerge_lab.tuning.card import card
from moerge_lab.tuning.request import Request
from moerge_lab.tuning.training import LOG, TRAINED, Done


def write_tuned(request: Request, work: Path, done: Done, out: Path, written: Callable[[int], None]) -> None:
    """Writes the folder, which appears whole (law 10).

    Args:
        work: with the trained tensors and the log.
        written: called with the bytes of each file's tensors.
    """
    start = request.start(work)
    before, new = Checkpoint(start), request.tensors(Checkpoint(work / TRAINED), start)
    weights = [_weights(before, file, new) for file in sorted({spec.file for spec in before.specs.values()})]
    small = [name for name in (GENERATION, *TOKENIZER_FILES, INDEX) if (start / name).is_file()]
    texts = [copied_file(start / name) for name in small]
    texts.append(text_file("config.json", request.config(start)))
    texts.append(record_file(request.record))
    texts += [text_file(CARD_FILE, card(request.record, work / LOG, done, start)), copied_file(work / LOG)]
    write_version(VersionPlan(weights, [], texts), out, lambda file: written(sum(file.tensors.values())))


def tensor_bytes(folder: Path) -> int:
    """Bytes of all tensors of a folder."""
    return sum(spec.bytes for spec in Checkpoint(folder).specs.values())


def _weights(start: Checkpoint, file: Path, new: Mapping[str, Callable[[], Tensor]]) -> FilePlan:
    """A file of the start, with the trained tensors in its dtypes; copied if it has none of them."""
    specs = {name: spec for name, spec in start.specs.items() if spec.file == file}
    sizes = {name: spec.bytes for name, spec in specs.items()}
    if not specs.keys() & new.keys():
        return FilePlan(file.name, "", partial(copied_bytes, file), sizes)

    def compute(name: str) -> Tensor:
        return new[name]().to(specs[name].dtype) if name in new else start.tensor(name)

    plans = [TensorPlan(name, spec.dtype, spec.shape, partial(compute, name)) for name, spec in specs.items()]
    return FilePlan(file.name, "", lambda out: write_safetensors(out, plans), sizes)
