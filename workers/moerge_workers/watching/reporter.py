"""Reports the worker's progress to the coordinator, as the policy allows; the work never waits for reports."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge_proto.progress import Progress, Stage
from moerge_workers.settings import Settings
from moerge_workers.watching.status import Status

_PATIENCE, _TIMEOUT, _END_SECONDS = 0.001, 5.0, 2.0
_SAME_SECONDS = 60.0  # between two equal reports


@contextmanager
def reporting(settings: Settings, status: Status, seconds: float = 10.0) -> Iterator[None]:
    """Report to the coordinator at an interval, equal progress every minute, and at the end; never retry a report.

    With the policy's `obstacles`, report only changes of the obstacle, without figures.
    """
    if not settings.policy.progress or settings.dry_run:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_report, args=(settings, status, ended, seconds), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_END_SECONDS)


def _report(settings: Settings, status: Status, ended: threading.Event, seconds: float) -> None:
    with Client(settings.coordinator, settings.token, patience=_PATIENCE, timeout=_TIMEOUT, say=_ignore) as client:
        last, reported, when = False, None, 0.0
        while not last:
            last = ended.wait(seconds)
            progress = status.state.progress
            if settings.policy.progress == "obstacles":
                if progress.obstacle is (reported and reported.obstacle):
                    continue
                progress = _without_figures(progress)
            elif last:
                progress = progress.model_copy(update={"stage": Stage.ENDED, "tokens_per_second": 0})
            elif progress == reported and time.monotonic() - when < _SAME_SECONDS:
                continue
            try:
                client.tell_progress(progress)
                status.heard()
                reported, when = progress, time.monotonic()
            except (MoergeError, httpx.HTTPError):
                continue  # the next report replaces it


def _ignore(text: str) -> None:
    """The worker's own client reports an unreachable coordinator."""


def _without_figures(progress: Progress) -> Progress:
    return Progress(
        domain=progress.domain,
        stage=Stage.WAITING,
        shards_done=0,
        shards_total=0,
        tokens_per_second=0,
        seconds_left=None,
        obstacle=progress.obstacle,
    )
