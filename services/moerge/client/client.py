"""The coordinator over HTTP: typed calls, uploads in chunks, downloads that are checked."""

import hashlib
import ipaddress
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import stamina
import zstandard
from pydantic import BaseModel, TypeAdapter, ValidationError

from moerge.errors import CoordinatorError, MoergeError
from moerge.files import file_sha256, sync_folder
from moerge.progress import Progress
from moerge_proto.audit import AuditEntry
from moerge_proto.contributions import Contribution, ContributionSignature, NewContribution, TrunkContribution
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.evaluations import Evaluation, NewEvaluation, VersionTable
from moerge_proto.experts import Expert, NewExpert, Purge, Purged, Withdraw, Withdrawal
from moerge_proto.history import TrunkHistory
from moerge_proto.messages import FileEntry, Page
from moerge_proto.owners import (
    Approval,
    Approved,
    Identity,
    NewOwner,
    NewToken,
    Owner,
    RotateToken,
    Token,
    TokenEntry,
)
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.progress import Progress as ProgressMessage
from moerge_proto.rounds import NewRound, Round, RoundChange
from moerge_proto.routing import RoutedText, TextToRoute
from moerge_proto.signatures import JoinRequest, Rotation
from moerge_proto.trunks import NewTrunk, Trunk
from moerge_proto.uploads import CHUNK_BYTES, Chunk, NewUpload, Stored, Upload
from moerge_proto.versions import (
    Alias,
    AliasMove,
    Comparison,
    Move,
    NewVersion,
    Rollback,
    SolveReport,
    Version,
    VersionChange,
)
from moerge_proto.workflows import Workflow, WorkflowEntry

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
_READ_BYTES = 2**20
_FIRST_TOLD_SECONDS, _TOLD_SECONDS = 5.0, 60.0
_LONGEST_PAUSE = 30.0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _require_encrypted(url: httpx.URL, where: str) -> None:
    if url.scheme != "https" and not (url.scheme == "http" and _is_loopback(url.host)):
        raise MoergeError(
            f"{url.copy_with(query=None)} is not encrypted, so the token and the statistics could be read on the way",
            where=where,
            todo="use an https:// address; plain http:// is for 127.0.0.1 and localhost only",
        )


class _UnavailableError(Exception):
    """The coordinator can't answer now; try again."""


