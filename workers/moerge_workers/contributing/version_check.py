"""The check of a downloaded version: the checked body, the owner's own MLPs, and the worker's own config."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.files import file_sha256
from moerge.models.dense_files import DenseBody
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import Family, mlp_layers
from moerge.models.reader import Checkpoint
from moerge.models.stored import INDEX
from moerge.models.writer import StackedPlan, TensorPlan
from moerge.versions.file_plan import (
    body_files,
    config_files,
    expert_file,
    expert_matrices,
    mlp_files,
    version_config,
)
from moerge_proto.digests import canonical_json, sha256_hex
from moerge_proto.records import RECORD_FILE
from moerge_proto.version_files import FUSED_FILE, HEAD_FILE, ROUTER_FILE
from moerge_proto.versions import Version
from moerge_workers.computing.held_out import NotNowError
from moerge_workers.contributing.parts import folders
from moerge_workers.outgoing.outbox import Outbox

_FUSED = f"{FUSED_FILE} has all experts' MLPs, so yours are compared only before an evaluation"


class AlteredVersionError(NotNowError):
    """A version's body or own MLPs differ from the ones that this worker checked and sent."""


def slot_of(domain: str, version: Version) -> int:
    """The slot of the owner's expert; AlteredVersionError: there isn't exactly one of its domain."""
    domains = version.lineage.domains
    if domains.count(domain) != 1 or len(domains) != len(version.lineage.experts):
        raise AlteredVersionError(f"its domains are {', '.join(domains)}")
    return domains.index(domain)


def require_listed(
    outbox: Outbox, expert: DenseExpert, version: Version, body: DenseBody | None, known: dict[str, str]
) -> str:
    """Require that a version's listed digests are those of the body and of the owner's MLPs. Downloads nothing.

    Args:
        body: None: it isn't on this machine, so it isn't compared.
        known: key of a planned file -> its digest, kept between calls.

    Returns:
        What was compared.

    Raises:
        AlteredVersionError: names the file that differs.
    """
    lineage, domain = version.lineage, expert.domain
    listed = {file.name: file.sha256 for file in version.files}
    if listed.get(RECORD_FILE) != sha256_hex(canonical_json(lineage.model_dump(mode="json")) + b"\n"):
        raise AlteredVersionError(f"its lineage isn't the one of {RECORD_FILE}, or a newer release wrote it")
    if domain not in lineage.domains:
        return f"it has no expert for {domain}"
    slot = slot_of(domain, version)
    digest = lineage.experts[slot]
    try:
        own = _own_expert(outbox.settings.home, expert, digest, lineage.body)
    except AlteredVersionError:
        sent = outbox.history.item(digest, outbox.settings.coordinator)
        if sent is None or outbox.history.movement(sent) is None:
            raise
        return f"it has your earlier expert {digest[:12]}, which isn't on this machine"
    plans, fused = [], own.family.host.fused
    if body is not None:
        plans += body_files(body, lineage.body, file_sha256(body.checkpoint.path))
    if not fused:
        plans.append(expert_file(own.checkpoint, own.family, mlp_layers(own.config), slot, digest))
    for plan in plans:
        if plan.key not in known:
            known[plan.key] = plan.digest()
        if listed.get(plan.name) != known[plan.key]:
            raise AlteredVersionError(f"{plan.name} differs from the checked body or your expert")
    mlps = _FUSED if fused else "your MLPs are unchanged"
    return f"{mlps}; {'its body is not on this machine' if body is None else 'the body is unchanged'}"


def require_own(home: Path, expert: DenseExpert, version: Version, body: DenseBody, folder: Path) -> None:
    """Require that a version's files in `folder` have the bytes of the body and of the owner's MLPs.

    Afterwards the folder has only checked weights, and an index and a config made by the worker: no
    other file of the coordinator has an effect.

    Raises:
        AlteredVersionError: names the file that differs.
    """
    try:
        _require(home, expert, version, body, folder)
    except (CheckpointError, IncompatibleExpertError) as error:
        raise AlteredVersionError(str(error)) from error


def _require(home: Path, expert: DenseExpert, version: Version, body: DenseBody, folder: Path) -> None:
    lineage, slot = version.lineage, slot_of(expert.domain, version)
    family, layers, count = body.family, mlp_layers(body.config), len(lineage.experts)
    path = body.checkpoint.path
    own = _own_expert(home, expert, lineage.experts[slot], lineage.body)
    known = body_files(body, lineage.body, file_sha256(path))
    experts = mlp_files([(own.checkpoint, lineage.experts[slot])] * count, family, layers)
    if not family.host.fused:
        known.append(experts[slot])
    for plan in known:
        if not (folder / plan.name).is_file() or file_sha256(folder / plan.name) != plan.digest():
            raise AlteredVersionError(f"{plan.name} differs from the checked body or your expert")
    names = {plan.name: set(plan.tensors) for plan in (*known, *experts)}
    names[HEAD_FILE] = {family.final_norm} if lineage.tied else set(family.head_names)
    names[ROUTER_FILE] = set(family.host.router_names(layers))
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    for name, tensors in names.items():
        if not (folder / name).is_file() or Checkpoint(folder / name).specs.keys() != tensors:
            raise AlteredVersionError(f"{name} is missing, or its tensors differ from a published version's")
    if family.host.fused:
        _require_own_slot(Checkpoint(folder / FUSED_FILE), own.checkpoint, family, layers, slot, count)
    index = {"metadata": {}, "weight_map": {tensor: name for name, tensors in names.items() for tensor in tensors}}
    (folder / INDEX).write_text(json.dumps(index))
    published = version_config(body, count, lineage.options.top_k, tied=lineage.tied)
    plan = config_files(expert, published)[0]
    with (folder / plan.name).open("wb") as out:
        plan.write(out)


def _require_own_slot(
    fused: Checkpoint, own: Checkpoint, family: Family, layers: Sequence[int], slot: int, count: int
) -> None:
    """Require the owner's MLPs, bit by bit, in a slot of fused experts."""
    mine: dict[str, list[TensorPlan]] = {}
    for plan in expert_matrices(own, family, layers, slot):
        mine.setdefault(plan.name, []).append(plan)
    for name, matrices in mine.items():
        wanted, spec = StackedPlan(name, count, matrices * count), fused.specs[name]
        if (spec.dtype, spec.shape) != (wanted.dtype, wanted.shape):
            raise AlteredVersionError(f"{name} has another form than a published version's")
        stored = fused.tensor(name)[slot].split([plan.shape[0] for plan in matrices])
        for rows, plan in zip(stored, matrices, strict=True):
            if not torch.equal(rows.view(torch.uint8), plan.compute().view(torch.uint8)):
                raise AlteredVersionError(f"{name} differs from your expert in slot {slot}")


def _own_expert(home: Path, expert: DenseExpert, digest: str, body: str) -> DenseExpert:
    """The owner's expert, or its parts for a body, with that digest."""
    parts = (DenseExpert(expert.domain, folder) for folder in folders(home, expert, body))
    own = next((item for item in (expert, *parts) if item.digest == digest), None)
    if own is None:
        raise AlteredVersionError(f"its expert for {expert.domain} is {digest[:12]}, which isn't yours")
    return own
