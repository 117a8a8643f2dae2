"""A Ray cluster: a local one, closed to the network, or the owner's own."""

import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import Config  # type: ignore[attr-defined]  # it is compiled

from moerge.errors import MoergeError

_STARTS = 3


@contextmanager
def cluster(address: str | None, cpus: int) -> Iterator[Callable[[], None]]:
    """A Ray cluster: the owner's existing one, or a local one of `cpus` CPUs that ends with the context.

    Yields the function that starts or joins it again. Removes Ray's folder, except after an error.
    """
    ours = signal.getsignal(signal.SIGTERM)  # Ray replaces it by one without cleanup
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # private; Ray's own folders are open to all
    failed = False

    def connect() -> None:
        _connect(address, cpus, folder)

    try:
        connect()
        signal.signal(signal.SIGTERM, ours)
        yield connect
    except Exception:
        failed = True
        raise
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, ours)
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)


def _connect(address: str | None, cpus: int, folder: Path) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports
    local: dict[str, Any] = {}
    if address is None:
        _close_local()
        local = {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": str(folder / "r")}
    for left in reversed(range(1 if address else _STARTS)):
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **local)
            return
        except Exception as error:  # Ray raises plain ones
            ray.shutdown()
            if not left:
                raise _no_cluster(address, error, folder) from error


def _close_local() -> None:
    """Make a local cluster listen on the loopback interface only, and require a token that this process knows.

    An imported Ray has no public setting for that: it replaces 127.0.0.1 by an interface's address.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    Config.initialize("")  # reads the mode again
    ray_constants.ENABLE_RAY_CLUSTER = False


def _no_cluster(address: str | None, error: Exception, folder: Path) -> MoergeError:
    where = "`ray_address`"
    todo = "start the cluster (ray start --head), or omit the address; if Ray requires a token, set RAY_AUTH_MODE=token"
    if address is None:
        where, todo = "Ray", f"see {folder}/r/session_latest/logs; usual reasons are a full disk or too little memory"
    return MoergeError(f"Ray doesn't start: {error}", where=where, todo=todo)
