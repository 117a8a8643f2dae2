"""Texts routed through versions: each in a process of its own, bounded in memory and time, one at a time."""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError
from rich.filesize import decimal

from moerge.blobs.store import Blobs, show
from moerge.errors import CoordinatorError
from moerge.scoring.route_job import PROGRAM, Job, TooLargeError, needed_bytes
from moerge_coordinator.problems import RefusedError
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.versions import VersionFile

SECONDS, PATIENCE_SECONDS = 60.0, 10.0
_LOOK_SECONDS = 0.2
_ALONE = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RUST_BACKTRACE": "0",  # tokenizers short of memory would hang in writing one
    "HF_HUB_OFFLINE": "1",
}


class TextRouter:
    """Routes texts, if there is a limit.

    Args:
        folder: where the version's files are shown to the process while it runs.
        limit: bytes of memory that the process may take; None: no text is routed.
        seconds: how long the process may take.
        patience: seconds that a call waits for the one before it.
    """

    def __init__(
        self,
        blobs: Blobs,
        folder: Path,
        limit: int | None,
        *,
        seconds: float = SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._blobs, self._folder, self._limit = blobs, folder, limit
        self._seconds, self._patience = seconds, patience
        self._one = asyncio.Lock()

    def sweep(self) -> None:
        """Removes what a process that was killed left. Call it before any text is routed."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def require_on(self) -> int:
        """The limit, in bytes.

        Raises:
            RefusedError: there is none.
        """
        if self._limit is None:
            todo = "the operator sets route_bytes in coordinator.toml, a memory limit in bytes, and starts it again"
            raise RefusedError(
                ProblemType.NOT_READY, "this coordinator routes no texts", where="route_bytes", todo=todo
            )
        return self._limit

    async def route(
        self, number: int, files: Sequence[VersionFile], text: str, is_gone: Callable[[], Awaitable[bool]]
    ) -> bytes:
        """The `RoutedText` of the version with these files, as JSON.

        Args:
            is_gone: whether the caller went away, which ends the process.

        Raises:
            RefusedError, CoordinatorError: no text is routed here, another call is routed now, the version went away,
                or the version or the text takes more memory or time than there is.
        """
        limit = self.require_on()
        try:
            async with asyncio.timeout(self._patience):
                await self._one.acquire()
        except TimeoutError as error:
            raise RefusedError(
                ProblemType.UNAVAILABLE, "another text is being routed", todo="try again in a minute", retry_after=10
            ) from error
        folder = self._folder / str(number)
        try:
            with self._blobs.holding():
                await asyncio.to_thread(self._show, number, files, folder, limit)
                return await self._run(Job(folder=folder, number=number, text=text, limit=limit), is_gone)
        finally:
            self.sweep()
            self._one.release()

    def _show(self, number: int, files: Sequence[VersionFile], folder: Path, limit: int) -> None:
        """Shows the version's files in `folder`, if it fits."""
        try:
            self._require_fits(number, files, limit)
            show(self._blobs, files, folder)
        except FileNotFoundError as error:
            found, todo = f"version {number} has just been retired", "use another version"
            raise RefusedError(ProblemType.GONE, found, todo=todo) from error

    def _require_fits(self, number: int, files: Sequence[VersionFile], limit: int) -> None:
        config = next(file.sha256 for file in files if file.name == "config.json")
        weights = sum(file.size for file in files if file.name.endswith(".safetensors"))
        needed = needed_bytes(weights, json.loads(self._blobs.local(config).read_bytes()))
        if needed > limit:
            raise TooLargeError(
                f"routing through version {number} takes {decimal(needed)} of memory, the limit is {decimal(limit)}",
                where="route_bytes",
                todo="the operator raises route_bytes, or you pull the version and run it on a larger machine",
            )

    async def _run(self, job: Job, is_gone: Callable[[], Awaitable[bool]]) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # messages of libraries could quote the text
            env={**os.environ, **_ALONE},
        )
        answer = asyncio.create_task(_answer(process, job))
        end = time.monotonic() + self._seconds
        try:
            while not (await asyncio.wait({answer}, timeout=_LOOK_SECONDS))[0]:
                if await is_gone():
                    raise RefusedError(ProblemType.UNAVAILABLE, "the caller went away")
                if time.monotonic() > end:
                    found = f"routing took more than {self._seconds:g} s"
                    todo = "give a shorter text, or use a smaller version; or the operator raises route_bytes"
                    raise TooLargeError(found, where="text", todo=todo)
            return _checked(process.returncode, await answer)
        finally:
            if process.returncode is None:
                process.kill()
            await answer


async def _answer(process: asyncio.subprocess.Process, job: Job) -> bytes:
    """What the process writes until it ends. Its input stays open: it would end with it."""
    if process.stdin is None or process.stdout is None:
        raise AssertionError("unreachable: both are pipes")
    with suppress(ConnectionError):  # it has ended already
        process.stdin.write(job.model_dump_json().encode() + b"\n")
        await process.stdin.drain()
    written = await process.stdout.read()
    await process.wait()
    return written


def _checked(status: int | None, written: bytes) -> bytes:
    """What was written, if it is a routed text.

    Raises:
        RefusedError, CoordinatorError: it isn't.
    """
    if status == 0:
        return written
    if status is not None and status < 0:
        found = f"the process that routes was ended by {signal.Signals(-status).name}, most likely for want of memory"
        raise TooLargeError(found, where="route_bytes", todo="the operator raises route_bytes; or give a shorter text")
    try:
        raise CoordinatorError(Problem.model_validate_json(written))
    except ValidationError as error:
        found = f"the process that routes failed with status {status}"
        todo = "tell its operator: its log has the cause; if memory was short, a higher route_bytes helps"
        raise RefusedError(ProblemType.INTERNAL, found, todo=todo) from error
