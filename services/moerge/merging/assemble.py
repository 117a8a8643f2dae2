"""The assembly of a version on one machine: body, experts, contributions to head and routers, and lineage.

Merges, additions, the laboratory's recipes and its table of joining experts call `assemble`. Only the coordinator has
steps of its own, because its parts come from other machines. `Assembled.write` links files of an earlier output.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from moerge.bodies.head_kinds import HEADS
from moerge.bodies.methods.registry import METHODS
from moerge.documents.files import silent
from moerge.documents.shards import shard_name
from moerge.fits.fitting import PublicText, fit
from moerge.fits.sample import fitting_sample_that_fits, threads_that_fit
from moerge.memory.machine import free_for
from moerge.merging.local_lineages import LocalBody, given, local_body, local_version
from moerge.merging.settings import VersionSettings
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import mlp_layers
from moerge.models.tokens import Tokens
from moerge.progress import NoProgress, Progress
from moerge.statistics.contribution import body_contribution, head_contribution, router_contribution
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import Slot, VersionInputs, plan_version, solve_lineage
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.version_files import FUSED_FILE, HEAD_FILE
from moerge_proto.versions import Lineage

BODY = "body"
"""The folder of a body."""
LEAST_DOCUMENTS = 100
"""Least number of documents of a fit, if there are so many."""


class StatisticsText(Protocol):
    """A domain's documents for statistics, which can be read several times."""

    def __iter__(self) -> Iterator[Tokens]: ...

    def sample(self, settings: StatisticsSettings, tokens: int, least_documents: int) -> list[list[Tokens]]:
        """The rows of each document of a sample for fitting."""


@dataclass(frozen=True)
class KeptParts:
    """The parts of a version that stay as experts are added: its body, and perhaps experts and their contributions.

    `heads` are head contributions in slot order, if the head is solved.
    """

    body: LocalBody
    slots: Sequence[Slot] = ()
    contributions: Sequence[Path] = ()
    heads: Sequence[Path] = ()


@dataclass(frozen=True)
class Assembled:
    """An assembled version, before head and routers are solved.

    `routers` are given ones, [D, H] per layer; None: solved from the contributions.
    """

    lineage: Lineage
    inputs: VersionInputs
    parts: KeptParts
    routers: Sequence[Tensor] | None = None

    @property
    def body(self) -> LocalBody:
        return self.parts.body

    def write(self, folder: Path, progress: Progress | None = None, earlier: Path | None = None) -> Path:
        """Solves the routers, writes the version into a new folder, and returns it.

        Body and experts of the folder `earlier`, the version with the kept parts, are linked, not copied; fused experts
        are written.
        """
        progress = progress or NoProgress()
        with progress.track("solving the routers", self.body.layers, "layers") as tracker:
            if self.routers is not None:
                solution = given(self.routers)(self.lineage, self.inputs)
            else:
                solution = solve_lineage(self.lineage, self.inputs, lambda layer: tracker.advance(1))
        plan = plan_version(self.lineage, self.inputs, lambda lineage, inputs: solution)
        same = [file for file in plan.shared if file.name not in (HEAD_FILE, FUSED_FILE)]  # those are of other experts
        files = {} if earlier is None else {file.key: earlier / file.name for file in same}
        kept = {key: path for key, path in files.items() if path.is_file()}
        total = sum(sum(file.tensors.values()) for file in plan.files)
        with progress.track(f"writing {folder.name}", total, "B") as tracker:
            return write_folder(plan.files, folder, lambda file: tracker.advance(sum(file.tensors.values())), kept)


