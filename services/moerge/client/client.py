"""The coordinator's REST calls, typed."""

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import JsonValue

from moerge.client.downloads import download
from moerge.client.http import JSON, Http, Pages, about, encoded, optional
from moerge.client.uploads import upload
from moerge.errors import CoordinatorError, MoergeError
from moerge.progress import Progress
from moerge_proto.audit import AuditEntry
from moerge_proto.bodies import Body, Contributors
from moerge_proto.contributions import Contribution, ContributionSignature, Kind, NewContribution, Submission
from moerge_proto.demands import LONGEST_WAIT, Demands
from moerge_proto.evaluations import Evaluation, NewEvaluation, VersionTable
from moerge_proto.experts import Expert, NewExpert, Purge, Purged, Withdraw, Withdrawal
from moerge_proto.grants import Decided, DomainReaders, Grant, NewGrant, Usable, VersionPart
from moerge_proto.influence import VersionInfluence
from moerge_proto.messages import FileEntry
from moerge_proto.owners import Approval, Approved, Identity, NewOwner, NewToken, Owner, RotateToken, Token, TokenEntry
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.progress import Progress as ProgressMessage
from moerge_proto.public_log import LogEntry, LogHead
from moerge_proto.signatures import JoinRequest, Rotation
from moerge_proto.uploads import Stored
from moerge_proto.usage import NewUsage, Usage
from moerge_proto.version_keys import KeyRotation, NewSignature, VersionKey
from moerge_proto.version_names import version_name
from moerge_proto.versions import (
    Alias,
    AliasMove,
    EngineLimit,
    Move,
    NewVersion,
    PromotionCheck,
    Rollback,
    SignedCard,
    SolveReport,
    Version,
    VersionChange,
)
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowKind, WorkflowState

_LONGEST_PAUSE, _REPORT_SECONDS = 2.0, 60.0
_SHORTEST_WAIT = 45  # seconds; at random up to the longest, so that many workers don't call at once
_ANSWER_SECONDS = 20.0  # beyond the wait
_EARLY_PAUSE, _LONGEST_EARLY_PAUSE = 1.0, 40.0


@dataclass(frozen=True)
class Greeting:
    """A coordinator's claimed identity."""

    version: str  # of moerge
    ahead: float  # its clock minus this machine's in seconds, accurate to one or two
    certificate: str | None  # subject, issuer and end of its TLS certificate; None on plain HTTP


