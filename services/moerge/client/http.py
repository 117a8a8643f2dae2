"""Requests to a coordinator: retries, problems, pages."""

import ipaddress
import logging
import random
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf
from typing import Generic, ParamSpec, Self, TypeVar

import httpx
import stamina
from pydantic import BaseModel, TypeAdapter, ValidationError

from moerge import network
from moerge.bearer import bearer_token, is_bearer_token
from moerge.errors import CoordinatorError, MoergeError
from moerge.network import is_loopback
from moerge_proto.messages import Page, plainly
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.uploads import CHUNK_BYTES

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
_PROBLEM = ProblemType.INTERNAL.urn.removesuffix(ProblemType.INTERNAL)
_REMEDY = "check the address and its path; ask the operator whether a proxy there passes all paths to the coordinator"
_SIGN_IN = "ask the operator to exempt moerge's REST paths from a proxy's sign-in or filter: moerge sends its own token"
_MIB = CHUNK_BYTES // 2**20
_REMEDIES = {
    401: _SIGN_IN,
    403: _SIGN_IN,
    407: "a proxy requires a user and password: write them into HTTPS_PROXY, as http://USER:PASSWORD@HOST:PORT",
    411: "ask the operator to let the proxy pass Content-Length, which moerge sends",
    413: f"ask the operator to raise the proxy's limit to {_MIB + 1} MiB or more: moerge sends chunks of {_MIB} MiB",
}
"""Status of an answer that isn't the coordinator's -> remedy."""
_ADDRESS = "give the complete address with `coordinator` or MOERGE_COORDINATOR"


def about(seconds: float) -> float:
    """A random time, from half to one and a half of these seconds."""
    return random.uniform(0.5, 1.5) * seconds  # noqa: S311  # no secret


def _address(url: str) -> httpx.URL:
    url = url.strip()
    shown = "the address" if "@" in url or is_bearer_token(url) else repr(url)
    try:
        parsed = httpx.URL(url)
        if parsed.userinfo:
            todo = "leave them out: the token alone identifies the caller"
            raise MoergeError("the address has a user or a password", where="coordinator", todo=todo)
        if parsed.scheme in ("http", "https"):
            _require_encrypted(parsed, "coordinator")
            return parsed
        whole = httpx.URL(f"https://{url}")
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise MoergeError(f"{shown} is not a valid address", where="coordinator", todo=_ADDRESS) from error
    scheme = "http" if is_loopback(whole.host) else "https"
    todo = _ADDRESS if "://" in url or shown != repr(url) else f"{_ADDRESS}, such as {scheme}://{url}"
    raise MoergeError(f"{shown} does not begin with http:// or https://", where="coordinator", todo=todo)


