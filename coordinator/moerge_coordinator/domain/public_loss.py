"""The rule on a version's loss on the library's public texts, before its publication."""

import logging
import math
import secrets
import shutil
from collections.abc import Callable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.errors import MoergeError
from moerge.models.dense import domain_weights
from moerge.models.weights import Weights
from moerge.scoring.perplexity import Window
from moerge.scoring.public import public_loss, public_windows, require_memory
from moerge.scoring.routers import RouterHook, avoiding
from moerge_coordinator.domain import bodies, seeds
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.log import progress
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import BodyRow, ExpertRow, VersionRow
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType
from moerge_proto.versions import Lineage, PublicLoss

_log = logging.getLogger("moerge.coordinator")


def measured(ports: Ports, lineage: Lineage, files: Sequence[FileEntry], *, accept_loss: bool) -> PublicLoss | None:
    """The loss of a version's files beside the seed's and the last version's; None: accepted, and memory is too short.

    Raises:
        MoergeError: memory is too short, and the operator hasn't accepted any loss.
        RefusedError: it is above the lower of these by more than the settings' limit, and the operator hasn't accepted
            it; or it isn't finite. Names the expert without which it is lowest.
    """
    limit = ports.settings.publication_max_rise
    with ports.database.reading() as session:
        body, last = bodies.find(session, lineage.body), last_of(session, lineage)
    folder = ports.folders.experts / f"version-{secrets.token_hex(8)}"
    try:
        weights = ports.folders.published(files, folder)
        try:
            require_memory(weights.config)
        except MoergeError as error:
            if accept_loss:
                _log.warning("the loss on public texts isn't measured: %s", error)
                return None
            todo = "use a larger machine, or publish it unmeasured with `accept_loss`; or publish all"
            todo += " unmeasured: publication_max_rise = inf in coordinator.toml"
            raise MoergeError(f"its loss on public texts can't be measured: {error.what}", todo=todo) from error
        cut = public_windows(ports.folders.seed(body).side_files.tokenizer)
        loss = _loss("the version", weights, cut)
        seed = last.public_loss.seed if last and last.public_loss else _seed_loss(ports, body, cut)
        result, is_within = compared(loss, seed, last, lineage, limit)
        if is_within:
            return result
        if accept_loss and math.isfinite(loss):
            return result.model_copy(update={"accepted": True})
        without = _without_each(lineage, lambda name, hook: _loss(name, weights, cut, hook))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with ports.database.reading() as session:
        raise refusal(session, result, limit, lineage, without)


def last_of(session: Session, lineage: Lineage) -> VersionRow | None:
    """The last version of the lineage's seed whose loss was measured."""
    rows = session.scalars(select(VersionRow).where(VersionRow.part.is_(None)).order_by(VersionRow.number.desc()))
    return next((row for row in rows if row.lineage.seed == lineage.seed and row.public_loss is not None), None)


def compared(
    loss: float, seed: float, last: VersionRow | None, lineage: Lineage, limit: float
) -> tuple[PublicLoss, bool]:
    """A version's loss beside those that it is compared with, and whether it is at most `limit` nats above the lower.

    A last version with a domain that this one lacks isn't compared. If the operator accepted the last one's loss, the
    seed's isn't compared, and this one's counts as accepted as long as it is more than `limit` above the seed's.
    """
    before = None if last is None or not set(last.lineage.domains) <= set(lineage.domains) else last.public_loss
    if before is None:
        return PublicLoss(version=loss, seed=seed), loss <= seed + limit
    least = before.version if before.accepted else min(seed, before.version)
    accepted = before.accepted and loss > seed + limit
    return PublicLoss(version=loss, seed=seed, last=before.version, accepted=accepted), loss <= least + limit


def refusal(
    session: Session, loss: PublicLoss, limit: float, lineage: Lineage, without: Sequence[float]
) -> RefusedError:
    """The refusal of a loss; `without`: the losses if no token goes to each of the experts, in order."""
    last = "" if loss.last is None else f", the last version's {loss.last:.3f}"
    what = (
        f"its loss on the library's public texts is {loss.version:.3f} nats per token, the seed's {loss.seed:.3f}"
        f"{last}; it may be {limit:g} above the lower"
    )
    ways = ["publish it with `accept_loss`"] if math.isfinite(loss.version) else []
    if without and (lowest := min(without)) < loss.version:
        digest = lineage.experts[without.index(lowest)]
        row = session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one()
        what += f". Without the expert of {row.domain} (owner {row.owner}) it is {lowest:.3f}"
        ways = [f"withdraw that expert: moerge expert withdraw {row.domain}", *ways]
    return RefusedError(ProblemType.NOT_PUBLISHABLE, what, todo="; or ".join(ways) or "ask the owners")


def _without_each(lineage: Lineage, loss: Callable[[str, RouterHook], float]) -> list[float]:
    """The loss if no token goes to each of the experts, in order; empty if a token needs them all."""
    if lineage.options.top_k >= len(lineage.experts):
        return []
    return [loss(f"the version without {domain}", avoiding(slot)) for slot, domain in enumerate(lineage.domains)]


def _seed_loss(ports: Ports, body: BodyRow, cut: Sequence[Window]) -> float:
    return _loss("the seed", domain_weights(seeds.parts_of(ports, body), ports.folders.body(body)), cut)


def _loss(name: str, weights: Weights, cut: Sequence[Window], hook: RouterHook | None = None) -> float:
    total = sum(window.scored for window in cut)
    with progress().track(f"scoring {name} on public texts", total, "tokens") as tracker:
        result = public_loss(weights, cut, tracker, hook)
    return result if math.isfinite(result) else math.inf  # an overflow gives NaN, which is above nothing