class Client(Http):
    """All calls. Each is safe to repeat, because the coordinator names stored data by content."""

    def greeting(self) -> Greeting:
        """The coordinator's greeting; needs no token. Another HTTPS server's answer is an error."""
        begin = datetime.now(UTC)
        response = self.send("GET", "/healthz")
        middle = begin + (datetime.now(UTC) - begin) / 2
        try:
            version = str(response.json()["version"])
            there = parsedate_to_datetime(response.headers["Date"])
        except (ValueError, KeyError, TypeError) as error:
            problem, todo = "the server at this address is not a moerge coordinator", "correct the address"
            raise MoergeError(problem, where=str(self.url), todo=todo) from error
        tls = response.extensions["network_stream"].get_extra_info("ssl_object")
        return Greeting(version, (there - middle).total_seconds(), None if tls is None else _names(tls.getpeercert()))

    def identity(self) -> Identity:
        return self.get(Identity, "/v1/identity")

    def add_owner(self, owner: NewOwner) -> Owner:
        return self.post(Owner, "/v1/owners", owner)

    def owners(self) -> Pages[Owner]:
        return Pages(self, Owner, "/v1/owners")

    def approve(self, request: JoinRequest, *, replace: bool = False) -> Approved:
        return self.post(Approved, f"/v1/owners/{request.owner}/approve", Approval(request=request, replace=replace))

    def revoke_owner(self, name: str) -> Owner:
        return self.post(Owner, f"/v1/owners/{name}/revoke")

    def rotate_key(self, rotation: Rotation) -> Owner:
        return self.post(Owner, "/v1/identity/rotate", rotation)

    def add_token(self, token: NewToken) -> Token:
        return self.post(Token, "/v1/tokens", token)

    def tokens(self) -> Pages[TokenEntry]:
        return Pages(self, TokenEntry, "/v1/tokens")

    def revoke_token(self, id_: int) -> TokenEntry:
        return self.message(TokenEntry, "DELETE", f"/v1/tokens/{id_}")

    def rotate_token(self, id_: int, overlap_seconds: int = 0) -> Token:
        return self.post(Token, f"/v1/tokens/{id_}/rotate", RotateToken(overlap_seconds=overlap_seconds))

    def settings(self) -> dict[str, JsonValue]:
        return self.get(dict[str, JsonValue], "/v1/settings")

    def audit(
        self, after: int = 0, *, newest: bool = False, owner: str = "", path: str = "", failed: bool = False
    ) -> Pages[AuditEntry]:
        """The entries after a number, oldest first or `newest` first.

        `owner`, the beginning of `path` and `failed` narrow them.
        """
        return Pages(self, AuditEntry, "/v1/audit", after, newest=newest, owner=owner, path=path, failed=failed)

    def register_expert(self, expert: NewExpert) -> Expert:
        return self.post(Expert, "/v1/experts", expert)

    def check_expert(self, expert: NewExpert) -> None:
        """Checks that an expert fits the seed; its config and tokenizer must be uploaded.

        Raises:
            CoordinatorError: it doesn't, with the reason.
        """
        self.send("POST", "/v1/experts/check", content=encoded(expert), headers=JSON)

    def expert(self, digest: str) -> Expert:
        return self.get(Expert, f"/v1/experts/{digest}")

    def experts(self) -> Pages[Expert]:
        return Pages(self, Expert, "/v1/experts")

    def withdraw_expert(self, digest: str, *, serve: bool = True) -> Withdrawal:
        return self.post(Withdrawal, f"/v1/experts/{digest}/withdraw", Withdraw(serve=serve))

    def purge_expert(self, digest: str, *, retire: bool = False) -> Purged:
        return self.post(Purged, f"/v1/experts/{digest}/purge", Purge(retire=retire))

    def bodies(self) -> Pages[Body]:
        return Pages(self, Body, "/v1/bodies")

    def body(self, digest: str) -> Body:
        return self.get(Body, f"/v1/bodies/{digest}")

    def contributors(self, body: str = "current") -> Contributors:
        return self.get(Contributors, f"/v1/bodies/{body}/contributors")

    def current_body(self) -> Body | None:
        """The body for new contributions; None: no seed is registered."""
        return optional(self.body, "current")

    def contribute(self, new: NewContribution) -> Contribution:
        """The contribution of an uploaded file, after the coordinator's check, which may take minutes.

        Raises:
            CoordinatorError: it is refused, with the reason.
        """
        submission = Submission.model_validate(new.model_dump(exclude={"sha256"}))
        path = f"/v1/contributions/{new.sha256}"
        self.patiently(lambda: self.wait(self.message(Workflow, "PUT", path, submission)))
        return self.get(Contribution, path)

    def contributions(self, kind: Kind = "router", *, newest: bool = False) -> Pages[Contribution]:
        return Pages(self, Contribution, "/v1/contributions", kind=kind, newest=newest)

    def withdraw_contribution(self, digest: str) -> Contribution:
        return self.post(Contribution, f"/v1/contributions/{digest}/withdraw")

    def demands(self, expert: str, seen: Demands | None = None) -> Demands:
        """The demands on the worker of a dense expert; with `seen`, once they differ, or after a minute.

        Pauses after an early equal answer, and repeats the call while an older coordinator doesn't know it.
        """
        wait = 0 if seen is None else random.randint(_SHORTEST_WAIT, LONGEST_WAIT)  # noqa: S311  # no secret
        begin = time.monotonic()
        found = self.patiently(lambda: self._demands(expert, seen, wait))
        if found != seen or time.monotonic() - begin >= wait / 2:
            self._early = 0
        else:
            time.sleep(about(min(_EARLY_PAUSE * 2**self._early, _LONGEST_EARLY_PAUSE)))
            self._early += 1
        return found

    _early = 0
    """Number of early equal answers about demands since the last other one."""

    def _demands(self, expert: str, seen: Demands | None, wait: int) -> Demands:
        params: dict[str, int | str] = {"expert": expert, "wait_s": wait}
        if seen is not None:
            params["seen"] = seen.tag
        try:
            return self.get(Demands, "/v1/demands", params, timeout=wait + _ANSWER_SECONDS)
        except CoordinatorError as error:
            if error.type != ProblemType.NOT_FOUND.urn:
                raise
            problem = "it is older than this worker, so it has no demands"
            raise CoordinatorError(Problem.of(ProblemType.UNAVAILABLE, problem, todo="upgrade it")) from error

    def tell_progress(self, progress: ProgressMessage) -> DomainProgress:
        return self.message(DomainProgress, "PUT", "/v1/progress", progress)

    def progress(self) -> Pages[DomainProgress]:
        return Pages(self, DomainProgress, "/v1/progress")

    def grant(self, domain: str, reader: str, until: datetime | None = None) -> Decided:
        return self.message(Decided, "PUT", f"/v1/grants/{domain}/{reader}", NewGrant(until=until))

    def revoke_grant(self, domain: str, reader: str) -> Decided:
        return self.message(Decided, "DELETE", f"/v1/grants/{domain}/{reader}")

    def grants(self) -> Pages[Grant]:
        return Pages(self, Grant, "/v1/grants")

    def readers(self, domain: str) -> DomainReaders:
        return self.get(DomainReaders, f"/v1/grants/{domain}")

    def usable(self) -> list[Usable]:
        """The domains whose experts the caller may use."""
        return self.get(list[Usable], "/v1/grants/usable")

    def make_part(self, number: int) -> Workflow:
        """Makes the part of a version that the caller, a reader, may use; the workflow's result is its name."""
        return self.post(Workflow, f"/v1/versions/{number}/part")

    def version_parts(self, number: int) -> list[VersionPart]:
        """The parts of a version that readers may use."""
        return self.get(list[VersionPart], f"/v1/versions/{number}/parts")

    def make_parts(self, number: int) -> list[Workflow]:
        return self.post(list[Workflow], f"/v1/versions/{number}/parts")

    def solve_version(self, version: NewVersion) -> Workflow:
        return self.post(Workflow, "/v1/versions", version)

    def version(self, number: int | str) -> Version:
        """The version of that number, or the part of that name. MoergeError: the coordinator sent another one."""
        found = self.get(Version, f"/v1/versions/{number}")
        if found.name != str(number):
            what, todo = f"the coordinator sent version {found.name}", "tell its operator, and don't use the version"
            raise MoergeError(what, where=f"version {number}", todo=todo)
        return found

    def version_signatures(self, number: int | str) -> list[ContributionSignature]:
        return self.get(list[ContributionSignature], f"/v1/versions/{number}/signatures")

    def version_report(self, number: int | str) -> SolveReport:
        return self.get(SolveReport, f"/v1/versions/{number}/report")

    def version_influence(self, number: int) -> VersionInfluence:
        return self.get(VersionInfluence, f"/v1/versions/{number}/influence")

    def promotion_check(self, number: int) -> PromotionCheck:
        return self.get(PromotionCheck, f"/v1/versions/{number}/promotion")

    def engine_limits(self, number: int | str) -> list[EngineLimit]:
        return self.get(list[EngineLimit], f"/v1/versions/{number}/engines")

    def versions(self, after: int = 0, *, newest: bool = False) -> Pages[Version]:
        return Pages(self, Version, "/v1/versions", after, newest=newest)

    def change_version(self, number: int, change: VersionChange) -> Version:
        return self.message(Version, "PATCH", f"/v1/versions/{number}", change)

    def retire_version(self, number: int) -> Version:
        return self.message(Version, "DELETE", f"/v1/versions/{number}")

    def evaluate(self, new: NewEvaluation) -> list[Evaluation]:
        return self.post(list[Evaluation], f"/v1/versions/{version_name(new.number, new.part)}/evaluations", new)

    def evaluations(self, number: int | str, *, replaced: bool = False) -> Pages[Evaluation]:
        """The reported scores of a version, with `replaced` ones too."""
        return Pages(self, Evaluation, f"/v1/versions/{number}/evaluations", replaced=replaced)

    def report_usage(self, number: int | str, usage: NewUsage) -> list[Usage]:
        return self.message(list[Usage], "PUT", f"/v1/versions/{number}/usage", usage)

    def usage(self) -> Pages[Usage]:
        """The reported use of experts that the caller may see."""
        return Pages(self, Usage, "/v1/usage")

    def version_card(self, number: int | str) -> str:
        return self.send("GET", f"/v1/versions/{number}/card").text

    def signed_card(self, number: int | str) -> SignedCard:
        return self.get(SignedCard, f"/v1/versions/{number}/signed-card")

    def provenance(self, number: int | str) -> bytes:
        """A version's provenance, without its signature."""
        return self.send("GET", f"/v1/versions/{number}/provenance").content

    def sign_version(self, number: int | str, signature: NewSignature) -> Version:
        """Stores a signature by the active version key, with the present card."""
        return self.message(Version, "PUT", f"/v1/versions/{number}/signature", signature)

    def version_keys(self) -> Pages[VersionKey]:
        return Pages(self, VersionKey, "/v1/version-keys")

    def rotate_version_key(self, rotation: KeyRotation) -> VersionKey:
        return self.post(VersionKey, "/v1/version-keys/rotate", rotation)

    def revoke_version_key(self, fingerprint: str) -> VersionKey:
        return self.post(VersionKey, f"/v1/version-keys/{fingerprint}/revoke")

    def version_table(self, number: int | str) -> VersionTable:
        return self.get(VersionTable, f"/v1/versions/{number}/table")

    def log_head(self) -> LogHead:
        return self.get(LogHead, "/v1/log/head")

    def log(self, after: int = 0) -> Pages[LogEntry]:
        """The entries of the public log after a number."""
        return Pages(self, LogEntry, "/v1/log", after)

    def alias(self, name: str) -> Alias:
        return self.get(Alias, f"/v1/aliases/{name}")

    def aliases(self) -> Pages[Alias]:
        return Pages(self, Alias, "/v1/aliases")

    def alias_history(self, name: str) -> Pages[AliasMove]:
        return Pages(self, AliasMove, f"/v1/aliases/{name}/history")

    def promote(self, alias: str, version: int, note: str = "", override: str = "") -> Alias:
        move = Move(version=version, note=note, override=override)
        return self.message(Alias, "PUT", f"/v1/aliases/{quote(alias, safe='')}", move)

    def roll_back(self, alias: str, version: int, note: str = "") -> Alias:
        """Reverts the last promotion of an alias whose version is `version`."""
        return self.post(Alias, f"/v1/aliases/{alias}/rollback", Rollback(version=version, note=note))

    def remove_alias(self, alias: str) -> None:
        self.send("DELETE", f"/v1/aliases/{alias}")

    def workflow(self, id_: str) -> Workflow:
        return self.get(Workflow, f"/v1/workflows/{id_}")

    def workflows(self, kind: WorkflowKind | None = None) -> Pages[WorkflowEntry]:
        return Pages(self, WorkflowEntry, "/v1/workflows", kind=kind)

    def wait(self, workflow: Workflow) -> str:
        """The result of a workflow, when it has ended; calls `say` every minute.

        Raises:
            CoordinatorError: it failed, with its problem.
        """
        pause, begin, reported = 0.02, time.monotonic(), 0.0
        while workflow.state is WorkflowState.RUNNING:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            workflow = self.workflow(workflow.id)
            if (seconds := time.monotonic() - begin) >= reported + _REPORT_SECONDS:
                self._say(f"the coordinator has been running {workflow.id} for {seconds:.0f} s")
                reported = seconds
        if workflow.problem is not None:
            raise CoordinatorError(workflow.problem)
        return str(workflow.result)

    def retry_workflow(self, id_: str) -> Workflow:
        return self.post(Workflow, f"/v1/workflows/{id_}/retry")

    def upload(self, path: Path, progress: Progress, *, title: str, compress: bool = False) -> Stored:
        return upload(self, path, progress, title=title, compress=compress)

    def download(self, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
        return download(self, path, files, folder, progress, title=title)


def _names(certificate: Mapping[str, Any]) -> str:
    """Subject, issuer and end of a certificate."""
    names = [name for _, name in certificate.get("subjectAltName", ())]
    issuer = {key: value for part in certificate.get("issuer", ()) for key, value in part}
    by = issuer.get("organizationName") or issuer.get("commonName", "an unnamed issuer")
    return f"{', '.join(names) or 'no name'}, issued by {by}, valid until {certificate.get('notAfter')}"
