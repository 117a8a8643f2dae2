"""Requests to a coordinator: retries, problems, pages."""

import ipaddress
import logging
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Generic, ParamSpec, Self, TypeVar

import httpx
import stamina
from pydantic import BaseModel, TypeAdapter, ValidationError

from moerge.errors import CoordinatorError, MoergeError
from moerge_proto.messages import Page, plainly
from moerge_proto.problems import Problem, ProblemType

T = TypeVar("T")
P = ParamSpec("P")
_log = logging.getLogger("moerge.client")
_FIRST_REPORT_SECONDS, _REPORT_SECONDS = 5.0, 60.0
_CONNECT_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_BRIEF_PAUSE = 0.2, 40.0, 5.0
JSON = {"Content-Type": "application/json"}
"""Headers of a request whose content is a message."""
MESSAGE_BYTES = 2**26
"""Limit of an answer that is read whole."""
_PLAIN = {"Accept-Encoding": "identity"}
_HERE, _NEAR, _FAR = range(3)
_ADDRESS = "give the complete address with `coordinator` or MOERGE_COORDINATOR"


def about(seconds: float) -> float:
    """A random time, from half to one and a half of these seconds."""
    return random.uniform(0.5, 1.5) * seconds  # noqa: S311  # no secret


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https"):
            _require_encrypted(parsed, "coordinator")
            return parsed
        whole = httpx.URL(f"https://{url}")
    except httpx.InvalidURL as error:
        raise MoergeError(f"{url!r} is not a valid address: {error}", where="coordinator", todo=_ADDRESS) from error
    scheme = "http" if _is_loopback(whole.host) else "https"
    todo = _ADDRESS if "://" in url else f"{_ADDRESS}, such as {scheme}://{url}"
    raise MoergeError(f"{url!r} does not begin with http:// or https://", where="coordinator", todo=todo)


def _require_encrypted(url: httpx.URL, where: str) -> None:
    if url.scheme != "https" and not (url.scheme == "http" and _is_loopback(url.host)):
        raise MoergeError(
            f"{_place(url)} is not encrypted, so others could read the token and the statistics",
            where=where,
            todo="use an https:// address; plain http:// is only for 127.0.0.1 and localhost",
        )


def _distance(host: str) -> int:
    """_HERE for this machine, _NEAR for a private network, _FAR for others; of a name's addresses, the closest."""
    try:
        addresses = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):  # an unknown name; a proxy may know it
        return _FAR
    plain = [getattr(address, "ipv4_mapped", None) or address for address in addresses]
    if any(address.is_loopback or address.is_unspecified for address in plain):
        return _HERE
    return _FAR if all(address.is_global for address in plain) else _NEAR


def _require_as_far(url: httpx.URL, coordinator: httpx.URL) -> None:
    """Requires that a redirection leads no closer to this machine than the coordinator is."""
    if _distance(url.host) < _distance(coordinator.host):
        raise MoergeError(
            f"the coordinator redirects to {_place(url)}, which is closer to this machine than the coordinator",
            where="download",
            todo="if that is the operator's store, name the coordinator by its address in that network",
        )


def _place(url: httpx.URL) -> str:
    """An address without its query, which may hold a signature."""
    return str(url.copy_with(query=None))


def _require_plain(response: httpx.Response) -> None:
    """Requires an answer without encoding, because a small one could expand to any size."""
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise MoergeError(
            f"expected an answer without encoding, received {encoding!r}",
            where=_place(response.url),
            todo="ask the operator to respect Accept-Encoding, also in a proxy",
        )


class _UnavailableError(CoordinatorError):
    """The coordinator is unavailable; try again."""


class _TooFastError(CoordinatorError):
    """The coordinator asks to wait for `seconds`."""

    def __init__(self, problem: Problem, seconds: int) -> None:
        super().__init__(problem)
        self.seconds = seconds