def assemble(
    experts: Sequence[DenseExpert],
    texts: Sequence[StatisticsText],
    settings: VersionSettings,
    work: Path,
    kept: KeptParts | None = None,
    *,
    routers: Sequence[Tensor] | None = None,
    heads: Sequence[Path] | None = None,
    say: Callable[[str], None] = silent,
) -> Assembled:
    """Computes the parts of a version; those of an interrupted run are reused.

    Args:
        experts: new ones, in slot order, behind those that are kept.
        texts: of each expert's domain.
        work: existing folder of body, fitted experts and contributions.
        kept: parts of an earlier version; None: a body is merged from the experts.
        routers: given ones, in place of contributions and a solve.
        heads: head contributions of `experts`; None: computed, if the head is solved.
    """
    kept = kept or KeptParts(body_of(experts, texts, settings, work))
    parts, body, members = list(kept.contributions), kept.body, list(experts)
    if settings.recipe.fit:

        def member(expert: DenseExpert, text: StatisticsText) -> DenseExpert:
            if expert.domain in settings.unfitted or expert.digest == body.model:  # the seed, under its own body
                return expert
            return fitted(expert, text, body, settings, work, say)

        members = list(map(member, experts, texts))
    heads = head_contributions(experts, texts, settings, work, members) if heads is None else heads
    if routers is None:
        for expert, text in zip(members, texts, strict=True):
            path = work / f"router-{expert.domain}-{body.digest[:16]}.safetensors"
            how = settings.router_statistics, settings.computing, settings.finisher
            parts.append(router_contribution(expert, body, text, path, *how))
    every = [*kept.heads, *heads]
    lineage, inputs = local_version(
        members,
        body,
        parts,
        settings.recipe.solve,
        head=settings.recipe.head,
        head_contributions=every,
        kept=kept.slots,
        seed_heads=settings.seed_heads,
        tied=settings.recipe.head == "seed" and body.seed is not None and body.seed.is_tied,
        chat_template=settings.chat_template,
    )
    return Assembled(lineage, inputs, KeptParts(body, inputs.slots, parts, every), routers)


def are_fittable(experts: Sequence[DenseExpert]) -> bool:
    """Tell whether the experts' MLPs can be fitted to a body."""
    return all(expert.family.is_fittable for expert in experts)


def body_of(
    experts: Sequence[DenseExpert], texts: Sequence[StatisticsText], settings: VersionSettings, work: Path
) -> LocalBody:
    """The body of the experts, in the folder `body` of `work`; a solved one is from contributions by the texts."""
    parts, recipe = list[Path](), settings.recipe
    if METHODS[recipe.body].solved:
        for expert, text in zip(experts, texts, strict=True):
            path = work / f"body-{expert.domain}.safetensors"
            parts.append(
                body_contribution(expert, text, path, settings.statistics, settings.computing, settings.rare_below)
            )
    progress = settings.computing.progress
    return local_body(experts, work / BODY, recipe.body, parts, settings.body, base=settings.base, progress=progress)


def head_contributions(
    experts: Sequence[DenseExpert],
    texts: Sequence[StatisticsText],
    settings: VersionSettings,
    work: Path,
    members: Sequence[DenseExpert],
) -> list[Path]:
    """The head contributions, by the texts, of experts with own heads, in `work`; none unless the head is solved.

    Under a seed's body they name the version's `members`, as in the service, which has no whole experts there.
    """
    if not HEADS[settings.recipe.head].solved:
        return []
    paths, named = list[Path](), members if METHODS[settings.recipe.body].is_seed else experts
    for expert, text, member in zip(experts, texts, named, strict=True):
        if expert.domain not in settings.seed_heads:
            paths.append(path := work / f"head-{expert.domain}.safetensors")
            head_contribution(expert, text, path, settings.statistics, settings.computing, member.digest)
    return paths


def fitted(
    expert: DenseExpert,
    text: StatisticsText,
    body: LocalBody,
    settings: VersionSettings,
    work: Path,
    say: Callable[[str], None] = silent,
) -> DenseExpert:
    """The expert's parts, with MLPs that are fitted to the body."""
    statistics, computing, device = settings.statistics, settings.computing, settings.computing.device

    def sample(tokens: int) -> list[list[Tokens]]:
        return text.sample(statistics, tokens, LEAST_DOCUMENTS)

    free = free_for(device)
    documents, batches = fitting_sample_that_fits(expert, statistics, sample, device, free, say)
    threads = threads_that_fit(expert, statistics, batches, device, free, computing.slots)
    rows = [row for document in documents for row in document]
    name = digest_of({"expert": expert.digest, "body": body.digest, "rows": shard_name(b"", rows)})
    folder = work / f"fitted-{expert.domain}-{name[:16]}"
    is_seed, base = METHODS[body.method].is_seed, settings.base
    public = PublicText.of(base, statistics) if is_seed and base is not None else None
    if not folder.is_dir():
        part = work / f".{folder.name}.part"
        total = sum(row.count for row in rows) * len(mlp_layers(expert.config))
        with computing.progress.track(f"fitting MLPs of {expert.domain}", total, "tokens") as tracker:
            fit(expert, body, batches, part, device, tracker.advance, public, threads)
        os.replace(part, folder)
    return replace(expert, folder=folder, trained=expert)
