"""The stages of a run: the body's comparison, parts, head and router contributions, evaluations."""

import time
from contextlib import suppress

from moerge.errors import CoordinatorError, IncompatibleExpertError
from moerge.models.dense import has_head
from moerge.models.expert_folder import DenseExpert
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Stage
from moerge_workers.contributing import head, parts, router
from moerge_workers.contributing.evaluation import Evaluations
from moerge_workers.contributing.exchange import Exchange
from moerge_workers.contributing.expert import KeptError
from moerge_workers.contributing.publications import Versions, logged_body
from moerge_workers.contributing.seed import checked_body
from moerge_workers.contributing.statistics import Statistics

_AGAIN_SECONDS = 1.0  # after the refusal of a replaced body


def run_stages(exchange: Exchange, statistics: Statistics, expert: DenseExpert) -> None:
    """Run the stages under the current body, and without `once` under every later one.

    The body is compared with the owner's copy of the seed before any text is read. The run ends where the owner holds
    the expert's parts back.
    """
    with suppress(KeptError):
        _Stages(exchange, statistics, expert).run()


class _Stages:
    def __init__(self, exchange: Exchange, statistics: Statistics, expert: DenseExpert) -> None:
        self._exchange, self._statistics, self._expert = exchange, statistics, expert
        documents = statistics.documents
        self._settings, self._events = documents.settings, documents.events
        self._versions = Versions(exchange, expert)
        self._evaluations = Evaluations(exchange, documents, expert) if self._settings.policy.evaluation_sums else None

    def run(self) -> None:
        settings, policy = self._settings, self._settings.policy
        if policy.redistribute:
            self._events.say(
                "redistribute = true: owners of other experts in a version may download it, with this expert's MLPs; "
                "operators may export the expert and its contributions"
            )
        if policy.router_contributions:
            self._contribute_under_each_body()
        else:
            more = "no work remains" if self._evaluations is None else "only evaluations remain"
            self._events.say(f"the policy forbids router contributions; {more}")
        demands = None
        while True:
            demands = self._exchange.demands(demands)
            self._versions.look(demands)
            if self._evaluations is not None:
                self._evaluations.look(demands.version)
            if self._evaluations is None or settings.once or settings.dry_run:
                return

    def _contribute_under_each_body(self) -> None:
        """Contribute under each body, and evaluate versions between bodies; with `once`, only contribute."""
        exchange, settings, say = self._exchange, self._settings, self._events.say
        last = None
        while (current := self._next_body(last)) is not None:
            last = current.digest
            self._events.status.update(body=current.digest, obstacle=None)
            try:
                self._expert.checkpoint.require_unchanged()  # since its digest was computed
                for contribution in contribute_under(exchange, self._statistics, self._expert, current):
                    say(f"contributed {contribution.digest[:12]} under body {current.digest[:12]}")
            except CoordinatorError as error:
                if error.type != ProblemType.WRONG_BODY.urn:
                    raise
                say(f"body {current.digest[:12]} was replaced during the work")
                last = None
            except KeptError as kept:
                if exchange.outbox.history.decision(kept.item) != "outdated":
                    raise
                last = None
            except IncompatibleExpertError as error:
                if settings.once or settings.dry_run:
                    raise
                say(f"sending nothing under body {current.digest[:12]}: {error}")
            if last is None:  # the same body may be current again by now, with work left
                time.sleep(_AGAIN_SECONDS)
            elif settings.once or settings.dry_run:
                return
            elif exchange.demands().body != last:  # so questions under it may be outdated
                last = None

    def _next_body(self, last: str | None) -> Body | None:
        """The current body, once it differs from the last one; a dry run doesn't wait."""
        events, is_waiting = self._events, False
        evaluations = None if self._settings.once else self._evaluations
        demands = self._exchange.demands()
        while demands.body is None or demands.body == last:
            if self._settings.dry_run:
                events.say("no seed yet, so nothing leaves; the operator must run: moerge coordinator seed")
                return None
            if not is_waiting:
                events.enter(Stage.WAITING)
                had = events.status.state.body is not None
                what = "the next body" if had else "the seed; the operator registers it with: moerge coordinator seed"
                events.say(f"waiting for {what}")
                is_waiting = True
            self._versions.look(demands)
            if evaluations is not None:
                evaluations.look(demands.version)
            demands = self._exchange.demands(demands)
        return logged_body(self._exchange, demands.body)


def contribute_under(exchange: Exchange, statistics: Statistics, expert: DenseExpert, body: Body) -> list[Contribution]:
    """Compare a body, send what it lacks, and return the active router contributions under it.

    There is no head contribution if the expert keeps the seed's head.

    Raises:
        IncompatibleExpertError: the body isn't the own seed's.
        KeptError: the parts may not leave now.
        MoergeError: there is too little to send; or with a privacy budget, more would leave than it covers.
    """
    documents, finishing = statistics.documents, statistics.finishing
    settings, events = documents.settings, documents.events
    exchange.outbox.outdate(lambda item: item.body not in ("", body.digest))
    checked, found = checked_body(settings, expert, events, body), None
    if finishing.alone:
        found = parts.compared(settings.home, expert, checked)
        made = [DenseExpert(expert.domain, path) for path in parts.folders(settings.home, expert, body.digest)]
        was_fitted = parts.is_fitted(settings.home, expert, body.digest)
        had_head = any(map(has_head, made))
        finishing.require_alone(settings, expert.family, found, was_fitted=was_fitted, had_head=had_head)
    documents.look(expert, finishing)
    registered = parts.run(exchange, documents, expert, checked, found)
    if has_head(registered):
        sent = head.run(exchange, statistics, expert, registered, body.digest)
        if sent is None and exchange.demands().body != body.digest:
            return []
    return router.run(exchange, statistics, expert, registered, checked)
