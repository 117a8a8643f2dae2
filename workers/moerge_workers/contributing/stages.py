"""The stages of a run: the body's comparison, parts, head and router contributions, evaluations."""

import time
from contextlib import suppress
from dataclasses import dataclass, field

from moerge.errors import CoordinatorError, IncompatibleExpertError
from moerge.models.dense import has_head
from moerge.models.expert_folder import DenseExpert
from moerge.models.keeping import Keeping
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Stage
from moerge_workers.contributing import head, parts, router
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.evaluation import Evaluations
from moerge_workers.contributing.expert import KeptError
from moerge_workers.contributing.publications import Versions, logged_body
from moerge_workers.contributing.seed import checked_body

_AGAIN_SECONDS = 1.0  # after the refusal of a replaced body


def run_stages(context: Context) -> None:
    """Run the stages under the current body, and without `once` under every later one.

    The body is compared with the owner's copy of the seed before any text is read. The run ends where the owner holds
    the expert's parts back.
    """
    with suppress(KeptError):
        _Stages(context).run()


@dataclass
class _Stages:
    context: Context
    _evaluations: Evaluations | None = field(init=False)
    _versions: Versions = field(init=False)

    def __post_init__(self) -> None:
        self._evaluations = Evaluations(self.context) if self.context.settings.policy.evaluation_sums else None
        self._versions = Versions(self.context)

    def run(self) -> None:
        settings, policy = self.context.settings, self.context.settings.policy
        if policy.redistribute:
            self.context.events.say(
                "redistribute = true: owners of other experts in a version may download it, with this expert's MLPs; "
                "operators may export the expert and its contributions"
            )
        if policy.router_contributions:
            self._contribute_under_each_body()
        else:
            more = "no work remains" if self._evaluations is None else "only evaluations remain"
            self.context.events.say(f"the policy forbids router contributions; {more}")
        demands = None
        while True:
            demands = self.context.demands(demands)
            self._versions.look(demands)
            if self._evaluations is not None:
                self._evaluations.look(demands.version)
            if self._evaluations is None or settings.once or settings.dry_run:
                return

    def _contribute_under_each_body(self) -> None:
        """Contribute under each body, and evaluate versions between bodies; with `once`, only contribute."""
        context, settings, say = self.context, self.context.settings, self.context.events.say
        last = None
        while (current := self._next_body(last)) is not None:
            last = current.digest
            context.events.status.update(body=current.digest, obstacle=None)
            try:
                context.expert.checkpoint.require_unchanged()  # since its digest was computed
                for contribution in contribute_under(context, current):
                    say(f"contributed {contribution.digest[:12]} under body {current.digest[:12]}")
            except CoordinatorError as error:
                if error.type != ProblemType.WRONG_BODY.urn:
                    raise
                say(f"body {current.digest[:12]} was replaced during the work")
                last = None
            except KeptError as kept:
                if context.outbox.history.decision(kept.item) != "outdated":
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
            elif context.is_replaced(last):  # so questions under it may be outdated
                last = None

    def _next_body(self, last: str | None) -> Body | None:
        """The current body, once it differs from the last one; a dry run doesn't wait."""
        context, is_waiting = self.context, False
        evaluations = None if context.settings.once else self._evaluations
        demands = context.demands()
        while demands.body is None or demands.body == last:
            if context.settings.dry_run:
                context.events.say("no seed yet, so nothing leaves; the operator must run: moerge coordinator seed")
                return None
            if not is_waiting:
                context.events.enter(Stage.WAITING)
                had = context.events.status.state.body is not None
                what = "the next body" if had else "the seed; the operator registers it with: moerge coordinator seed"
                context.events.say(f"waiting for {what}")
                is_waiting = True
            self._versions.look(demands)
            if evaluations is not None:
                evaluations.look(demands.version)
            demands = context.demands(demands)
        return logged_body(context, demands.body)


def contribute_under(context: Context, body: Body) -> list[Contribution]:
    """Compare a body, send what it lacks, and return the active router contributions under it.

    There is no head contribution if the expert keeps the seed's head.

    Raises:
        IncompatibleExpertError: the body isn't the own seed's.
        KeptError: the parts may not leave now.
        MoergeError: there is too little to send; or with a privacy budget, more would leave than it covers.
    """
    context.outbox.outdate(lambda item: item.body not in ("", body.digest))
    weights, found = checked_body(context.settings, context.expert, context.events, body), None
    if context.finishing.alone:
        found = parts.compared(context.settings.home, context.expert, body, weights)
        _require_alone(context, body, found)
    context.look_at_data()
    expert = parts.run(context, body, weights, found)
    if has_head(expert) and head.run(context, expert, body.digest) is None and context.is_replaced(body.digest):
        return []
    return router.run(context, body, weights, expert)


def _require_alone(context: Context, body: Body, found: Keeping) -> None:
    own, home = context.expert, context.settings.home
    made = [DenseExpert(own.domain, path) for path in parts.folders(home, own, body.digest)]
    context.finishing.require_alone(
        context.settings,
        own.family,
        found,
        was_fitted=any(parts.is_fitted(home, own, body.digest, item.digest) for item in made),
        had_head=any(map(has_head, made)),
    )
