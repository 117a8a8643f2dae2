"""A dense checkpoint registered as an expert."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from moerge.client.client import Client
from moerge.client.http import found
from moerge.errors import CoordinatorError, MoergeError
from moerge.models.expert_folder import expert_digest, expert_files
from moerge.progress import Progress
from moerge_proto.experts import Expert, ExpertState, NewExpert

_LONGEST_PAUSE = 2.0


class WithdrawnError(MoergeError):
    """The expert was withdrawn."""


Leaving = Callable[[str, dict[str, Path]], AbstractContextManager[None]]


def _freely(digest: str, paths: dict[str, Path]) -> AbstractContextManager[None]:
    return nullcontext()


def register(
    client: Client,
    folder: Path,
    new: NewExpert,
    progress: Progress,
    *,
    again: bool = False,
    change: bool = True,
    leaving: Leaving = _freely,
) -> Expert:
    """The expert of the folder's files, once the coordinator has found it in order.

    `new.files` are the folder's (`file_digests`). The files are uploaded, or with a `source` fetched by the
    coordinator, which then compares them with `new.files`. An expert that is known stays as it is, but for
    `redistribute` if `change` is set; `again` says that one which was withdrawn joins again. Files leave only within
    `leaving(digest, paths)`, which may raise.

    Raises:
        CheckpointError: the folder is no dense checkpoint.
        CoordinatorError: the expert is refused; carries the reason.
        WithdrawnError: it was withdrawn.
    """
    digest = expert_digest(new.files)
    expert = found(lambda: client.expert(digest))
    if expert is not None and expert.state is ExpertState.WITHDRAWN and not again:
        todo = f"if it shall join again: moerge expert add {folder} --domain {new.domain}"
        raise WithdrawnError(f"the expert was withdrawn {expert.withdrawn:%Y-%m-%d}", where=str(folder), todo=todo)
    if expert is None or expert.state in (ExpertState.REFUSED, ExpertState.WITHDRAWN):
        paths = expert_files(folder)
        with leaving(digest, paths):
            if new.source is None:
                for name, path in paths.items():
                    client.upload(path, progress, title=f"uploading {name}")
            expert = client.register_expert(new)
    elif change and expert.redistribute != new.redistribute:
        expert = client.register_expert(new)
    pause = 0.05
    while expert.state is ExpertState.RECEIVED:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        expert = client.expert(expert.digest)
    if expert.problem is not None:
        raise CoordinatorError(expert.problem)
    return expert
