"""The stages of a run: expert or parts, contributions under each body, evaluations."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from moerge.client.register import registered
from moerge.errors import CoordinatorError, IncompatibleExpertError
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution
from moerge_proto.problems import ProblemType
from moerge_proto.progress import Stage
from moerge_workers.contributing import body as body_stage
from moerge_workers.contributing import expert as expert_stage
from moerge_workers.contributing import head, under_body
from moerge_workers.contributing.body_check import require_allowed
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.evaluation import Evaluations
from moerge_workers.contributing.expert import KeptError
from moerge_workers.contributing.publications import Versions, logged_body
from moerge_workers.policy import body_kind

_AGAIN_SECONDS = 1.0  # after the refusal of a replaced body


def run_stages(context: Context) -> None:
    """Run the stages under the current body, and without `once` under every later one.

    For merged bodies: the whole expert, its body and head contributions; under each body, router contributions.
    Under a seed's body: the comparison with the owner's copy, before any text is read; then the expert's parts, their
    head contribution and router contributions. The run ends where the owner holds the expert or its parts back.
    """
    with suppress(KeptError):
        _Stages(context).run()


@dataclass
class _Stages:
    """The stages of one run. `own_grams`: as in `checked_body`."""

    context: Context
    own_grams: Path | None = None
    _evaluations: Evaluations | None = field(init=False)
    _versions: Versions = field(init=False)
    _has_joined: bool = False

    def __post_init__(self) -> None:
        evaluates = self.context.settings.policy.evaluation_sums
        self._evaluations = Evaluations(self.context, None) if evaluates else None
        self._versions = Versions(self.context)

    def run(self) -> None:
        settings, policy = self.context.settings, self.context.settings.policy
        if policy.redistribute:
            self.context.events.say(
                "redistribute = true: owners of other experts in a version may download it, with this expert's MLPs; "
                "operators may export the expert and its contributions"
            )
        current = self.context.client.current_body()
        if "merged" in policy.bodies and (current is None or body_kind(current.method) == "merged"):
            self._join()
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

    def _join(self) -> None:
        """Register the whole expert, and send its body and head contributions, once; KeptError: it may not leave."""
        context = self.context
        if self._has_joined:
            return
        context.look_at_data()
        expert_stage.run(context)
        if context.settings.body_contribution:
            outcome = body_stage.run(context)
            self.own_grams = outcome.file
            if self._evaluations is not None:
                self._evaluations.own_grams = outcome.file
            if outcome.sent is not None:
                context.events.say(f"contributed {outcome.sent.digest[:12]} for bodies")
        head.run(context, context.expert)
        self._has_joined = True

    def _contribute_under_each_body(self) -> None:
        """Contribute under each body, and evaluate versions between bodies; with `once`, only contribute."""
        context, settings, say = self.context, self.context.settings, self.context.events.say
        for item in context.client.rounds():
            if settings.domain in item.missing:
                by = f"{item.deadline:%Y-%m-%d %H:%M} UTC"
                say(f"round {item.name} asks for {item.kind} contributions by {by}")
        last = None
        while (current := self._next_body(last)) is not None:
            last = current.digest
            context.events.status.update(body=current.digest, obstacle=None)
            try:
                for contribution in self._contribute_under(current):
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

    def _contribute_under(self, body: Body) -> list[Contribution]:
        """The active router contributions under a body; a merged one needs the whole expert first."""
        context, own = self.context, self.context.expert
        own.checkpoint.require_unchanged()  # since its digest was computed
        require_allowed(context, body)
        if body_kind(body.method) == "merged":
            self._join()
            registered(context.client, own.folder, own.domain, own.digest)  # raises for a withdrawn expert
        return under_body.run(context, body, self.own_grams)

    def _next_body(self, last: str | None) -> Body | None:
        """The current body, once it differs from the last one; a dry run doesn't wait."""
        context, is_waiting, makes = self.context, False, _makes(self.context)
        evaluations = None if context.settings.once else self._evaluations
        demands = context.demands()
        while demands.body is None or demands.body == last:
            if context.settings.dry_run:
                context.events.say(f"no body yet, so no router contributions; the operator must run: {makes}")
                return None
            if not is_waiting:
                context.events.enter(Stage.WAITING)
                first = f"the first body; the operator makes it with: {makes}"
                had = context.events.status.state.body is not None
                context.events.say(f"waiting for {'the next body' if had else first}")
                is_waiting = True
            self._versions.look(demands)
            if evaluations is not None:
                evaluations.look(demands.version)
            demands = context.demands(demands)
        return logged_body(context, demands.body)


def _makes(context: Context) -> str:
    """The operator's command for a first body that the policy allows."""
    return "moerge body merge" if "merged" in context.settings.policy.bodies else "moerge coordinator seed"
