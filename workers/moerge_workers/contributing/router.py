"""The stage of the router contributions: sums of the statistics and tuning splits under a trunk."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import file_sha256
from moerge.models.dense_files import DenseTrunk
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import router_manifest
from moerge.statistics.passes import RouterPass
from moerge.trunk.merge import DENSE_TRUNK_FILE
from moerge.trunk.methods.registry import METHODS
from moerge.trunk.stray import require_near
from moerge_proto.contributions import Contribution
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import RouterManifest
from moerge_proto.trunks import Trunk
from moerge_workers.contributing import delivery, fitted, trunk_loss
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.own_grams import sampled_grams
from moerge_workers.leaving.ledger import Ledger, Sent


def run(context: Context, trunk: Trunk, own_grams: Path | None) -> list[Contribution]:
    """Send new statistics under a trunk, and return the active contributions.

    `own_grams` is the file of the expert's own trunk contribution, to compare the trunk with; by default grams of a
    sample.

    Raises:
        MoergeError: the trunk strays too far from the expert, or there is too little to send.
    """
    settings = context.settings
    context.outbox.outdate(lambda item: item.trunk not in ("", trunk.digest))
    if (weights := checked_trunk(context, trunk, own_grams, lambda: context.is_replaced(trunk.digest))) is None:
        return []
    expert: DenseExpert | None = context.expert
    if settings.fit:
        expert = fitted.run(context, trunk, weights)
    elif (method := METHODS.get(trunk.method)) is not None and method.for_fitted_mlps:
        context.events.say("the trunk was merged for fitted MLPs; set `fit` for better scores of this domain")
    if expert is None:
        return []
    work = RouterPass(expert, weights, trunk.exponents, settings.statistics.precision, settings.device)
    sent: list[Contribution] = []
    for split in ("statistics", "tuning"):
        blank = router_manifest(expert.owner, expert.digest, expert.domain, trunk, settings.statistics, split)
        path = context.ledger(blank)
        if split == "statistics" or settings.tuning_share or path.exists():
            with closing(Ledger(path)) as ledger:
                sent += _contribute(context, blank, work, ledger)
    return sent


def _checked(context: Context, trunk: Trunk, grams: Path | None) -> DenseTrunk:
    """The trunk's tensors, downloaded and compared with the expert."""
    folder, policy = context.settings.home / "trunks" / trunk.digest, context.settings.policy
    context.events.enter(Stage.DOWNLOADING)
    place = f"/v1/trunks/{trunk.digest}/files"
    context.client.download(place, trunk.files, folder, context.events, title="downloading the trunk")
    weights, own = DenseTrunk(folder / DENSE_TRUNK_FILE, context.expert), grams or sampled_grams(context)
    stray = require_near(context.expert, weights, policy.max_stray, own)
    context.events.say(f"{stray}; max_stray is {policy.max_stray:g}")
    return weights


def checked_trunk(
    context: Context, trunk: Trunk, own_grams: Path | None, outdated: Callable[[], bool]
) -> DenseTrunk | None:
    """The tensors of a trunk that is near the expert, harmless, and within the owner's budget.

    None: the owner must agree. `outdated`: whether the question to the owner is outdated.

    Raises:
        MoergeError: the trunk strays too far, its loss is too high, or another file had its name before.
    """
    weights = _checked(context, trunk, own_grams)
    if not context.outbox.history.bind(trunk.digest, file_sha256(weights.checkpoint.path)):
        problem = f"the coordinator served another file under the name of trunk {trunk.digest[:12]} before"
        raise IncompatibleExpertError(problem, where=weights.checkpoint.path.name, todo="ask the operator why")
    item = context.outbox.trunk_use(trunk.digest, weights.checkpoint.path)
    if not context.outbox.may_use(item, outdated):
        return None
    trunk_loss.require_harmless(context, trunk.digest, weights)
    return weights


def _contribute(context: Context, blank: RouterManifest, work: RouterPass, ledger: Ledger) -> list[Contribution]:
    """Compute and send one split: first unsent files of earlier runs, then new documents."""
    if _deliver(context, blank, ledger) is None:
        return []
    if (made := context.pending(blank, work, ledger).complete()) is not None:
        item = context.outbox.contribution(ledger.path(made.file.name), made.file.digest)
        if context.outbox.may_leave(item, lambda: context.is_replaced(blank.trunk)):
            made.note()  # the ledger has only files that the owner approved
    return _deliver(context, blank, ledger) or []


def _deliver(context: Context, blank: RouterManifest, ledger: Ledger) -> list[Contribution] | None:
    """The contributions of the ledger's files; sends the inactive ones, which supersede replaced ones.

    None: the owner hasn't approved an earlier file, or this is a dry run.
    """
    counted = _counted(context, blank)
    others = [row.digest for row in counted.values() if row.expert != blank.expert]
    if others and blank.expert == context.expert.digest:
        raise _fitted_counts(context, counted[others[0]].expert)
    if _is_lost(ledger, counted):
        context.events.say("a sent contribution is inactive and its file is missing here; sending its documents again")
        ledger.forget()
        return []
    files = ledger.files()
    unsent = [file for file in files if file.digest not in counted]
    replaced = [file.digest for file in ledger.files(replaced=True) if file.digest in counted]
    if not files and not context.settings.dry_run:
        _withdraw(context, replaced, blank)
    supersedes = replaced + others
    for file in unsent:
        if (sent := _sent(context, blank, ledger, file, supersedes)) is None:
            return None
        counted[file.digest], supersedes = sent, []
    return [counted[file.digest] for file in files]


def _counted(context: Context, blank: RouterManifest) -> dict[str, Contribution]:
    """Digest -> active contribution, of the same trunk, domain and split."""
    rows = delivery.active(context, "router")
    place = blank.trunk, blank.domain, blank.split
    return {digest: row for digest, row in rows.items() if (row.trunk, row.domain, row.split) == place}


def _fitted_counts(context: Context, expert: str) -> MoergeError:
    problem, todo = f"its fitted expert {expert} contributes under this trunk", "set `fit`"
    todo += f", or withdraw it: moerge expert withdraw {expert}"
    return MoergeError(problem, where=str(context.expert.folder), todo=todo)


def _is_lost(ledger: Ledger, counted: Mapping[str, Contribution]) -> bool:
    """Tell whether an inactive contribution's file is missing."""
    return any(file.digest not in counted and not ledger.path(file.name).is_file() for file in ledger.files())


def _sent(
    context: Context, blank: RouterManifest, ledger: Ledger, file: Sent, supersedes: list[str]
) -> Contribution | None:
    """A file's contribution; None without the owner's approval. A refusal clears the ledger."""
    item = context.outbox.contribution(ledger.path(file.name), file.digest)
    if context.outbox.may_leave(item, lambda: context.is_replaced(blank.trunk)):
        return delivery.send(context, item, supersedes)
    if context.outbox.is_refused(item):
        ledger.forget()
    return None


def _withdraw(context: Context, digests: list[str], blank: RouterManifest) -> None:
    for digest in digests:
        context.client.withdraw_contribution(digest)
        context.outbox.withdrawn(digest)
        context.events.say(f"withdrew {digest[:12]}: no {blank.split} document is left")
