"""The coordinator's publications, compared with its public log, and new versions with the own body and MLPs."""

from dataclasses import dataclass, field

from moerge.errors import IncompatibleExpertError, MoergeError
from moerge_proto.bodies import Body
from moerge_proto.demands import Demands
from moerge_proto.digests import Digest
from moerge_proto.progress import Obstacle
from moerge_proto.public_log import Published, body_content, title, version_content
from moerge_proto.version_files import HEAD_FILE
from moerge_proto.versions import Version
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.seed import checked_body
from moerge_workers.contributing.version_check import AlteredVersionError, require_listed
from moerge_workers.outgoing.public_log import REFUSED, LogError, PublicLog

_TODO = "ask the operator, another way than through the coordinator, and tell the other owners and whoever uses it"


def logged_body(context: Context, digest: str) -> Body:
    """The body with that digest; LogError: another one is served, it isn't in the public log, or that was changed."""
    body = context.client.body(digest)
    _require(context, "body", digest, body.digest, body_content(body))
    return body


def logged_version(context: Context, number: int) -> Version:
    """As `logged_body`, for a version and its head."""
    version = context.client.version(number)
    name, heads = str(version.number), [file.sha256 for file in version.files if file.name == HEAD_FILE]
    _require(context, "version", str(number), name, version_content(version.files))
    for head in heads:
        _require(context, "head", name, name, head)
    return version


def _require(context: Context, kind: Published, asked: str, name: str, digest: Digest) -> None:
    log = _log(context)
    try:
        if name != asked:
            problem = f"expected {title(kind, asked)}; the coordinator served {title(kind, name)}"
            raise LogError(problem, where="public log", todo=_TODO)
        log.follow(context.client)
        log.require(kind, name, digest)
    except LogError:
        context.events.hindered(Obstacle.LOG_DIFFERS)
        raise


def _log(context: Context) -> PublicLog:
    return PublicLog(context.outbox.history, context.settings.coordinator)


@dataclass
class Versions:
    """The comparison of new versions with the own body and MLPs, whether they are evaluated or not."""

    context: Context
    _seen: Demands | None = None
    _digests: dict[str, str] = field(default_factory=dict)  # of planned files, by key

    def look(self, demands: Demands) -> None:
        """Compare the demanded version and all that were published since the last look, each once.

        Raises:
            LogError: a version isn't in the public log, or the log was changed.
            MoergeError: with `once` or `dry_run`, a version is altered; otherwise that is told and recorded.
        """
        if demands == self._seen:
            return
        log, settings = _log(self.context), self.context.settings
        log.follow(self.context.client)
        numbers, demanded = set(log.uncompared()), demands.version
        if demanded is not None and (log.finding(demanded) or REFUSED).startswith(REFUSED):
            numbers.add(demanded)
        for number in sorted(numbers):
            found = self._found(logged_version(self.context, number))
            log.note(number, found)
            self.context.events.say(f"version {number} is compared with your own files: {found}")
            if found.startswith(REFUSED):
                self.context.events.hindered(Obstacle.VERSION_ALTERED)
                if number == demanded and (settings.once or settings.dry_run):
                    raise MoergeError(found, where=f"version {number}", todo=_TODO)
        self._seen = demands

    def _found(self, version: Version) -> str:
        """The comparison, as `require_listed`, or the reason why the version is refused."""
        context = self.context
        body = logged_body(context, version.lineage.body)
        try:
            own = (
                None
                if context.settings.seed is None
                else checked_body(context.settings, context.expert, context.events, body)
            )
            return require_listed(context.settings, context.outbox.history, context.expert, version, own, self._digests)
        except AlteredVersionError as error:
            return f"{REFUSED}: {error}"
        except IncompatibleExpertError as error:
            return f"{REFUSED}: its body is another one: {error.what}"
