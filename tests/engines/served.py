"""The commands of an engine's page that serve a version and ask it, as a reader types them."""

import os
import signal
import subprocess
import time
from pathlib import Path

from engines.engine import Engine, page_of
from moerge.errors import MoergeError
from support.servers import held_ports
from support.transcripts import commands

PORT = "8000"
SHELL = "/bin/bash"
_SECONDS = 600


def asked(engine: Engine, path: Path, log: Path) -> str:
    """Serves a version's path by the first command of its page's section Serve, and returns the answer to the second.

    Raises:
        MoergeError: the server ends, or doesn't answer in ten minutes.
    """
    serve, ask = (command.line for command in commands(page_of(engine.name)) if command.section == "Serve")
    with held_ports(1) as [free]:
        port = str(free)
    serve = serve.replace(engine.served, str(path)).replace(PORT, port)
    end = time.monotonic() + _SECONDS
    with log.open("w", encoding="utf-8") as out:
        server = subprocess.Popen(  # noqa: S603  # our own command
            [SHELL, "-c", f"exec {serve}"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in engine.environ.items() if name != "VLLM_LOGGING_LEVEL"},
            start_new_session=True,
        )
        try:
            while server.poll() is None and time.monotonic() < end:
                made = subprocess.run(  # noqa: S603
                    [SHELL, "-c", ask.replace(PORT, port)], capture_output=True, text=True, check=False
                )
                if made.returncode == 0:
                    return made.stdout
                time.sleep(2)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(60)
    raise MoergeError("no answer", where=serve, todo=f"read {log}")