def _require_encrypted(url: httpx.URL, where: str) -> None:
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.host)):
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
    """An address without user, query and fragment, which may have a secret."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


def _target(response: httpx.Response) -> httpx.URL:
    try:
        return response.url.join(response.headers["Location"])
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        what = "redirects to an invalid address"
        raise MoergeError(what, where=_place(response.url), todo=_REMEDY) from error


def _require_target(response: httpx.Response) -> None:
    """Requires a valid address in a redirection, because httpx calls another one a network fault."""
    if response.has_redirect_location:
        _target(response)


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
    Without a `token`, requests have no credentials.

    Raises:
        MoergeError: the URL is invalid, or plain HTTP to another machine; or the token, or the environment's proxy or
            certificates, can't be used.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience: float | None = 60.0,
        timeout: float = 600.0,
        say: Callable[[str], None] = _log.warning,
        heard: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._patience, self._say = patience, say
        address = _address(url)
        bearer = {} if token is None else {"Authorization": f"Bearer {bearer_token(token, '`token`')}"}
        limits = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
        self._client = partial(network.client, timeout=limits, transport=transport)
        self._here = self._client(
            address,
            base_url=address,
            headers={**bearer, **_PLAIN, **(headers or {})},
            event_hooks={"response": [lambda response: heard(), _require_plain, _require_target]},
        )
        self._stores: dict[str, httpx.Client] = {}  # by host, without the token
        self._proxy = network.proxy_variable(address)

    @property
    def url(self) -> httpx.URL:
        return self._here.base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for client in (self._here, *self._stores.values()):
            client.close()

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
            raise self._unreachable(error, time.monotonic() - begin) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _unreachable(self, error: Exception, seconds: float) -> MoergeError:
        reason = _reason(error)
        if _is_refused_by_proxy(error):
            todo = f"write user and password of the proxy into {self._proxy}, or ask its operator to allow this host"
            todo = f"{todo}; to use no proxy, set NO_PROXY={self.url.host}"
            return MoergeError(f"the proxy of {self._proxy} answers: {reason}", where=str(self.url), todo=todo)
        checked = "the coordinator, its address" + (f", the proxy of {self._proxy}" if self._proxy else "")
        todo = f"check {checked} and the network, then run the command again"
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            todo = "name your authority's PEM file in SSL_CERT_FILE, if the certificate is of a private authority"
        return MoergeError(f"no answer for {seconds:.0f} s: {reason}", where=str(self.url), todo=todo)

    def _passes(self, error: Exception) -> bool:
        """Tell whether an error is temporary; full storage counts only with unlimited patience."""
        if not isinstance(error, CoordinatorError):
            return isinstance(error, httpx.TransportError) and not _is_refused_by_proxy(error)
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
            with (
                _sendable(self.url),
                self._here.stream(
                    method, path, content=content, headers=headers, params=params, timeout=limit
                ) as response,
            ):
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
            stack.enter_context(_sendable(self.url))
            response = stack.enter_context(self._here.stream("GET", path, headers=headers))
            if response.has_redirect_location:
                url = _target(response)
                _require_encrypted(url, "download")
                _require_as_far(url, self.url)
                response = stack.enter_context(self._store(url).stream("GET", url, headers=headers))
                if not response.is_success:
                    raise _refusal(response, _of_store(response))
            yield response if _is_content(response) else _checked(_whole(response))

    def _store(self, url: httpx.URL) -> httpx.Client:
        if url.host not in self._stores:
            hooks = {"response": [_require_plain]}
            self._stores[url.host] = self._client(url, headers=_PLAIN, event_hooks=hooks)
        return self._stores[url.host]


@contextmanager
def _sendable(url: httpx.URL) -> Iterator[None]:
    """A context of a request; one that can't be built is an error, which doesn't have its headers."""
    try:
        yield
    except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL, UnicodeEncodeError):
        what, todo = "a request can't be sent: its address or a header is invalid", "correct the names in the command"
        raise MoergeError(what, where=str(url), todo=todo) from None


def _is_refused_by_proxy(error: Exception) -> bool:
    """Tell whether a proxy has answered a connection with a status of 4xx."""
    return isinstance(error, httpx.ProxyError) and re.match(r"4\d\d\b", str(error)) is not None


def encoded(message: BaseModel) -> bytes:
    """A request's content, without the defaults, because an older coordinator refuses later fields."""
    return message.model_dump_json(exclude_defaults=True).encode()


def _read(kind: type[T], response: httpx.Response) -> T:
    """An answer as a message, without the fields that a newer coordinator added."""
    try:
        return TypeAdapter(kind).validate_json(response.content, extra="ignore")
    except ValidationError as error:
        [first, *_] = error.errors()
        if first["type"] == "json_invalid":
            raise CoordinatorError(_foreign(response)) from error
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


def _is_content(response: httpx.Response) -> bool:
    """Tell whether an answer has the requested content; REST has no HTML pages."""
    return response.is_success and _media_type(response) != "text/html"


def _media_type(response: httpx.Response) -> str:
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _checked(response: httpx.Response) -> httpx.Response:
    if _is_content(response):
        return response
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        problem = None
    if problem is None or not problem.type.startswith(_PROBLEM):
        problem = _foreign(response)
    raise _refusal(response, problem)


def _refusal(response: httpx.Response, problem: Problem) -> CoordinatorError:
    status = response.status_code
    if status == 429 and (seconds := response.headers.get("Retry-After", "")).isdecimal():
        return _TooFastError(problem, int(seconds))
    return (_UnavailableError if status in (429, 502, 503, 504) else CoordinatorError)(problem)


def _of_store(response: httpx.Response) -> Problem:
    what, todo = f"the store answers with status {response.status_code}", "run the command again, or ask the operator"
    return Problem.of(ProblemType.INTERNAL, what, field=_place(response.url), todo=todo)


def _foreign(response: httpx.Response) -> Problem:
    """The problem of an answer that isn't the coordinator's: a proxy's, a login page, another server's."""
    status = response.status_code
    if response.has_redirect_location:
        what = f"the server redirects to {_place(_target(response))}"
        todo = (
            "if that is a login page, ask the operator to exempt moerge's REST paths from it; "
            "if it is the coordinator, name it"
        )
    else:
        kind = _media_type(response) or "no content type"
        what = f"the server answers with status {status} and {kind}, not as a coordinator"
        todo = _REMEDIES.get(status, _REMEDY)
    return Problem.of(ProblemType.INTERNAL, what, field=_place(response.url), todo=todo)
