"""The rule on a version's loss on the library's public texts, before its publication."""

import logging
import math
import secrets
import shutil
from collections.abc import Callable, Sequence
from itertools import takewhile

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
        RefusedError: it is above the limit of `compared`, and the operator hasn't accepted it; or it isn't finite.
    """
    limit = ports.settings.publication_max_rise
    with ports.database.reading() as session:
        body, earlier = bodies.find(session, lineage.body), measured_before(session, lineage)
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
        seed = earlier[0][1].seed if earlier else _seed_loss(ports, body, cut)
        result, most = compared(loss, seed, earlier, lineage, limit)
        if loss <= most:
            return result
        if accept_loss and math.isfinite(loss):
            return result.model_copy(update={"accepted": True})
        without = _without_each(lineage, lambda name, hook: _loss(name, weights, cut, hook))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with ports.database.reading() as session:
        raise refusal(session, result, most, lineage, without)


def measured_before(session: Session, lineage: Lineage) -> list[tuple[Lineage, PublicLoss]]:
    """The versions of the lineage's seed whose loss was measured, the last one first."""
    rows = session.scalars(select(VersionRow).order_by(VersionRow.number.desc()))
    found = [(row.lineage, row.public_loss) for row in rows]
    return [(made, loss) for made, loss in found if made.seed == lineage.seed and loss is not None]


def compared(
    loss: float, seed: float, earlier: Sequence[tuple[Lineage, PublicLoss]], lineage: Lineage, limit: float
) -> tuple[PublicLoss, float]:
    """A version's loss beside the seed's and the last version's, and the highest loss that needs no acceptance.

    That is `limit` nats above the lower of both. A last version with a domain that this one lacks isn't compared, nor
    is what the operator accepted for it: its loss may be due to that domain. If the last one's loss was accepted, the
    limit is above the lowest loss since the operator accepted one, instead. This one's then counts as accepted as long
    as it is more than `limit` above the seed's.
    """
    if not earlier or not set(earlier[0][0].domains) <= set(lineage.domains):
        return PublicLoss(version=loss, seed=seed), seed + limit
    losses = [before for _, before in earlier]
    last = losses[0]
    least = _accepted_level(losses, limit) if last.accepted else min(seed, last.version)
    accepted = last.accepted and loss > seed + limit
    return PublicLoss(version=loss, seed=seed, last=last.version, accepted=accepted), least + limit


def _accepted_level(losses: Sequence[PublicLoss], limit: float) -> float:
    """The lowest of consecutive accepted losses, the last one first, since the operator accepted one.

    The operator accepted those above the limit; others were accepted with an earlier one.
    """
    level = -math.inf
    for loss in reversed([*takewhile(lambda item: item.accepted, losses)]):
        is_new = loss.last is None or loss.version > level + limit
        level = loss.version if is_new else min(level, loss.version)
    return level


def refusal(
    session: Session, loss: PublicLoss, most: float, lineage: Lineage, without: Sequence[float]
) -> RefusedError:
    """The refusal of a loss above `most`; `without`: the losses if no token goes to each of the experts, in order.

    It names an expert only if the loss without it is at most `most`. The head is in all of these losses.
    """
    last = "" if loss.last is None else f", the last version's {loss.last:.3f}"
    what = (
        f"its loss on the library's public texts is {loss.version:.3f} nats per token, the seed's {loss.seed:.3f}"
        f"{last}; it may be {most:.3f}"
    )
    ways = ["publish it with `accept_loss`"] if math.isfinite(loss.version) else []
    rows = session.scalars(select(ExpertRow).where(ExpertRow.digest.in_(lineage.experts))).all()
    if without and (lowest := min(without)) <= most:
        digest = lineage.experts[without.index(lowest)]
        row = next(row for row in rows if row.digest == digest)
        what += f". Without the expert of {row.domain} (owner {row.owner}) it is {lowest:.3f}"
        ways = [f"withdraw that expert: moerge expert withdraw {row.domain}", *ways]
    else:
        what += ". No single expert's MLPs explain it" if without else ""
        ways = ["ask the owners", *ways]
        if lineage.head.method != "seed" and any(row.own_head for row in rows):
            ways = ["solve with the seed's head: moerge version solve --head seed", *ways]
    return RefusedError(ProblemType.NOT_PUBLISHABLE, what, todo="; or ".join(ways))


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
