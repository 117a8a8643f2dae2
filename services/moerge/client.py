"""The coordinator over HTTP: typed calls, uploads in chunks, downloads that are checked."""

import hashlib
import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import httpx
import stamina
import zstandard
from pydantic import BaseModel, ValidationError

from moerge.errors import CoordinatorError, MoergeError
from moerge.files import atomic_file, file_sha256
from moerge.progress import Progress
from moerge_proto.contributions import Contribution, NewContribution, TrunkContribution
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.experts import Expert, NewExpert
from moerge_proto.messages import FileEntry, Page
from moerge_proto.owners import Identity, NewOwner, NewToken, Owner, Token
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.trunks import NewTrunk, Trunk
from moerge_proto.uploads import CHUNK_BYTES, Chunk, NewUpload, Stored, Upload
from moerge_proto.versions import NewVersion, SolveReport, Version
from moerge_proto.workflows import Workflow

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
_READ_BYTES = 2**20


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _UnavailableError(Exception):
    """The coordinator can't answer now; try again."""


class _TooFastError(Exception):
    """The coordinator asks to wait for `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Client:
    """Speaks to one coordinator with one bearer token. Requests that fail on the way are repeated for `patience` s.

    Every call is safe to repeat, because the coordinator names what it keeps by content.

    Raises:
        MoergeError: the URL is plain HTTP to another machine.
    """

    def __init__(self, url: str, token: str, *, patience: float = 60.0) -> None:
        parsed = httpx.URL(url)
        if parsed.scheme != "https" and not (parsed.scheme == "http" and _is_loopback(parsed.host)):
            raise MoergeError(
                f"{url} is not encrypted, so the token and the statistics could be read on the way",
                where="coordinator",
                todo="use an https:// address; plain http:// is for 127.0.0.1 and localhost only",
            )
        self._patience = patience
        self._http = httpx.Client(
            base_url=parsed, headers={"Authorization": f"Bearer {token}"}, timeout=httpx.Timeout(600.0, connect=10.0)
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._http.close()

    # --- plain requests

    def _patiently(self, call: Callable[[], T]) -> T:
        """What `call` returns, repeated while the coordinator can't be reached or asks to wait."""
        while True:
            try:
                return self._repeated(call)
            except _TooFastError as error:
                time.sleep(error.seconds)

    def _repeated(self, call: Callable[[], T]) -> T:
        try:
            for attempt in stamina.retry_context(
                on=(httpx.TransportError, _UnavailableError), attempts=None, timeout=self._patience, wait_max=5.0
            ):
                with attempt:
                    return call()
        except (httpx.TransportError, _UnavailableError) as error:
            raise MoergeError(
                f"no answer for {self._patience:.0f} s: {error or type(error).__name__}",
                where=str(self._http.base_url),
                todo="check that the coordinator runs and that this machine reaches it, then run the command again",
            ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, int] | None = None,
    ) -> httpx.Response:
        def send() -> httpx.Response:
            response = self._http.request(method, path, content=content, headers=headers, params=params)
            _raise_for_problem(response)
            return response

        return self._patiently(send)

    def _get(self, kind: type[M], path: str) -> M:
        return kind.model_validate_json(self._send("GET", path).content)

    def _post(self, kind: type[M], path: str, message: BaseModel | None = None) -> M:
        content = b"" if message is None else message.model_dump_json().encode()
        headers = {"Content-Type": "application/json"}
        return kind.model_validate_json(self._send("POST", path, content=content, headers=headers).content)

    def _pages(self, kind: type[M], path: str) -> Iterator[M]:
        after: int | None = 0
        while after is not None:
            page = Page[kind].model_validate_json(  # type: ignore[valid-type]  # a generic built at run time
                self._send("GET", path, params={"after": after}).content
            )
            yield from page.items
            after = page.next

    # --- what the coordinator keeps

    def identity(self) -> Identity:
        return self._get(Identity, "/v1/identity")

    def add_owner(self, owner: NewOwner) -> Owner:
        return self._post(Owner, "/v1/owners", owner)

    def owners(self) -> Iterator[Owner]:
        return self._pages(Owner, "/v1/owners")

    def add_token(self, token: NewToken) -> Token:
        return self._post(Token, "/v1/tokens", token)

    def register_expert(self, expert: NewExpert) -> Expert:
        return self._post(Expert, "/v1/experts", expert)

    def expert(self, digest: str) -> Expert:
        return self._get(Expert, f"/v1/experts/{digest}")

    def experts(self) -> Iterator[Expert]:
        return self._pages(Expert, "/v1/experts")

    def merge_trunk(self, trunk: NewTrunk) -> Workflow:
        return self._post(Workflow, "/v1/trunks", trunk)

    def trunks(self) -> Iterator[Trunk]:
        return self._pages(Trunk, "/v1/trunks")

    def trunk(self, digest: str) -> Trunk:
        return self._get(Trunk, f"/v1/trunks/{digest}")

    def current_trunk(self) -> Trunk | None:
        """The trunk under which contributions are asked for, or None before the first merge."""
        try:
            return self._get(Trunk, "/v1/trunks/current")
        except CoordinatorError as error:
            if error.type == ProblemType.NOT_FOUND.urn:
                return None
            raise

    def contribute(self, contribution: NewContribution) -> Contribution:
        return self._post(Contribution, "/v1/contributions", contribution)

    def contributions(self) -> Iterator[Contribution]:
        return self._pages(Contribution, "/v1/contributions")

    def contribute_trunk(self, contribution: NewContribution) -> TrunkContribution:
        return self._post(TrunkContribution, "/v1/trunk-contributions", contribution)

    def trunk_contributions(self) -> Iterator[TrunkContribution]:
        return self._pages(TrunkContribution, "/v1/trunk-contributions")

    def solve_version(self, version: NewVersion) -> Workflow:
        return self._post(Workflow, "/v1/versions", version)

    def version(self, number: int) -> Version:
        return self._get(Version, f"/v1/versions/{number}")

    def version_report(self, number: int) -> SolveReport:
        """What solving its routers showed; operators and readers may see it."""
        return self._get(SolveReport, f"/v1/versions/{number}/files/moerge-report.json")

    def versions(self) -> Iterator[Version]:
        return self._pages(Version, "/v1/versions")

    def workflow(self, id_: str) -> Workflow:
        return self._get(Workflow, f"/v1/workflows/{id_}")

    # --- uploads and downloads

    def upload(self, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
        """Uploads one file in chunks. What an earlier, interrupted upload sent is not sent again.

        With `compress`, each chunk travels as a zstd frame. At most one chunk is held in memory.
        """
        encode = _compress if compress else _identity
        whole = hashlib.sha256()
        chunks: list[Chunk] = []
        places: dict[str, int] = {}
        for offset, plain in _plain_chunks(path):
            whole.update(plain)
            sent = encode(plain)
            chunks.append(Chunk(sha256=sha256_hex(sent), size=len(sent)))
            places.setdefault(chunks[-1].sha256, offset)
        upload = self._post(
            Upload,
            "/v1/uploads",
            NewUpload(
                sha256=whole.hexdigest(),
                size=path.stat().st_size,
                encoding="zstd" if compress else "identity",
                chunks=chunks,
            ),
        )
        sizes = {chunk.sha256: chunk.size for chunk in chunks}
        with path.open("rb") as file, progress.track(title, sum(sizes.values()), "B") as tracker:
            tracker.advance(sum(sizes.values()) - sum(sizes[digest] for digest in upload.missing))
            for digest in upload.missing:
                file.seek(places[digest])
                body = encode(file.read(CHUNK_BYTES))
                headers = {"Content-Digest": content_digest(digest), "Content-Type": "application/octet-stream"}
                self._send("PUT", f"/v1/uploads/{upload.id}/chunks/{digest}", content=body, headers=headers)
                tracker.advance(len(body))
        return self._post(Stored, f"/v1/uploads/{upload.id}/commit")

    def download(self, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
        """Downloads `files` from below `path` into `folder` and returns the bytes that came.

        Each file is checked against its digest and appears under its name only when complete. Files that are there
        already, with the right content, are kept.
        """
        come = 0
        with progress.track(title, sum(file.size for file in files), "B") as tracker:
            for file in files:
                target = folder / file.name
                if Path(file.name).name != file.name:
                    raise MoergeError(f"the coordinator names a file outside the folder: {file.name!r}")
                if target.is_file() and file_sha256(target) == file.sha256:
                    tracker.advance(file.size)
                    continue
                self._patiently(lambda f=file, t=target: self._download_one(f"{path}/{f.name}", f, t, tracker.advance))  # type: ignore[misc]
                come += file.size
        return come

    def _download_one(self, path: str, file: FileEntry, target: Path, advance: Callable[[int], None]) -> None:
        digest = hashlib.sha256()
        with self._http.stream("GET", path) as response, atomic_file(target) as out:
            if response.is_error:
                response.read()
                _raise_for_problem(response)
            for piece in response.iter_bytes(_READ_BYTES):
                digest.update(piece)
                out.write(piece)
                advance(len(piece))
            if digest.hexdigest() != file.sha256:
                raise MoergeError(
                    f"expected SHA-256 {file.sha256}, received {digest.hexdigest()}",
                    where=file.name,
                    todo="run the command again; if it stays, the coordinator's disk is damaged",
                )


def _plain_chunks(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        offset = 0
        while piece := file.read(CHUNK_BYTES):
            yield offset, piece
            offset += len(piece)


def _identity(data: bytes) -> bytes:
    return data


def _compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def _raise_for_problem(response: httpx.Response) -> None:
    if response.status_code == 429 and (seconds := response.headers.get("Retry-After", "")).isdecimal():
        raise _TooFastError(int(seconds))
    if response.status_code in (429, 502, 503, 504):
        raise _UnavailableError(f"status {response.status_code}")
    if response.is_error:
        try:
            problem = Problem.model_validate_json(response.content)
        except ValidationError:
            problem = Problem.of(ProblemType.INTERNAL, f"status {response.status_code} without a problem document")
        raise CoordinatorError(problem)