class _TooFastError(Exception):
    """The coordinator asks to wait for `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True)
class Greeting:
    """Who a coordinator claims to be.

    Attributes:
        version: of moerge that it runs.
        ahead: seconds that its clock is ahead of this machine's, to one or two.
        certificate: whom its TLS certificate names, by whom, until when; None on plain HTTP.
    """

    version: str
    ahead: float
    certificate: str | None


class Client:
    """Speaks to one coordinator with one bearer token. Requests that fail on the way are repeated for `patience` s.

    With `patience` None they are repeated for as long as it takes, also while the coordinator's storage is full, and
    `say` is told every minute that this waits. An answer may take `timeout` s; `heard` is called at each. Every call
    is safe to repeat, because the coordinator names what it keeps by content.

    Raises:
        MoergeError: the URL is plain HTTP to another machine.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience: float | None = 60.0,
        timeout: float = 600.0,
        say: Callable[[str], None] = lambda text: None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        parsed = httpx.URL(url)
        _require_encrypted(parsed, "coordinator")
        limits = httpx.Timeout(timeout, connect=min(timeout, 10.0))
        self._patience, self._say = patience, say
        headers, hooks = {"Authorization": f"Bearer {token}"}, {"response": [lambda response: heard()]}
        self._http = httpx.Client(base_url=parsed, headers=headers, timeout=limits, event_hooks=hooks)
        self._elsewhere = httpx.Client(timeout=limits)  # without the token

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._http.close()
        self._elsewhere.close()

    # --- plain requests

    def _patiently(self, call: Callable[[], T]) -> T:
        """What `call` returns, repeated while the coordinator can't be reached or asks to wait."""
        while True:
            try:
                return self._repeated(call)
            except _TooFastError as error:
                time.sleep(error.seconds)

    def _repeated(self, call: Callable[[], T]) -> T:
        begin = time.monotonic()
        tell = begin + _FIRST_TOLD_SECONDS

        def passes(error: Exception) -> bool:
            nonlocal tell
            if not (isinstance(error, httpx.TransportError | _UnavailableError) or self._is_full(error)):
                return False
            if self._patience is None and (now := time.monotonic()) >= tell:
                tell = now + _TOLD_SECONDS
                reason = str(error) or type(error).__name__
                self._say(f"no answer from {self._http.base_url} for {now - begin:.0f} s ({reason}); waiting for it")
            return True

        longest = _LONGEST_PAUSE if self._patience is None else 5.0
        try:
            for attempt in stamina.retry_context(on=passes, attempts=None, timeout=self._patience, wait_max=longest):
                with attempt:
                    answer = call()
                    if tell > begin + _FIRST_TOLD_SECONDS:
                        self._say(f"{self._http.base_url} answers again, after {time.monotonic() - begin:.0f} s")
                    return answer
        except (httpx.TransportError, _UnavailableError) as error:
            raise MoergeError(
                f"no answer for {time.monotonic() - begin:.0f} s: {error or type(error).__name__}",
                where=str(self._http.base_url),
                todo="check that the coordinator runs and that this machine reaches it, then run the command again",
            ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _is_full(self, error: Exception) -> bool:
        full = isinstance(error, CoordinatorError) and error.type == ProblemType.STORAGE_FULL.urn
        return full and self._patience is None

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
        return self._message(kind, "POST", path, message)

    def _message(self, kind: type[M], method: str, path: str, message: BaseModel | None = None) -> M:
        content = b"" if message is None else message.model_dump_json().encode()
        headers = {"Content-Type": "application/json"}
        return kind.model_validate_json(self._send(method, path, content=content, headers=headers).content)

    def _pages(self, kind: type[M], path: str, after: int = 0) -> Iterator[M]:
        following: int | None = after
        while following is not None:
            page = Page[kind].model_validate_json(  # type: ignore[valid-type]  # a generic built at run time
                self._send("GET", path, params={"after": following}).content
            )
            yield from page.items
            following = page.next

    # --- what the coordinator keeps

    def greeting(self) -> Greeting:
        """Who answers there; no token is needed, and any HTTPS server's answer but a coordinator's is an error."""
        begin = datetime.now(UTC)
        response = self._send("GET", "/healthz")
        middle = begin + (datetime.now(UTC) - begin) / 2
        try:
            version = str(response.json()["version"])
            there = parsedate_to_datetime(response.headers["Date"])
        except (ValueError, KeyError, TypeError) as error:
            found, todo = "what answers there is no coordinator", "correct the address"
            raise MoergeError(found, where=str(self._http.base_url), todo=todo) from error
        tls = response.extensions["network_stream"].get_extra_info("ssl_object")
        return Greeting(version, (there - middle).total_seconds(), None if tls is None else _names(tls.getpeercert()))

    def identity(self) -> Identity:
        return self._get(Identity, "/v1/identity")

    def add_owner(self, owner: NewOwner) -> Owner:
        return self._post(Owner, "/v1/owners", owner)

    def owners(self) -> Iterator[Owner]:
        return self._pages(Owner, "/v1/owners")

    def approve(self, request: JoinRequest, *, replace: bool = False) -> Approved:
        return self._post(Approved, f"/v1/owners/{request.owner}/approve", Approval(request=request, replace=replace))

    def revoke_owner(self, name: str) -> Owner:
        return self._post(Owner, f"/v1/owners/{name}/revoke")

    def rotate_key(self, rotation: Rotation) -> Owner:
        return self._post(Owner, "/v1/identity/rotate", rotation)

    def add_token(self, token: NewToken) -> Token:
        return self._post(Token, "/v1/tokens", token)

    def tokens(self) -> Iterator[TokenEntry]:
        return self._pages(TokenEntry, "/v1/tokens")

    def revoke_token(self, id_: int) -> TokenEntry:
        return self._message(TokenEntry, "DELETE", f"/v1/tokens/{id_}")

    def rotate_token(self, id_: int, overlap_seconds: int = 0) -> Token:
        return self._post(Token, f"/v1/tokens/{id_}/rotate", RotateToken(overlap_seconds=overlap_seconds))

    def audit(self, after: int = 0) -> Iterator[AuditEntry]:
        """The calls after that number, oldest first."""
        return self._pages(AuditEntry, "/v1/audit", after)

    def register_expert(self, expert: NewExpert) -> Expert:
        return self._post(Expert, "/v1/experts", expert)

    def expert(self, digest: str) -> Expert:
        return self._get(Expert, f"/v1/experts/{digest}")

    def experts(self) -> Iterator[Expert]:
        return self._pages(Expert, "/v1/experts")

    def withdraw_expert(self, digest: str, *, serve: bool = True) -> Withdrawal:
        return self._post(Withdrawal, f"/v1/experts/{digest}/withdraw", Withdraw(serve=serve))

    def purge_expert(self, digest: str, *, retire: bool = False) -> Purged:
        return self._post(Purged, f"/v1/experts/{digest}/purge", Purge(retire=retire))

    def merge_trunk(self, trunk: NewTrunk) -> Workflow:
        return self._post(Workflow, "/v1/trunks", trunk)

    def trunks(self) -> Iterator[Trunk]:
        return self._pages(Trunk, "/v1/trunks")

    def trunk(self, digest: str) -> Trunk:
        return self._get(Trunk, f"/v1/trunks/{digest}")

    def trunk_history(self, digest: str) -> TrunkHistory:
        return self._get(TrunkHistory, f"/v1/trunks/{digest}/history")

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

    def withdraw_contribution(self, digest: str) -> Contribution:
        return self._post(Contribution, f"/v1/contributions/{digest}/withdraw")

    def contribute_trunk(self, contribution: NewContribution) -> TrunkContribution:
        return self._post(TrunkContribution, "/v1/trunk-contributions", contribution)

    def trunk_contributions(self) -> Iterator[TrunkContribution]:
        return self._pages(TrunkContribution, "/v1/trunk-contributions")

    def withdraw_trunk_contribution(self, digest: str) -> TrunkContribution:
        return self._post(TrunkContribution, f"/v1/trunk-contributions/{digest}/withdraw")

    def open_round(self, new: NewRound) -> Round:
        return self._post(Round, "/v1/rounds", new)

    def change_round(self, name: str, change: RoundChange) -> Round:
        return self._message(Round, "PATCH", f"/v1/rounds/{name}", change)

    def round(self, name: str) -> Round:
        return self._get(Round, f"/v1/rounds/{name}")

    def rounds(self) -> Iterator[Round]:
        return self._pages(Round, "/v1/rounds")

    def tell_progress(self, progress: ProgressMessage) -> DomainProgress:
        return self._message(DomainProgress, "PUT", "/v1/progress", progress)

    def progress(self) -> Iterator[DomainProgress]:
        return self._pages(DomainProgress, "/v1/progress")

    def solve_version(self, version: NewVersion) -> Workflow:
        return self._post(Workflow, "/v1/versions", version)

    def version(self, number: int) -> Version:
        return self._get(Version, f"/v1/versions/{number}")

    def version_signatures(self, number: int) -> list[ContributionSignature]:
        """Who vouches for what it was made of; `is_genuine` checks each without trusting the coordinator."""
        content = self._send("GET", f"/v1/versions/{number}/signatures").content
        return TypeAdapter(list[ContributionSignature]).validate_json(content)

    def version_report(self, number: int) -> SolveReport:
        """What solving its routers showed; operators and readers may see it."""
        return self._get(SolveReport, f"/v1/versions/{number}/report")

    def versions(self) -> Iterator[Version]:
        return self._pages(Version, "/v1/versions")

    def change_version(self, number: int, change: VersionChange) -> Version:
        return self._message(Version, "PATCH", f"/v1/versions/{number}", change)

    def retire_version(self, number: int) -> Version:
        return self._message(Version, "DELETE", f"/v1/versions/{number}")

    def compare_versions(self, before: int, after: int) -> Comparison:
        return self._get(Comparison, f"/v1/versions/{before}/compare/{after}")

    def evaluate(self, number: int, evaluation: NewEvaluation) -> Evaluation:
        return self._post(Evaluation, f"/v1/versions/{number}/evaluations", evaluation)

    def evaluations(self, number: int) -> Iterator[Evaluation]:
        return self._pages(Evaluation, f"/v1/versions/{number}/evaluations")

    def version_table(self, number: int) -> VersionTable:
        return self._get(VersionTable, f"/v1/versions/{number}/table")

    def route_text(self, number: int, text: str) -> RoutedText:
        """How the version routes the text; operators and readers may ask, if the coordinator routes texts."""
        return self._post(RoutedText, f"/v1/versions/{number}/route", TextToRoute(text=text))

    def alias(self, name: str) -> Alias:
        return self._get(Alias, f"/v1/aliases/{name}")

    def aliases(self) -> Iterator[Alias]:
        return self._pages(Alias, "/v1/aliases")

    def alias_history(self, name: str) -> Iterator[AliasMove]:
        return self._pages(AliasMove, f"/v1/aliases/{name}/history")

    def promote(self, alias: str, version: int, note: str = "") -> Alias:
        return self._message(Alias, "PUT", f"/v1/aliases/{alias}", Move(version=version, note=note))

    def roll_back(self, alias: str, version: int, note: str = "") -> Alias:
        """Takes the last promotion of an alias back; `version` is where it points now."""
        return self._post(Alias, f"/v1/aliases/{alias}/rollback", Rollback(version=version, note=note))

    def remove_alias(self, alias: str) -> None:
        self._send("DELETE", f"/v1/aliases/{alias}")

    def workflow(self, id_: str) -> Workflow:
        return self._get(Workflow, f"/v1/workflows/{id_}")

    def workflows(self) -> Iterator[WorkflowEntry]:
        """Newest first."""
        return self._pages(WorkflowEntry, "/v1/workflows")

    def retry_workflow(self, id_: str) -> Workflow:
        return self._post(Workflow, f"/v1/workflows/{id_}/retry")

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
                if _part(target).is_file():
                    tracker.advance(_part(target).stat().st_size)
                self._patiently(lambda f=file, t=target: self._download_one(f"{path}/{f.name}", f, t, tracker.advance))  # type: ignore[misc]
                come += file.size
        return come

    @contextmanager
    def _content(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """A file's content, from the coordinator or from where it sends us; that place never sees the token."""
        with ExitStack() as stack:
            response = stack.enter_context(self._http.stream("GET", path, headers=headers))
            if response.next_request is not None:
                url = response.next_request.url
                _require_encrypted(url, "download")
                response = stack.enter_context(self._elsewhere.stream("GET", url, headers=headers))
            if not response.is_success:
                response.read()
                _raise_for_problem(response)
            yield response

    def _download_one(self, path: str, file: FileEntry, target: Path, advance: Callable[[int], None]) -> None:
        """Fetches one file; what an earlier attempt left beside it is not fetched again."""
        part = _part(target)
        part.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with ExitStack() as stack:
            out = stack.enter_context(part.open("a+b"))
            out.seek(0)
            while piece := out.read(_READ_BYTES):
                digest.update(piece)
            if out.tell() < file.size:
                headers = {"Range": f"bytes={out.tell()}-"} if out.tell() else {}
                stack.callback(lambda: None if out.tell() else part.unlink())  # nothing came, so nothing is left
                with self._content(path, headers) as response:
                    if headers and response.status_code != httpx.codes.PARTIAL_CONTENT:
                        out.truncate(0)
                        digest = hashlib.sha256()
                    for piece in response.iter_bytes(_READ_BYTES):
                        digest.update(piece)
                        out.write(piece)
                        advance(len(piece))
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != file.sha256:
            part.unlink(missing_ok=True)
            raise MoergeError(
                f"expected SHA-256 {file.sha256}, received {digest.hexdigest()}",
                where=file.name,
                todo="run the command again; if it stays, the coordinator's disk is damaged",
            )
        part.replace(target)
        sync_folder(target.parent)


def _names(certificate: Mapping[str, Any]) -> str:
    """Whom a certificate names, by whom and until when."""
    names = [name for _, name in certificate.get("subjectAltName", ())]
    issuer = {key: value for part in certificate.get("issuer", ()) for key, value in part}
    by = issuer.get("organizationName") or issuer.get("commonName", "nobody named")
    return f"{', '.join(names) or 'nobody'}, by {by}, until {certificate.get('notAfter')}"


def _part(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")


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
    if not response.is_success:
        try:
            problem = Problem.model_validate_json(response.content)
        except ValidationError:
            problem = Problem.of(ProblemType.INTERNAL, f"status {response.status_code} without a problem document")
        raise CoordinatorError(problem)
