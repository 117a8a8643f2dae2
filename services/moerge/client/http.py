"""Requests to a coordinator: retries, problems, pages."""

import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import inf
from typing import TypeVar

import httpx
import stamina
from pydantic import BaseModel, TypeAdapter, ValidationError

from moerge.errors import CoordinatorError, MoergeError
from moerge_proto.messages import Page
from moerge_proto.problems import Problem, ProblemType

T = TypeVar("T")
_FIRST_TOLD_SECONDS, _TOLD_SECONDS = 5.0, 60.0
_LONGEST_PAUSE = 30.0
JSON = {"Content-Type": "application/json"}
"""Headers of a request whose content is a message."""
_ASKED = "give the complete address with MOERGE_COORDINATOR or --coordinator"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(url: str) -> httpx.URL:
    """The coordinator's address.

    Raises:
        MoergeError: the URL is invalid, or plain HTTP to another machine.
    """
    try:
        parsed = httpx.URL(url)
        if parsed.scheme in ("http", "https"):
            _require_encrypted(parsed, "coordinator")
            return parsed
        what = "does not begin with http:// or https://"
        whole = httpx.URL(f"https://{url}")
    except httpx.InvalidURL as error:
        raise MoergeError(f"{url!r} is not a valid address: {error}", where="coordinator", todo=_ASKED) from error
    scheme = "http" if _is_loopback(whole.host) else "https"
    todo = _ASKED if "://" in url else f"{_ASKED}, such as {scheme}://{url}"
    raise MoergeError(f"{url!r} {what}", where="coordinator", todo=todo)


def _require_encrypted(url: httpx.URL, where: str) -> None:
    if url.scheme != "https" and not (url.scheme == "http" and _is_loopback(url.host)):
        raise MoergeError(
            f"{url.copy_with(query=None)} is not encrypted, so others could read the token and the statistics",
            where=where,
            todo="use an https:// address; plain http:// is only for 127.0.0.1 and localhost",
        )


class _UnavailableError(Exception):
    """The coordinator is unavailable; try again."""


class _TooFastError(Exception):
    """The coordinator asks to wait for `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Http:
    """Requests with one bearer token to one coordinator; see `Client`. `transport` replaces the network in tests.

    Raises:
        MoergeError: the URL is invalid, or plain HTTP to another machine.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: float | None,
        timeout: float = 600.0,
        say: Callable[[str], None] = lambda text: None,
        heard: Callable[[], None] = lambda: None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        parsed = _address(url)
        limits = httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._patience, self._say = patience, say
        headers, hooks = {"Authorization": f"Bearer {token}"}, {"response": [lambda response: heard()]}
        self._here = httpx.Client(
            base_url=parsed, headers=headers, timeout=limits, event_hooks=hooks, transport=transport
        )
        self._elsewhere = httpx.Client(timeout=limits)  # without the token

    @property
    def url(self) -> httpx.URL:
        """The coordinator's address."""
        return self._here.base_url

    def close(self) -> None:
        """Closes the connections."""
        self._here.close()
        self._elsewhere.close()

    def patiently(self, call: Callable[[], T]) -> T:
        """The result of `call`, repeated while the coordinator is unavailable or asks to wait."""
        while True:
            try:
                return self._repeated(call)
            except _TooFastError as error:
                time.sleep(error.seconds)

    def _repeated(self, call: Callable[[], T]) -> T:
        begin = time.monotonic()
        told, tell = False, begin + (_FIRST_TOLD_SECONDS if self._patience is None else 0.0)

        def passes(error: Exception) -> bool:
            nonlocal told, tell
            if not (isinstance(error, httpx.TransportError | _UnavailableError) or self._passes(error)):
                return False
            if (now := time.monotonic()) >= tell:
                reason = str(error) or type(error).__name__
                if self._patience is None:
                    self._say(f"no answer from {self.url} for {now - begin:.0f} s ({reason}); waiting for it")
                else:
                    self._say(f"{self.url} doesn't answer ({reason}); retrying for {self._patience:.0f} s")
                told, tell = True, now + (_TOLD_SECONDS if self._patience is None else inf)
            return True

        longest = _LONGEST_PAUSE if self._patience is None else 5.0
        try:
            for attempt in stamina.retry_context(on=passes, attempts=None, timeout=self._patience, wait_max=longest):
                with attempt:
                    answer = call()
                    if told:
                        self._say(f"{self.url} answers again, after {time.monotonic() - begin:.0f} s")
                    return answer
        except (httpx.TransportError, _UnavailableError) as error:
            raise MoergeError(
                f"no answer for {time.monotonic() - begin:.0f} s: {error or type(error).__name__}",
                where=str(self.url),
                todo="check the coordinator and the network, then run the command again",
            ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _passes(self, error: Exception) -> bool:
        """Tell whether a problem is temporary; full storage counts only with unlimited patience."""
        if not isinstance(error, CoordinatorError):
            return False
        full = error.type == ProblemType.STORAGE_FULL.urn and self._patience is None
        return full or error.type == ProblemType.UNAVAILABLE.urn

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, int | str] | None = None,
    ) -> httpx.Response:
        def send() -> httpx.Response:
            response = self._here.request(method, path, content=content, headers=headers, params=params)
            _raise_for_problem(response)
            return response

        return self.patiently(send)

    def get(self, kind: type[T], path: str) -> T:
        return _read(kind, self.send("GET", path))

    def post(self, kind: type[T], path: str, message: BaseModel | None = None) -> T:
        return self.message(kind, "POST", path, message)

    def message(self, kind: type[T], method: str, path: str, message: BaseModel | None = None) -> T:
        content = b"" if message is None else message.model_dump_json().encode()
        return _read(kind, self.send(method, path, content=content, headers=JSON))

    def pages(self, message: type[T], path: str, after: int = 0, **asked: str) -> Iterator[T]:
        """Every item of a paged list; `asked` are further query parameters."""
        following: int | None = after
        while following is not None:
            response = self.send("GET", path, params={**asked, "after": following})
            page: Page[T] = _read(Page[message], response)  # type: ignore[valid-type]  # a generic built at run time
            yield from page.items
            following = page.next

    @contextmanager
    def content(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """A file's content, from the coordinator or from its redirection, which never gets the token."""
        with ExitStack() as stack:
            response = stack.enter_context(self._here.stream("GET", path, headers=headers))
            if response.next_request is not None:
                url = response.next_request.url
                _require_encrypted(url, "download")
                response = stack.enter_context(self._elsewhere.stream("GET", url, headers=headers))
            if not response.is_success:
                response.read()
                _raise_for_problem(response)
            yield response


def _read(kind: type[T], response: httpx.Response) -> T:
    """An answer as a message, without the fields that a newer coordinator added."""
    return TypeAdapter(kind).validate_json(response.content, extra="ignore")


def found(call: Callable[[], T]) -> T | None:
    """The result of `call`; None if the coordinator answers "not found"."""
    try:
        return call()
    except CoordinatorError as error:
        if error.type == ProblemType.NOT_FOUND.urn:
            return None
        raise


def _raise_for_problem(response: httpx.Response) -> None:
    if response.status_code == 429 and (seconds := response.headers.get("Retry-After", "")).isdecimal():
        raise _TooFastError(int(seconds))
    if response.status_code in (429, 502, 503, 504):
        raise _UnavailableError(f"status {response.status_code}")
    if not response.is_success:
        try:
            problem = Problem.model_validate_json(response.content)
        except ValidationError:
            problem = Problem.of(ProblemType.INTERNAL, f"status {response.status_code} without a problem document")
        raise CoordinatorError(problem)
