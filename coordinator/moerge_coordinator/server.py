"""The server, with a graceful stop."""

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from moerge.errors import MoergeError
from moerge_coordinator import log
from moerge_coordinator.rest.state import Traffic
from moerge_coordinator.settings import Settings

_log = logging.getLogger("moerge.coordinator")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, traffic: Traffic, grace: int, read: Callable[[], Settings]) -> None:
        super().__init__(config)
        self._traffic, self._grace, self._read = traffic, grace, read

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Logs the dashboard's address when it is available."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._read_again)
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            _log.info("the dashboard is at %s://%s:%d/", "https" if self.config.is_ssl else "http", host, port)

    def _read_again(self) -> None:
        """Reads the TLS files and the log level again. After an error, the former ones stay."""
        try:
            settings = self._read()
        except MoergeError as error:
            _log.error("the former settings stay: %s", error)
            return
        if self.config.ssl is not None and settings.tls_certificate is not None:
            self.config.ssl.load_cert_chain(settings.tls_certificate, settings.tls_key)
        log.set_level(settings.log_level)
        _log.info("TLS files and log level are read again")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answers new calls with 503 until running ones have ended, at most `grace` seconds; then closes."""
        self._traffic.stopping = True
        end = time.monotonic() + self._grace
        while self._traffic.running and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def serve(
    app: FastAPI,
    traffic: Traffic,
    settings: Settings,
    read: Callable[[], Settings],
    layers: Iterable[Callable[[ASGIApp, Settings], ASGIApp]] = (),
) -> NoReturn:
    """Serves until SIGTERM or SIGINT, then ends the process, with status 1 after a failed start.

    A running workflow step is interrupted; the next start resumes there. SIGHUP calls `read`, which checks settings.
    `layers` are put around the app, where calls have their peers' own addresses.
    """
    proxied: ASGIApp = ProxyHeadersMiddleware(app, settings.trusted_proxies)  # type: ignore[arg-type,assignment]  # ASGI
    for layer in layers:
        proxied = layer(proxied, settings)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each waiting worker has a connection
    config = uvicorn.Config(
        proxied,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, traffic, settings.grace_seconds, read)
    with suppress(KeyboardInterrupt):  # uvicorn repeats the signal after its stop
        server.run()
    sys.stderr.flush()
    os._exit(0 if server.started else 1)  # waits neither for the step nor a second for torch's cleanup