class Http:
    """Requests with one bearer token to one coordinator, repeated for `patience` seconds if they fail.

    The first repetition calls `say`; its default logs a warning, which Python prints on standard error without a
    logging configuration. With `patience` None, requests are repeated without limit, also while the coordinator's
    storage is full, and `say` is called every minute; with 0, never. Pauses grow to a minute, with a patience to 8 s;
    they are random, so that many clients don't return at once. The timeout of an answer is `timeout` seconds;
    every answer calls `heard`. Requests have the further `headers`; a `transport` replaces the network.

    Raises:
        MoergeError: the URL is invalid, or plain HTTP to another machine.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: float | None = 60.0,
        timeout: float = 600.0,
        say: Callable[[str], None] = _log.warning,
        heard: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        limits = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
        self._patience, self._say = patience, say
        self._here = httpx.Client(
            base_url=_address(url),
            headers={"Authorization": f"Bearer {token}", **_PLAIN, **(headers or {})},
            timeout=limits,
            event_hooks={"response": [lambda response: heard(), _require_plain]},
            transport=transport,
        )
        self._elsewhere = httpx.Client(  # without the token
            headers=_PLAIN, timeout=limits, event_hooks={"response": [_require_plain]}, transport=transport
        )

    @property
    def url(self) -> httpx.URL:
        return self._here.base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._here.close()
        self._elsewhere.close()

    def patiently(self, call: Callable[[], T]) -> T:
        """The result of `call`, repeated while the coordinator is unavailable or asks to wait, unless patience is 0."""
        if self._patience == 0:
            return call()
        while True:
            try:
                return self._repeated(call)
            except _TooFastError as error:
                time.sleep(error.seconds)

    def _repeated(self, call: Callable[[], T]) -> T:
        begin = time.monotonic()
        reported, due = False, begin + (_FIRST_REPORT_SECONDS if self._patience is None else 0.0)
        pause, longest = _FIRST_PAUSE, _LONGEST_PAUSE if self._patience is None else _LONGEST_BRIEF_PAUSE

        def next_pause(error: Exception) -> bool | float:
            nonlocal reported, due, pause
            if not self._passes(error):
                return False
            if (now := time.monotonic()) >= due:
                if self._patience is None:
                    self._say(f"no answer from {self.url} for {now - begin:.0f} s ({_reason(error)}); waiting for it")
                else:
                    self._say(f"{self.url} doesn't answer ({_reason(error)}); retrying for {self._patience:.0f} s")
                reported, due = True, now + (_REPORT_SECONDS if self._patience is None else inf)
            before, pause = pause, min(2 * pause, longest)
            return about(before)

        try:
            for attempt in stamina.retry_context(on=next_pause, attempts=None, timeout=self._patience):
                with attempt:
                    answer = call()
                    if reported:
                        self._say(f"{self.url} answers again, after {time.monotonic() - begin:.0f} s")
                    return answer
        except (httpx.TransportError, _UnavailableError) as error:
            raise MoergeError(
                f"no answer for {time.monotonic() - begin:.0f} s: {_reason(error)}",
                where=str(self.url),
                todo="check the coordinator and the network, then run the command again",
            ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _passes(self, error: Exception) -> bool:
        """Tell whether an error is temporary; full storage counts only with unlimited patience."""
        if not isinstance(error, CoordinatorError):
            return isinstance(error, httpx.TransportError)
        full = error.type == ProblemType.STORAGE_FULL.urn and self._patience is None
        return full or isinstance(error, _UnavailableError) or error.type == ProblemType.UNAVAILABLE.urn

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, int | str | bool] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """The answer to a request; `timeout` in seconds replaces the client's."""
        limit = self._here.timeout if timeout is None else httpx.Timeout(timeout, connect=_CONNECT_SECONDS)

        def send() -> httpx.Response:
            with self._here.stream(
                method, path, content=content, headers=headers, params=params, timeout=limit
            ) as response:
                return _checked(_whole(response))

        return self.patiently(send)

    def get(
        self,
        kind: type[T],
        path: str,
        params: Mapping[str, int | str | bool] | None = None,
        timeout: float | None = None,
    ) -> T:
        return _read(kind, self.send("GET", path, params=params, timeout=timeout))

    def post(self, kind: type[T], path: str, message: BaseModel | None = None) -> T:
        return self.message(kind, "POST", path, message)

    def message(self, kind: type[T], method: str, path: str, message: BaseModel | None = None) -> T:
        content = b"" if message is None else encoded(message)
        return _read(kind, self.send(method, path, content=content, headers=JSON))

    @contextmanager
    def content(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """A file's content, from the coordinator or from its redirection, which never gets the token."""
        with ExitStack() as stack:
            response = stack.enter_context(self._here.stream("GET", path, headers=headers))
            if response.next_request is not None:
                url = response.next_request.url
                _require_encrypted(url, "download")
                _require_as_far(url, self.url)
                response = stack.enter_context(self._elsewhere.stream("GET", url, headers=headers))
            yield response if response.is_success else _checked(_whole(response))


def encoded(message: BaseModel) -> bytes:
    """A request's content, without the defaults, because an older coordinator refuses later fields."""
    return message.model_dump_json(exclude_defaults=True).encode()


def _read(kind: type[T], response: httpx.Response) -> T:
    """An answer as a message, without the fields that a newer coordinator added."""
    try:
        return TypeAdapter(kind).validate_json(response.content, extra="ignore")
    except ValidationError as error:
        [first, *_] = error.errors()
        field = ".".join(map(str, first["loc"]))
        problem = f"this moerge can't read the coordinator's answer: {field}: {plainly(first)}"
        todo = "compare `moerge --version` with the coordinator's /readyz; install the coordinator's version"
        raise MoergeError(problem, where=_place(response.url), todo=todo) from error


class Pages(Generic[T]):
    """A paged list after an item: all its items by iteration, or one page. `query` filters it."""

    def __init__(self, http: Http, kind: type[T], path: str, after: int = 0, /, **query: str | bool | None) -> None:
        self._http, self._kind, self._path, self._after = http, kind, path, after
        self._query = {name: value for name, value in query.items() if value}

    def page(self, after: int | str | None = None) -> Page[T]:
        """The page after the cursor `after`, by default the first one."""
        response = self._http.send("GET", self._path, params={**self._query, "after": after or self._after})
        return _read(Page[self._kind], response)  # type: ignore[name-defined]  # a generic built at run time

    def __iter__(self) -> Iterator[T]:
        page = self.page()
        yield from page.items
        while page.next is not None:
            page = self.page(page.next)
            yield from page.items


def optional(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The result of `call`; None if the coordinator answers "not found"."""
    try:
        return call(*args, **kwargs)
    except CoordinatorError as error:
        if error.type == ProblemType.NOT_FOUND.urn:
            return None
        raise


def _reason(error: Exception) -> str:
    return (error.what if isinstance(error, MoergeError) else str(error)) or type(error).__name__


def _whole(response: httpx.Response) -> httpx.Response:
    """An answer with its content; MoergeError if that has more than MESSAGE_BYTES."""
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > MESSAGE_BYTES:
            todo = "check the address; no answer of a coordinator is so long"
            raise MoergeError(f"the answer has more than {MESSAGE_BYTES} bytes", where=_place(response.url), todo=todo)
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=bytes(content),
        request=response.request,
        extensions=response.extensions,
    )


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    status = response.status_code
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        problem = Problem.of(ProblemType.INTERNAL, f"status {status} without a problem document")
    if status == 429 and (seconds := response.headers.get("Retry-After", "")).isdecimal():
        raise _TooFastError(problem, int(seconds))
    raise (_UnavailableError if status in (429, 502, 503, 504) else CoordinatorError)(problem)
