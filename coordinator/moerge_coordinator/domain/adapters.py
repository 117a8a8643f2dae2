"""Experts from adapters: their weights are made here, of a registered base."""

import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.experts.parts import part_bytes, write_part_weights
from moerge.files import atomic_file
from moerge.models.adapters import WEIGHTS
from moerge.models.expert_folder import is_weights, merged_weights
from moerge.models.sources import ADAPTER_CONFIG, on_base
from moerge.models.stored import SINGLE
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.seeds import find_seed, parts_of
from moerge_coordinator.log import progress
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ExpertRow, OwnerRow, now
from moerge_proto.experts import ExpertState, NewAdapter, NewExpert, Parts
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType

_PAUSE = timedelta(hours=1)


def require_base(session: Session, owner: str, adapter: NewAdapter | None, parts: Parts | None) -> None:
    """Requires that an adapter's base is ready, and the owner's own or redistributed; or of parts, a seed's body.

    An owner whose adapter gave other bytes than its digest waits an hour, because each attempt costs a whole merge.
    """
    if adapter is None:
        return
    _require_no_pause(session, owner)
    if find_seed(session, parts) is not None:
        return
    query = select(ExpertRow).where(ExpertRow.digest == adapter.base, ExpertRow.state == ExpertState.READY)
    base = session.scalar(query.where(ExpertRow.parts_body.is_(None)))
    if base is None or (base.owner != owner and not base.redistribute):
        problem, todo = f"no expert {adapter.base} that you may use as a base", "upload the merged model"
        raise RefusedError(ProblemType.NOT_FOUND, problem, where="adapter.base", todo=todo)


def _require_no_pause(session: Session, owner: str) -> None:
    refused = session.scalar(select(OwnerRow.adapter_refused).where(OwnerRow.name == owner))
    if refused is not None and now(session) - refused < _PAUSE:
        problem = f"an adapter of {owner!r} gave other bytes here than its digest"
        todo = f"upload the merged model, or send an adapter after {refused + _PAUSE:%Y-%m-%d %H:%M} UTC"
        raise RefusedError(ProblemType.NOT_READY, problem, where="adapter.base", todo=todo)


def require_complete(ports: Ports, owner: str, new: NewExpert, adapter: NewAdapter) -> None:
    """Requires that all files of an adapter's expert are uploaded, except the weights that are made here."""
    if [name for name in new.files if is_weights(name)] != [SINGLE]:
        problem = f"the weights of an adapter's expert are one file, {SINGLE}"
        raise RefusedError(ProblemType.INVALID_REQUEST, problem, where="files", todo="list that one")
    for name, sha256 in sorted(new.files.items()):
        if name != SINGLE:
            ports.uploads.held(owner, sha256, f"files.{name}")
    ports.uploads.held(owner, adapter.weights, "adapter.weights")


def merge_adapter(ports: Ports, row: ExpertRow, adapter: NewAdapter) -> list[FileEntry]:
    """The expert's files, with weights made of the adapter and its base.

    Refused if the weights' digest differs from the owner's, because its processor rounds differently. Of parts, the
    base is the seed.
    """
    with ports.database.reading() as session:
        require_base(session, row.owner, adapter, row.parts)
        seed = find_seed(session, row.parts)
    work = ports.settings.home / "fetching" / row.digest
    shutil.rmtree(work, ignore_errors=True)  # of a killed process
    base = ports.folders.expert(adapter.base) if seed is None else parts_of(ports, seed)
    folder = on_base(base.folder, _adapter(ports, adapter, work / "own"), work / "adapter")
    merged, entries = base.below(folder), list[FileEntry]()
    write: Callable[[BinaryIO, Callable[[int], None]], str] = partial(merged_weights, merged.checkpoint)
    total = sum(spec.bytes for spec in merged.checkpoint.specs.values())
    if seed is not None:
        write, total = partial(write_part_weights, merged, own_head=False), part_bytes(merged, own_head=False)
    for file in row.files:
        size = ports.uploads.held_size(row.owner, file.sha256)
        if size is None:
            part, title = work / file.name, f"expert {row.digest[:12]}: merging the adapter"
            with progress().track(title, total, "B") as tracker, atomic_file(part) as out:
                write(out, tracker.advance)
            size = part.stat().st_size
            file = file.model_copy(update={"size": size})
            ports.uploads.keep(row.owner, file, part, "the adapter merged by the coordinator")
        entries.append(file.model_copy(update={"size": size}))
    return entries


def _adapter(ports: Ports, adapter: NewAdapter, folder: Path) -> Path:
    """A folder with the adapter's two files."""
    ports.blobs.link(adapter.weights, folder / WEIGHTS)
    with atomic_file(folder / ADAPTER_CONFIG) as out:
        out.write(json.dumps(adapter.settings).encode())
    return folder
