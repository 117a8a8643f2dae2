"""The coordinator's REST calls, typed."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import JsonValue

from moerge.client.downloads import download
from moerge.client.http import JSON, Http, Pages, optional
from moerge.client.uploads import upload
from moerge.errors import CoordinatorError, MoergeError
from moerge.progress import Progress
from moerge_proto.audit import AuditEntry
from moerge_proto.contributions import Contribution, ContributionSignature, NewContribution, Submission
from moerge_proto.evaluations import Evaluation, NewEvaluation, VersionTable
from moerge_proto.experts import Expert, NewExpert, Purge, Purged, Withdraw, Withdrawal
from moerge_proto.history import TrunkHistory
from moerge_proto.influence import VersionInfluence
from moerge_proto.messages import FileEntry
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
from moerge_proto.progress import DomainProgress
from moerge_proto.progress import Progress as ProgressMessage
from moerge_proto.rounds import NewRound, Round, RoundChange
from moerge_proto.signatures import JoinRequest, Rotation
from moerge_proto.statistics_file import Kind
from moerge_proto.trunks import Contributors, NewTrunk, Trunk
from moerge_proto.uploads import Stored
from moerge_proto.versions import (
    Alias,
    AliasMove,
    Comparison,
    EngineLimit,
    Move,
    NewVersion,
    Rollback,
    SolveReport,
    Version,
    VersionChange,
)
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowKind, WorkflowState

_log = logging.getLogger("moerge.client")
_LONGEST_PAUSE, _TOLD_SECONDS = 2.0, 60.0


@dataclass(frozen=True)
class Greeting:
    """A coordinator's claimed identity.

    Attributes:
        version: its version of moerge.
        ahead: its clock minus this machine's in seconds, accurate to one or two.
        certificate: subject, issuer and end of its TLS certificate; None on plain HTTP.
    """

    version: str
    ahead: float
    certificate: str | None


class Client:
    """Calls one coordinator with one bearer token. Repeats failed requests for `patience` seconds.

    The first repetition calls `say`; its default logs a warning, which Python prints on standard error without a
    logging configuration. With `patience` None, requests are repeated without limit, also while the coordinator's
    storage is full, and `say` is called every minute; with 0, never. The timeout of an answer is `timeout` seconds;
    every answer calls `heard`. Every call is safe to repeat, because the coordinator names stored data by content.
    Requests have the further `headers`; a `transport` replaces the network.

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
        self._say = say
        self.http = Http(
            url, token, patience=patience, timeout=timeout, say=say, heard=heard, headers=headers, transport=transport
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self.http.close()

    # --- the coordinator's data

    def greeting(self) -> Greeting:
        """The coordinator's greeting; needs no token. Another HTTPS server's answer is an error."""
        begin = datetime.now(UTC)
        response = self.http.send("GET", "/healthz")
        middle = begin + (datetime.now(UTC) - begin) / 2
        try:
            version = str(response.json()["version"])
            there = parsedate_to_datetime(response.headers["Date"])
        except (ValueError, KeyError, TypeError) as error:
            problem, todo = "the server at this address is not a moerge coordinator", "correct the address"
            raise MoergeError(problem, where=str(self.http.url), todo=todo) from error
        tls = response.extensions["network_stream"].get_extra_info("ssl_object")
        return Greeting(version, (there - middle).total_seconds(), None if tls is None else _names(tls.getpeercert()))

    def identity(self) -> Identity:
        return self.http.get(Identity, "/v1/identity")

    def add_owner(self, owner: NewOwner) -> Owner:
        return self.http.post(Owner, "/v1/owners", owner)

    def owners(self) -> Pages[Owner]:
        return Pages(self.http, Owner, "/v1/owners")

    def approve(self, request: JoinRequest, *, replace: bool = False) -> Approved:
        return self.http.post(
            Approved, f"/v1/owners/{request.owner}/approve", Approval(request=request, replace=replace)
        )

    def revoke_owner(self, name: str) -> Owner:
        return self.http.post(Owner, f"/v1/owners/{name}/revoke")

    def rotate_key(self, rotation: Rotation) -> Owner:
        return self.http.post(Owner, "/v1/identity/rotate", rotation)

    def add_token(self, token: NewToken) -> Token:
        return self.http.post(Token, "/v1/tokens", token)

    def tokens(self) -> Pages[TokenEntry]:
        return Pages(self.http, TokenEntry, "/v1/tokens")

    def revoke_token(self, id_: int) -> TokenEntry:
        return self.http.message(TokenEntry, "DELETE", f"/v1/tokens/{id_}")

    def rotate_token(self, id_: int, overlap_seconds: int = 0) -> Token:
        return self.http.post(Token, f"/v1/tokens/{id_}/rotate", RotateToken(overlap_seconds=overlap_seconds))

    def settings(self) -> dict[str, JsonValue]:
        """The coordinator's settings, without passwords (operators only)."""
        return self.http.get(dict[str, JsonValue], "/v1/settings")

    def audit(
        self, after: int = 0, *, newest: bool = False, owner: str = "", path: str = "", failed: bool = False
    ) -> Pages[AuditEntry]:
        """The entries after that number, oldest first; with `newest`, newest first.

        Only those of `owner`, of paths that begin with `path`, or of failed calls.
        """
        return Pages(self.http, AuditEntry, "/v1/audit", after, newest=newest, owner=owner, path=path, failed=failed)

    def register_expert(self, expert: NewExpert) -> Expert:
        return self.http.post(Expert, "/v1/experts", expert)

    def check_expert(self, expert: NewExpert) -> None:
        """Checks that an expert fits the others; its config and tokenizer must be uploaded.

        Raises:
            CoordinatorError: it doesn't, with the reason.
        """
        self.http.send("POST", "/v1/experts/check", content=expert.model_dump_json().encode(), headers=JSON)

    def expert(self, digest: str) -> Expert:
        return self.http.get(Expert, f"/v1/experts/{digest}")

    def experts(self) -> Pages[Expert]:
        return Pages(self.http, Expert, "/v1/experts")

    def withdraw_expert(self, digest: str, *, serve: bool = True) -> Withdrawal:
        return self.http.post(Withdrawal, f"/v1/experts/{digest}/withdraw", Withdraw(serve=serve))

    def purge_expert(self, digest: str, *, retire: bool = False) -> Purged:
        return self.http.post(Purged, f"/v1/experts/{digest}/purge", Purge(retire=retire))

    def merge_trunk(self, trunk: NewTrunk) -> Workflow:
        return self.http.post(Workflow, "/v1/trunks", trunk)

    def trunks(self) -> Pages[Trunk]:
        return Pages(self.http, Trunk, "/v1/trunks")

    def trunk(self, digest: str) -> Trunk:
        return self.http.get(Trunk, f"/v1/trunks/{digest}")

    def contributors(self, trunk: str = "current") -> Contributors:
        """The contributed and missing domains of a trunk (operators only)."""
        return self.http.get(Contributors, f"/v1/trunks/{trunk}/contributors")

    def trunk_history(self, digest: str) -> TrunkHistory:
        return self.http.get(TrunkHistory, f"/v1/trunks/{digest}/history")

    def current_trunk(self) -> Trunk | None:
        """The trunk for new contributions, or None before the first merge."""
        return optional(self.trunk, "current")

    def contribute(self, new: NewContribution) -> Contribution:
        """The contribution of an uploaded file, after the coordinator's check, which may take minutes.

        Raises:
            CoordinatorError: it is refused, with the reason.
        """
        asked = Submission.model_validate(new.model_dump(exclude={"sha256"}))
        path = f"/v1/contributions/{new.sha256}"
        self.http.patiently(lambda: self.wait(self.http.message(Workflow, "PUT", path, asked)))
        return self.http.get(Contribution, path)

    def contributions(self, kind: Kind = "router", *, newest: bool = False) -> Pages[Contribution]:
        return Pages(self.http, Contribution, "/v1/contributions", kind=kind, newest=newest)

    def withdraw_contribution(self, digest: str) -> Contribution:
        return self.http.post(Contribution, f"/v1/contributions/{digest}/withdraw")

    def open_round(self, new: NewRound) -> Round:
        return self.http.post(Round, "/v1/rounds", new)

    def change_round(self, name: str, change: RoundChange) -> Round:
        return self.http.message(Round, "PATCH", f"/v1/rounds/{name}", change)

    def round(self, name: str) -> Round:
        return self.http.get(Round, f"/v1/rounds/{name}")

    def rounds(self) -> Pages[Round]:
        return Pages(self.http, Round, "/v1/rounds")

    def tell_progress(self, progress: ProgressMessage) -> DomainProgress:
        return self.http.message(DomainProgress, "PUT", "/v1/progress", progress)

    def progress(self) -> Pages[DomainProgress]:
        return Pages(self.http, DomainProgress, "/v1/progress")

    def solve_version(self, version: NewVersion) -> Workflow:
        return self.http.post(Workflow, "/v1/versions", version)

    def version(self, number: int) -> Version:
        return self.http.get(Version, f"/v1/versions/{number}")

    def version_signatures(self, number: int) -> list[ContributionSignature]:
        """Signatures of its contributions; `is_genuine` verifies each without trust in the coordinator."""
        return self.http.get(list[ContributionSignature], f"/v1/versions/{number}/signatures")

    def version_report(self, number: int) -> SolveReport:
        """The report of its solves (operators and readers only)."""
        return self.http.get(SolveReport, f"/v1/versions/{number}/report")

    def version_influence(self, number: int) -> VersionInfluence:
        """The influence of each owner on its routers (operators only)."""
        return self.http.get(VersionInfluence, f"/v1/versions/{number}/influence")

    def engine_limits(self, number: int) -> list[EngineLimit]:
        """The engines that don't run the version as transformers does."""
        return self.http.get(list[EngineLimit], f"/v1/versions/{number}/engines")

    def versions(self, after: int = 0, *, newest: bool = False) -> Pages[Version]:
        """The versions after that number, oldest first; with `newest`, newest first."""
        return Pages(self.http, Version, "/v1/versions", after, newest=newest)

    def change_version(self, number: int, change: VersionChange) -> Version:
        return self.http.message(Version, "PATCH", f"/v1/versions/{number}", change)

    def retire_version(self, number: int) -> Version:
        return self.http.message(Version, "DELETE", f"/v1/versions/{number}")

    def compare_versions(self, before: int, after: int) -> Comparison:
        return self.http.get(Comparison, f"/v1/versions/{before}/compare/{after}")

    def evaluate(self, number: int, evaluation: NewEvaluation) -> Evaluation:
        return self.http.post(Evaluation, f"/v1/versions/{number}/evaluations", evaluation)

    def evaluations(self, number: int) -> Pages[Evaluation]:
        return Pages(self.http, Evaluation, f"/v1/versions/{number}/evaluations")

    def version_card(self, number: int) -> str:
        """The model card, with number, date and the scores visible to this token."""
        return self.http.send("GET", f"/v1/versions/{number}/card").text

    def version_table(self, number: int) -> VersionTable:
        return self.http.get(VersionTable, f"/v1/versions/{number}/table")

    def alias(self, name: str) -> Alias:
        return self.http.get(Alias, f"/v1/aliases/{name}")

    def aliases(self) -> Pages[Alias]:
        return Pages(self.http, Alias, "/v1/aliases")

    def alias_history(self, name: str) -> Pages[AliasMove]:
        return Pages(self.http, AliasMove, f"/v1/aliases/{name}/history")

    def promote(self, alias: str, version: int, note: str = "", override: str = "") -> Alias:
        move = Move(version=version, note=note, override=override)
        return self.http.message(Alias, "PUT", f"/v1/aliases/{quote(alias, safe='')}", move)

    def roll_back(self, alias: str, version: int, note: str = "") -> Alias:
        """Reverts the last promotion of an alias; `version` is its present one."""
        return self.http.post(Alias, f"/v1/aliases/{alias}/rollback", Rollback(version=version, note=note))

    def remove_alias(self, alias: str) -> None:
        self.http.send("DELETE", f"/v1/aliases/{alias}")

    def workflow(self, id_: str) -> Workflow:
        return self.http.get(Workflow, f"/v1/workflows/{id_}")

    def workflows(self, kind: WorkflowKind | None = None) -> Pages[WorkflowEntry]:
        """All workflows, or those of a kind, newest first."""
        return Pages(self.http, WorkflowEntry, "/v1/workflows", kind=kind)

    def wait(self, workflow: Workflow) -> str:
        """Waits for a workflow and returns its result; calls `say` every minute.

        Raises:
            CoordinatorError: the workflow failed, with its problem.
        """
        pause, begin, told = 0.02, time.monotonic(), 0.0
        while workflow.state is WorkflowState.RUNNING:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            workflow = self.workflow(workflow.id)
            if (seconds := time.monotonic() - begin) >= told + _TOLD_SECONDS:
                self._say(f"the coordinator has been running {workflow.id} for {seconds:.0f} s")
                told = seconds
        if workflow.problem is not None:
            raise CoordinatorError(workflow.problem)
        return str(workflow.result)

    def retry_workflow(self, id_: str) -> Workflow:
        return self.http.post(Workflow, f"/v1/workflows/{id_}/retry")

    # --- uploads and downloads

    def upload(self, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
        """Uploads one file in chunks; see `moerge.client.uploads`."""
        return upload(self.http, path, progress, title=title, compress=compress)

    def drop_upload(self, upload: int) -> None:
        """Drops one of the caller's open uploads."""
        self.http.send("DELETE", f"/v1/uploads/{upload}")

    def download(self, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
        """Downloads `files` from below `path` into `folder`; see `moerge.client.downloads`."""
        return download(self.http, path, files, folder, progress, title=title)


def _names(certificate: Mapping[str, Any]) -> str:
    """Subject, issuer and end of a certificate."""
    names = [name for _, name in certificate.get("subjectAltName", ())]
    issuer = {key: value for part in certificate.get("issuer", ()) for key, value in part}
    by = issuer.get("organizationName") or issuer.get("commonName", "an unnamed issuer")
    return f"{', '.join(names) or 'no name'}, issued by {by}, valid until {certificate.get('notAfter')}"
