"""The stage of the parts: MLPs, fitted to a body or the expert's own, and the head, unless it is the seed's."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from moerge.documents.shards import enough
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import sync_folder
from moerge.fits.fitting import PublicText, fit, require_fittable
from moerge.fits.parts import write_parts
from moerge.fits.sample import WAYS, fitting_sample_that_fits, threads_that_fit
from moerge.memory.machine import free_for, is_out_of_memory
from moerge.models.batches import Batch
from moerge.models.dense import has_head
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import HEAD, mlp_layers
from moerge.models.keeping import Keeping, is_on, keeping
from moerge_proto.experts import Parts
from moerge_proto.progress import Stage
from moerge_proto.recipes import FEDERATED
from moerge_workers.contributing.documents import Documents
from moerge_workers.contributing.exchange import Exchange
from moerge_workers.contributing.expert import KeptError, register_expert
from moerge_workers.contributing.seed import CheckedBody
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

Kind = Literal["fitted", "own", "mlps"]
"""Parts with fitted MLPs and the own head; with the own MLPs and head; with the own MLPs and the seed's head."""
_KINDS: tuple[Kind, ...] = ("fitted", "own", "mlps")
FITTED = "its MLPs are fitted to that body. An expert whose training changes MLPs alone needs no fit"


def run(
    exchange: Exchange, documents: Documents, expert: DenseExpert, checked: CheckedBody, found: Keeping | None = None
) -> DenseExpert:
    """The expert's parts for a body, once the coordinator has them, or in a dry run would.

    By default, an expert that keeps the seed's body isn't fitted. `found`: what the expert keeps of its seed, if it is
    known; parts that were made before count without it.

    Raises:
        KeptError: the parts may not leave now.
        WithdrawnError: the parts were withdrawn.
    """
    settings, events, body = documents.settings, documents.events, checked.body.digest
    if folders(settings.home, expert, body):
        found = None
    elif found is None:
        found = compared(settings.home, expert, checked)
    folder = _fitted(documents, expert, checked) if _fits(settings, expert, events, body, found) else None
    fitted = folder is not None
    folder = folder or _own_parts(settings.home, expert, events, body, found)
    parts = DenseExpert(expert.domain, folder, expert.owner, expert.license)
    new = Parts(expert=expert.digest, body=body, fitted=fitted, own_head=has_head(parts))
    is_plain = not new.fitted and not new.own_head
    if expert.adapter is not None and is_plain and is_on(expert.adapter, checked.weights.seed):
        parts = replace(parts, adapter=expert.adapter)
    try:
        register_expert(exchange, parts, new)
    except KeptError:
        if not settings.dry_run:
            raise
    return parts


def compared(home: Path, expert: DenseExpert, checked: CheckedBody) -> Keeping:
    """The comparison of the expert with its seed. Parts with MLPs alone, made before, say that it keeps all else."""
    if _place(home, expert, checked.body.digest, "mlps").is_dir():
        return Keeping()
    return keeping(expert, checked.weights.seed, adapter=expert.adapter)


def folders(home: Path, expert: DenseExpert, body: str) -> list[Path]:
    """The folders of the expert's parts for a body, by digest; those with fitted MLPs first."""
    return [path for kind in _KINDS if (path := _place(home, expert, body, kind)).is_dir()]


def is_fitted(home: Path, expert: DenseExpert, body: str) -> bool:
    """Tell whether the expert has parts with MLPs fitted to a body."""
    return _place(home, expert, body, "fitted").is_dir()


def _place(home: Path, expert: DenseExpert, body: str, kind: Kind) -> Path:
    return home / "parts" / body / f"{kind}-{expert.digest[:12]}"


def _fits(settings: Settings, expert: DenseExpert, events: Events, body: str, found: Keeping | None = None) -> bool:
    """Tell whether to fit the MLPs: as set, by default unless the expert keeps the seed's body.

    Parts that were made before stay, because a domain has one expert per body.
    """
    if settings.fit is not None:
        return settings.fit
    if folders(settings.home, expert, body):
        return is_fitted(settings.home, expert, body)
    if found is not None:
        events.say(f"the expert {found}" + ("" if found.keeps_body else f"; {FITTED}"))
        if found.keeps_body:
            return False
    if not FEDERATED.fit:
        return False
    try:
        require_fittable(expert)
    except IncompatibleExpertError as error:
        events.say(f"the MLPs are not fitted: {error.what}")
        return False
    return True


def _own_parts(home: Path, expert: DenseExpert, events: Events, body: str, found: Keeping | None) -> Path:
    """The folder of the expert's parts with its own MLPs; made if missing."""
    own, mlps = _place(home, expert, body, "own"), _place(home, expert, body, "mlps")
    if own.is_dir() or mlps.is_dir():
        return own if own.is_dir() else mlps
    has_own_head = found is None or not found.keeps_all
    if has_own_head:
        _tell_tied(expert, events)
    folder = own if has_own_head else mlps
    _complete(folder, lambda part: write_parts(expert, part, own_head=has_own_head))
    return folder


def _tell_tied(expert: DenseExpert, events: Events) -> None:
    if HEAD not in expert.checkpoint.specs:
        events.say("the expert's head is its embedding (tied), so its parts have the embedding's rows as head")


def _complete(folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a folder, which then gets its name. A killed `write` goes on in the same folder."""
    part = folder.with_name(f".{folder.name}.tmp")
    part.mkdir(parents=True, exist_ok=True)
    write(part)
    os.replace(part, folder)
    sync_folder(folder.parent)


def _fitted(documents: Documents, expert: DenseExpert, checked: CheckedBody) -> Path | None:
    """The folder of the expert's parts with MLPs fitted to the body; made if missing.

    None, with a message: too little text for the policy.

    Raises:
        MoergeError: not enough memory.
    """
    settings, events, weights = documents.settings, documents.events, checked.weights
    folder = _place(settings.home, expert, checked.body.digest, "fitted")
    if folder.is_dir():
        return folder
    if (sample := _sample(documents, expert)) is None:
        return None
    tokens, rows = sample
    free, most = free_for(settings.device), min(settings.slots, os.cpu_count() or 1)
    threads = threads_that_fit(expert, settings.statistics, rows, settings.device, free, most)
    total = tokens * len(mlp_layers(expert.config))
    public = PublicText.of(weights.seed, settings.statistics)
    _tell_tied(expert, events)
    events.enter(Stage.COMPUTING)
    with events.track(f"fitting {settings.domain}'s MLPs to the body", total, "tokens") as tracker:
        try:
            how = settings.device, tracker.advance, public, threads
            _complete(folder, lambda part: fit(expert, weights, rows, part, *how))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            problem = "not enough memory to fit the MLPs"
            raise MoergeError(problem, where="memory", todo=f"change one of these: {', '.join(WAYS)}") from error
    return folder


def _sample(documents: Documents, expert: DenseExpert) -> tuple[int, list[Batch]] | None:
    """The number of tokens to fit to, and their micro-batches; None, with a message: too few for the policy."""
    settings, events = documents.settings, documents.events
    shard, policy = enough(expert.config.hidden_size), settings.policy
    least, free = policy.least_tokens(shard), free_for(settings.device)
    chosen, rows = fitting_sample_that_fits(
        expert, settings.statistics, documents.sample, settings.device, free, events.say, least
    )
    tokens = sum(row.count for document in chosen for row in document)
    if (why := policy.too_small(len(chosen), tokens, shard)) is not None:
        events.say(f"the MLPs are not fitted, because the text is too little: {why}")
        return None
    return tokens, rows
