"""A tuning: request, training on Ray, and the folder. An interrupted one continues at its checkpoint."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.models.dense_files import DenseFiles
from moerge.models.families.hosts import HOSTS
from moerge.models.side_files import published_generation, published_tokenizer
from moerge.models.sources import checkpoint_folder
from moerge.progress import Progress
from moerge.versions.file_plan import FilePlan, copied_file, record_file, text_file
from moerge.versions.folder import write_folder
from moerge_lab.training.folder import make_once, work_of
from moerge_lab.training.job import LOG
from moerge_lab.training.losses import experts_per_token
from moerge_lab.tuning.card import card
from moerge_lab.tuning.mixture import read_mixture
from moerge_lab.tuning.on_ray import train_on_ray
from moerge_lab.tuning.request import Request, Wanted
from moerge_lab.tuning.train_process import MODEL, ROWS, Done
from moerge_lab.tuning.version import read_version
from moerge_proto.version_files import CARD_FILE, CONFIG_FILE, GENERATION, TOKENIZER_FILES


def read_request(
    folder: Path | None, experts: Mapping[str, str], base: str | None, wanted: Wanted, progress: Progress
) -> Request:
    """The checked request: for the version in a folder, or without one for a mixture.

    Args:
        experts: name -> folder or hub id.
        base: the seed model's; None: without one, if the recipe allows that.

    Raises:
        MoergeError: the arguments don't fit together, or one is unsuitable.
    """
    if folder is None:
        folders = {name: checkpoint_folder(place).absolute() for name, place in experts.items()}  # for Ray's processes
        return read_mixture(None if base is None else checkpoint_folder(base).absolute(), folders, wanted, progress)
    if base is not None or experts:
        where = "`expert`" if base is None else "`base`"
        raise MoergeError(f"the folder {folder} needs no other model", where=where, todo="omit one of the two")
    return read_version(folder, wanted, progress)


def tune(
    request: Request,
    out: Path,
    address: str | None,
    progress: Progress,
    say: Callable[[str], None],
) -> Done:
    """Trains a model and writes the folder `out`. The same request continues an interrupted run.

    Raises:
        MoergeError: `out` has other content, another run uses it, or the training failed.
    """
    out = out.absolute()
    done = Done.read(work_of(out, request.record))

    def make(work: Path) -> None:
        nonlocal done
        if done is None:
            write_rows(request, work)
            say("starting Ray" if address is None else f"joining Ray at {address}")
            _train(request, work, address, progress)
            done = Done.read(work)
        if done is None:
            todo = "name folders on storage that all nodes of the cluster share" if address else "run the command again"
            raise MoergeError("the training wrote no result", where=str(work), todo=todo)
        write_tuned(request, work, done, out, progress)

    make_once(out, request.record, make)
    if done is None:
        raise MoergeError("is finished already", where=str(out), todo="name a new folder, or remove this one")
    return done


def write_rows(request: Request, work: Path) -> None:
    with atomic_file(work / ROWS, private=True) as file:
        file.write(save({str(slot): rows for slot, rows in enumerate(request.rows)}))


def _train(request: Request, work: Path, address: str | None, progress: Progress) -> None:
    step, shown = request.run.batch * request.record.context, 0
    with progress.track("training", request.record.tokens, "tokens") as tracker:

        def finished(steps: int) -> None:
            nonlocal shown
            tracker.advance((steps - shown) * step)
            shown = steps

        train_on_ray(replace(request, rows=()), work, address, finished)


def write_tuned(request: Request, work: Path, done: Done, out: Path, progress: Progress) -> None:
    """Writes the folder of a tuned model, which appears whole (law 10)."""
    record, small = request.record, {GENERATION, *TOKENIZER_FILES}
    files = [copied_file(path) for path in sorted((work / MODEL).iterdir()) if path.name not in small]
    if request.routing is not None:
        k = experts_per_token(request.routing, len(record.texts))
        content = json.loads((request.start / CONFIG_FILE).read_bytes())
        host = HOSTS.get(content["model_type"])
        content["num_experts_per_tok" if host is None else host.chosen] = k
        files = [file for file in files if file.name != CONFIG_FILE]
        files.append(text_file(CONFIG_FILE, json.dumps(content, indent=2, sort_keys=True) + "\n"))
    files += _small_files(DenseFiles(request.start))
    files += [record_file(record), copied_file(work / LOG), text_file(CARD_FILE, card(request, work, done))]
    with progress.track(f"writing {out.name}", len(files), "files") as tracker:
        write_folder(files, out, lambda file: tracker.advance(1))


def _small_files(start: DenseFiles) -> list[FilePlan]:
    paths = [path for path in map(start.side_file, TOKENIZER_FILES) if path.is_file()]
    files = [text_file(path.name, published_tokenizer(path).decode()) for path in paths]
    generation = published_generation(start)
    return files if generation is None else [*files, text_file(GENERATION, generation)]
