"""Routing of texts through versions: each in a separate process with bounded memory and time, one at a time."""

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
    "RUST_BACKTRACE": "0",  # without memory, tokenizers would hang writing one
    "HF_HUB_OFFLINE": "1",
}


class TextRouter:
    """Routes texts, if a limit is set.

    Args:
        folder: for the version's files during a call.
        limit: the process' maximum bytes of memory; None: no text is routed.
        seconds: the process' maximum time.
        patience: a call's maximum wait for the one before it, in seconds.
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
        """Removes a killed process' leftovers. Call it before routing texts."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def require_on(self) -> int:
        """The limit, in bytes.

        Raises:
            RefusedError: there is none.
        """
        if self._limit is None:
            todo = "ask the operator to set route_bytes, a memory limit in bytes, in coordinator.toml, and to restart"
            raise RefusedError(ProblemType.NOT_READY, "routing of texts is off", where="route_bytes", todo=todo)
        return self._limit

    async def route(
        self, number: int, files: Sequence[VersionFile], text: str, is_gone: Callable[[], Awaitable[bool]]
    ) -> bytes:
        """The `RoutedText` of the version with these files, as JSON.

        Args:
            is_gone: whether the caller has disconnected, which ends the process.

        Raises:
            RefusedError, CoordinatorError: routing is off or busy, the version was retired, or memory or time ran out.
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
        """Links the version's files into `folder`, if it fits into memory."""
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
                f"routing through version {number} needs {decimal(needed)} of memory; the limit is {decimal(limit)}",
                where="route_bytes",
                todo="ask the operator to raise route_bytes, or pull the version and run it on a larger machine",
            )

    async def _run(self, job: Job, is_gone: Callable[[], Awaitable[bool]]) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # libraries' messages could quote the text
            env={**os.environ, **_ALONE},
        )
        answer = asyncio.create_task(_answer(process, job))
        end = time.monotonic() + self._seconds
        try:
            while not (await asyncio.wait({answer}, timeout=_LOOK_SECONDS))[0]:
                if await is_gone():
                    raise RefusedError(ProblemType.UNAVAILABLE, "the caller has disconnected")
                if time.monotonic() > end:
                    found = f"routing took more than {self._seconds:g} s"
                    todo = "give a shorter text, use a smaller version, or ask the operator to raise route_bytes"
                    raise TooLargeError(found, where="text", todo=todo)
            return _checked(process.returncode, await answer)
        finally:
            if process.returncode is None:
                process.kill()
            await answer


async def _answer(process: asyncio.subprocess.Process, job: Job) -> bytes:
    """The process' complete output. Its input stays open, because it ends with its input."""
    if process.stdin is None or process.stdout is None:
        raise AssertionError("unreachable: both are pipes")
    with suppress(ConnectionError):  # it has already ended
        process.stdin.write(job.model_dump_json().encode() + b"\n")
        await process.stdin.drain()
    written = await process.stdout.read()
    await process.wait()
    return written


def _checked(status: int | None, written: bytes) -> bytes:
    """The output, if it is a routed text.

    Raises:
        RefusedError, CoordinatorError: it isn't.
    """
    if status == 0:
        return written
    if status is not None and status < 0:
        found = f"{signal.Signals(-status).name} ended the routing process, most likely for lack of memory"
        raise TooLargeError(found, where="route_bytes", todo="shorten the text, or ask for a higher route_bytes")
    try:
        raise CoordinatorError(Problem.model_validate_json(written))
    except ValidationError as error:
        found = f"the routing process failed with status {status}"
        todo = "tell the operator: the log has the cause; after a lack of memory, raise route_bytes"
        raise RefusedError(ProblemType.INTERNAL, found, todo=todo) from error
