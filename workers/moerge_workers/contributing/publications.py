"""The coordinator's publications, compared with its public log, and new versions with the own body and MLPs."""

from dataclasses import dataclass, field

from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.models.expert_folder import DenseExpert
from moerge_proto.bodies import Body
from moerge_proto.demands import Demands
from moerge_proto.digests import Digest
from moerge_proto.progress import Obstacle
from moerge_proto.public_log import Published, body_content, title, version_content
from moerge_proto.version_files import HEAD_FILE
from moerge_proto.versions import Version
from moerge_workers.contributing.exchange import Exchange
from moerge_workers.contributing.seed import checked_body
from moerge_workers.contributing.version_check import AlteredVersionError, require_listed
from moerge_workers.outgoing.public_log import REFUSED, LogError

_TODO = "ask the operator, another way than through the coordinator, and tell the other owners and whoever uses it"


def logged_body(exchange: Exchange, digest: str) -> Body:
    """The body with that digest; LogError: another one is served, it isn't in the public log, or that was changed."""
    body = exchange.client.body(digest)
    _require(exchange, "body", digest, body.digest, body_content(body))
    return body


def logged_version(exchange: Exchange, number: int) -> Version:
    """As `logged_body`, for a version and its head."""
    version = exchange.client.version(number)
    name, heads = str(version.number), [file.sha256 for file in version.files if file.name == HEAD_FILE]
    _require(exchange, "version", str(number), name, version_content(version.files))
    for head in heads:
        _require(exchange, "head", name, name, head)
    return version


def _require(exchange: Exchange, kind: Published, asked: str, name: str, digest: Digest) -> None:
    log = exchange.log
    try:
        if name != asked:
            problem = f"expected {title(kind, asked)}; the coordinator served {title(kind, name)}"
            raise LogError(problem, where="public log", todo=_TODO)
        log.follow(exchange.client)
        log.require(kind, name, digest)
    except LogError:
        exchange.outbox.events.hindered(Obstacle.LOG_DIFFERS)
        raise


@dataclass
class Versions:
    """The comparison of new versions with the own body and MLPs, whether they are evaluated or not."""

    exchange: Exchange
    expert: DenseExpert
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
        exchange, outbox, log = self.exchange, self.exchange.outbox, self.exchange.log
        log.follow(exchange.client)
        numbers, demanded = set(log.uncompared()), demands.version
        if demanded is not None and (log.finding(demanded) or REFUSED).startswith(REFUSED):
            numbers.add(demanded)
        for number in sorted(numbers):
            found = self._found(logged_version(exchange, number))
            log.note(number, found)
            outbox.say(f"version {number} is compared with your own files: {found}")
            if found.startswith(REFUSED):
                outbox.events.hindered(Obstacle.VERSION_ALTERED)
                if number == demanded and (outbox.settings.once or outbox.settings.dry_run):
                    raise MoergeError(found, where=f"version {number}", todo=_TODO)
        self._seen = demands

    def _found(self, version: Version) -> str:
        """The comparison, as `require_listed`, or the reason why the version is refused."""
        outbox, expert = self.exchange.outbox, self.expert
        settings, body = outbox.settings, logged_body(self.exchange, version.lineage.body)
        try:
            own = None if settings.seed is None else checked_body(settings, expert, outbox.events, body).weights
            return require_listed(outbox, expert, version, own, self._digests)
        except AlteredVersionError as error:
            return f"{REFUSED}: {error}"
        except IncompatibleExpertError as error:
            return f"{REFUSED}: its body is another one: {error.what}"
