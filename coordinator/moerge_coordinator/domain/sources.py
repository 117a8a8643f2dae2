"""Files fetched from the operator's allowed sources only."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import stamina

from moerge import network
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import require_address
from moerge_proto.problems import ProblemType

MAX_REDIRECTS = 5
_QUERY = re.compile(r"[A-Za-z0-9._~+=,%&/:;!*'()-]*")
_REDIRECTS = (301, 302, 303, 307, 308)
_ATTEMPTS = 5


class _TransientError(Exception):
    """The source is unavailable; try again."""


def require_allowed(url: str, prefixes: Sequence[str], where: str) -> None:
    """Requires that `url` is a plain address below one of the `prefixes`."""
    try:
        require_address(url)
    except ValueError as error:
        raise RefusedError(ProblemType.INVALID_REQUEST, str(error), where=where) from error
    if not any(url == prefix.rstrip("/") or url.startswith(prefix.rstrip("/") + "/") for prefix in prefixes):
        problem = f"{url} is not below an allowed source"
        todo = "upload the files, or ask the operator to add it to `sources` in coordinator.toml"
        raise RefusedError(ProblemType.FORBIDDEN, problem, where=where, todo=todo)


def fetch(url: str, part: Path, most: int, prefixes: Sequence[str], advance: Callable[[int], None]) -> None:
    """Fetches `url` into `part`, at most `most` bytes, and resumes an earlier attempt.

    Follows redirects to allowed sources only.
    """
    require_allowed(url, prefixes, "source")  # the settings may have changed since its registration
    part.parent.mkdir(parents=True, exist_ok=True)
    transport = (httpx.TransportError, _TransientError)
    with network.direct_client(timeout=60.0, headers={"Accept-Encoding": "identity"}) as client:
        try:
            for attempt in stamina.retry_context(on=transport, attempts=_ATTEMPTS, timeout=None, wait_max=5.0):
                with attempt:
                    _fetch_once(client, url, part, most, prefixes, advance)
        except transport as error:
            raise _refused(url, f"{type(error).__name__}: {error}") from error


def _refused(url: str, reason: str) -> RefusedError:
    todo = "repair the source and register again, or upload the files"
    return RefusedError(ProblemType.SOURCE_FAILED, f"{url} can't be fetched: {reason}", where="source", todo=todo)


def _fetch_once(
    client: httpx.Client, url: str, part: Path, most: int, prefixes: Sequence[str], advance: Callable[[int], None]
) -> None:
    size, address = part.stat().st_size if part.is_file() else 0, url
    headers = {"Range": f"bytes={size}-"} if size else {}
    for _ in range(MAX_REDIRECTS + 1):
        with client.stream("GET", address, headers=headers) as response:
            if response.status_code not in _REDIRECTS:
                return _receive(url, response, part, size, most, advance)
            address = _followed(url, address, response, prefixes)
    raise _refused(url, f"more than {MAX_REDIRECTS} redirects")


def _followed(url: str, address: str, response: httpx.Response, prefixes: Sequence[str]) -> str:
    """The target of a redirect. Its address may have a query, as in redirects to stores of large files."""
    target = str(response.headers.get("Location", ""))
    if target.startswith("/") and not target.startswith("//"):
        target = address[: address.index("/", len("https://"))] + target
    path, _, query = target.partition("?")
    try:
        require_allowed(path, prefixes, "source")
    except RefusedError as error:
        raise _refused(url, f"it redirects to {target[:200]!r}: {error.what}") from error
    if not _QUERY.fullmatch(query):
        raise _refused(url, f"it redirects to {target[:200]!r}, whose query is not plain")
    return target


def _receive(
    url: str, response: httpx.Response, part: Path, held: int, most: int, advance: Callable[[int], None]
) -> None:
    """Appends the response to `part`; without range support of the source, starts it again."""
    if response.status_code in (408, 429) or response.status_code >= 500:
        raise _TransientError(f"status {response.status_code}")
    if response.status_code == 416:  # the part is as long as the file, or longer
        part.unlink()
        raise _TransientError("the source has no further bytes")
    if response.status_code not in (200, 206):
        raise _refused(url, f"status {response.status_code}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _refused(url, "the source compressed the file although uncompressed content was requested")
    resumed = response.status_code == 206
    if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {held}-"):
        raise _refused(url, "the source sent a different range than requested")
    with part.open("ab" if resumed else "wb") as out:
        size = held if resumed else 0
        for piece in response.iter_raw():
            size += len(piece)
            if size > most:
                raise _refused(url, f"it exceeds the owner's remaining {most} bytes")
            out.write(piece)
            advance(len(piece))
        out.flush()
        os.fsync(out.fileno())
