"""Serving, and stopping without breaking off what runs."""

import asyncio
import os
import socket
import sys
import threading
import time
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from moerge_coordinator.settings import Settings


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: FastAPI, grace: int) -> None:
        super().__init__(config)
        self._app, self._grace = app, grace

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Has new calls answered with 503 until those that run have ended, at most `grace` seconds; then closes."""
        state = self._app.state
        state.stopping = True
        end = time.monotonic() + self._grace
        while state.running and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def serve(app: FastAPI, settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT.

    A step of a workflow that still runs then is cut, by ending the process: the next start goes on there.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    with suppress(KeyboardInterrupt):  # uvicorn hands the signal on when it has stopped
        _Server(config, app, settings.grace_seconds).run()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.stderr.flush()
        os._exit(0)  # the interpreter would wait for the step
