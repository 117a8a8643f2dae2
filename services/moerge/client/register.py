"""Registration of an expert's parts."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from moerge.client.client import Client
from moerge.client.http import optional
from moerge.errors import CoordinatorError, MoergeError
from moerge.files import file_sha256
from moerge.models.adapter_settings import AdapterSettings
from moerge.models.adapters import WEIGHTS
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import expert_digest, expert_files, is_weights
from moerge.progress import Progress
from moerge_proto.experts import Expert, ExpertState, NewAdapter, NewExpert, Parts

_LONGEST_PAUSE = 2.0


class WithdrawnError(MoergeError):
    """The expert was withdrawn."""


Leaving = Callable[[str, dict[str, Path]], AbstractContextManager[None]]
"""(digest of an expert or of an adapter's weights, name -> path) -> a context for their upload, which may refuse it."""


def register(
    client: Client,
    dense: DenseFiles,
    new: NewExpert,
    progress: Progress,
    *,
    adapter: Path | None = None,
    again: bool = False,
    change: bool = True,
    leaving: Leaving = lambda digest, paths: nullcontext(),
) -> Expert:
    """The expert of a folder of parts, after the coordinator's checks; `new.files`: `file_digests`.

    Config and tokenizer are uploaded first, and the weights only if they fit the seed. Of a merged `adapter` of the
    seed only the adapter's weights are uploaded, if the coordinator merges it to the same bytes.

    A known expert stays unchanged, except for `redistribute` and the signature if `change` is set. `again` lets a
    withdrawn expert join again. All uploads are inside `leaving`.

    Raises:
        CheckpointError: the folder is not a dense checkpoint.
        CoordinatorError: the expert is refused, with the reason.
        WithdrawnError: it was withdrawn.
    """
    digest = expert_digest(new.files)
    expert = registered(client, dense.folder, new.domain, digest, again=again)
    if expert is None:
        paths = expert_files(dense)
        described = None if adapter is None else _described(adapter, new.parts)
        new = _accepted(client, new.model_copy(update={"adapter": described}), paths, progress, leaving)
        uploads = {name: path for name, path in paths.items() if is_weights(name)}
        name = digest
        if adapter is not None and new.adapter is not None:
            name, paths = new.adapter.weights, {WEIGHTS: adapter / WEIGHTS}
            uploads = paths
        with leaving(name, paths):
            _upload(client, uploads, progress)
            expert = client.register_expert(new)
    elif change and (expert.redistribute != new.redistribute or new.signature not in (None, expert.signature)):
        expert = client.register_expert(new)
    pause = 0.05
    while expert.state is ExpertState.RECEIVED:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        expert = client.expert(expert.digest)
    if expert.problem is None:
        return expert
    if adapter is None or expert.adapter is None or expert.family:  # merged to the same bytes, and then refused
        raise CoordinatorError(expert.problem)
    whole = new.model_copy(update={"adapter": None})
    return register(client, dense, whole, progress, again=again, change=change, leaving=leaving)


def registered(client: Client, folder: Path, domain: str, digest: str, *, again: bool = False) -> Expert | None:
    """The coordinator's expert with this digest; None if unknown or refused.

    Raises:
        WithdrawnError: it was withdrawn, without `again`.
    """
    expert = optional(client.expert, digest)
    if expert is not None and expert.state is ExpertState.WITHDRAWN and not again:
        raise WithdrawnError(
            f"the expert of {domain} was withdrawn {expert.withdrawn:%Y-%m-%d}",
            where=str(folder),
            todo="to let it join again: moerge worker run --rejoin",
        )
    gone = expert is None or expert.state in (ExpertState.REFUSED, ExpertState.WITHDRAWN)
    return None if gone else expert


def _accepted(
    client: Client, new: NewExpert, paths: dict[str, Path], progress: Progress, leaving: Leaving
) -> NewExpert:
    """The message that the coordinator accepts, without the adapter if it takes none now; uploads small files."""
    small = {name: path for name, path in paths.items() if not is_weights(name)}
    with leaving(expert_digest({name: new.files[name] for name in small}), small):
        _upload(client, small, progress)
        try:
            client.check_expert(new)
        except CoordinatorError as error:
            if new.adapter is None or error.where != "adapter.base":
                raise
            new = new.model_copy(update={"adapter": None})
            client.check_expert(new)
    return new


def _described(folder: Path, parts: Parts) -> NewAdapter:
    return NewAdapter(
        base=parts.body,
        weights=file_sha256(folder / WEIGHTS),
        settings=AdapterSettings.of(folder).relevant,
    )


def _upload(client: Client, paths: dict[str, Path], progress: Progress) -> None:
    for name, path in paths.items():
        client.upload(path, progress, title=f"uploading {name}")
