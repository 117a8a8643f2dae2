"""Experts from adapters: their weights are made here, of the seed."""

import json
import shutil
from datetime import timedelta
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.files import atomic_file
from moerge.fits.parts import part_bytes, write_part_weights
from moerge.models.adapters import WEIGHTS
from moerge.models.expert_folder import is_weights
from moerge.models.sources import ADAPTER_CONFIG, on_base
from moerge.models.stored import SINGLE
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.seeds import parts_of, seed_of
from moerge_coordinator.log import progress
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ExpertRow, OwnerRow, now
from moerge_proto.experts import NewAdapter, NewExpert
from moerge_proto.messages import FileEntry
from moerge_proto.problems import ProblemType

ADAPTERS = "adapters"
"""The folder in the home for merges."""
_PAUSE = timedelta(hours=1)


def require_no_pause(session: Session, owner: str) -> None:
    """Requires an hour since the owner's last adapter that gave other bytes than its digest: each costs a merge."""
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
    """The expert's files, with MLPs made of the adapter and the seed.

    Refused if the weights' digest differs from the owner's, because its processor rounds differently.
    """
    with ports.database.reading() as session:
        seed = seed_of(session, row.parts)
    work = ports.settings.home / ADAPTERS / row.digest
    shutil.rmtree(work, ignore_errors=True)  # of a killed process
    base = parts_of(ports, seed)
    folder = on_base(base.folder, _adapter(ports, adapter, work / "own"), work / "adapter")
    merged, entries = base.below(folder), list[FileEntry]()
    for file in row.files:
        size = ports.uploads.held_size(row.owner, file.sha256)
        if size is None:
            part, title = work / file.name, f"expert {row.digest[:12]}: merging the adapter"
            total = part_bytes(merged, own_head=False)
            with progress().track(title, total, "B") as tracker, atomic_file(part) as out:
                write_part_weights(merged, out, tracker.advance, own_head=False)
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
