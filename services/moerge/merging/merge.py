"""A merge on one machine, from experts and texts to a published version, by the steps of the service."""

from collections.abc import Callable, Sequence
from pathlib import Path

from moerge.errors import MoergeError
from moerge.experts.fitting import require_fittable
from moerge.files import alone
from moerge.merging.job import Job, MergeSettings, Source
from moerge.merging.kept import TRUNK, keep, kept_expert
from moerge.merging.local import LocalTrunk, local_trunk, local_version
from moerge.merging.report import DomainCounts, Report
from moerge.merging.scores import HeldOut, scores
from moerge.merging.texts import Survey
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import trunk_contribution
from moerge.trunk.methods.registry import METHODS, require_options
from moerge.versions.files import REPORT_FILE
from moerge_proto.trunks import TrunkOptions
from moerge_proto.versions import SolveReport

__all__ = ["MergeSettings", "Source", "merge"]


def merge(
    sources: Sequence[Source],
    out: Path,
    settings: MergeSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Merges experts into a version in the folder `out`; an interrupted run continues.

    Args:
        sources: in slot order.
        out: a new folder, or that of an interrupted run of the same merge.
        settings: by default the recommended recipe.
        say: gets other messages.

    Raises:
        MoergeError: an expert, a text, an option or the machine is unsuitable; names it and the remedy.
    """
    job = Job(out, settings or MergeSettings(), say)
    with alone(job.work):
        return _merged(job, sources)


def _merged(job: Job, sources: Sequence[Source]) -> Report:
    settings, experts = job.settings, [source.expert for source in sources]
    check(job, sources)
    surveys = [job.surveyed(source) for source in sources]
    trunk = _trunk(job, experts, surveys)
    members = [job.expert(own, each, trunk) for own, each in zip(experts, surveys, strict=True)]
    parts = [job.contribution(own, each, trunk) for own, each in zip(members, surveys, strict=True)]
    lineage, inputs = local_version(members, trunk, parts, settings.recipe.solve)
    job.publish(lineage, inputs, {})
    held_out = [HeldOut(each.scored, own.folder) for own, each in zip(experts, surveys, strict=True)]
    found = scores(held_out, job.out, settings.computing, job.say)
    report = Report.of(
        str(job.out),
        [own.domain for own in experts],
        [DomainCounts(each.documents, each.tokens) for each in surveys],
        [each.domain for each in found],
        SolveReport.model_validate_json((job.out / REPORT_FILE).read_text(encoding="utf-8")),
        generated=[source.expert.domain for source in sources if source.generated],
    )
    job.score_card(report)
    if settings.keep_statistics:
        kept = [
            kept_expert(slot.record, own.windows, each.expert, generated=source.generated)
            for slot, source, own, each in zip(inputs.slots, sources, held_out, found, strict=True)
        ]
        keep(job.work, job.record(kept, [kept_expert(each) for each in trunk.contains]), inputs.slots)
    else:
        job.clear()
    return report


def check(job: Job, sources: Sequence[Source]) -> int:
    """Checks output, options, experts and disk; returns the missing bytes on it.

    Raises:
        MoergeError: as in `merge`.
    """
    settings, experts = job.settings, [source.expert for source in sources]
    job.check_out()
    _check_options(settings, sources)
    job.check_experts(experts if settings.base is None else [*experts, settings.base])
    return job.check_disk(sources)


def _check_options(settings: MergeSettings, sources: Sequence[Source]) -> None:
    recipe = settings.recipe
    if len(sources) < 2:
        raise MoergeError("a merge needs two experts or more", where="--expert", todo="name each: NAME=DIR")
    if recipe.solve.top_k > len(sources):
        found = f"{recipe.solve.top_k} experts per token, of {len(sources)}"
        raise MoergeError(found, where="--k", todo=f"give a number between 1 and {len(sources)}")
    if recipe.solve.lambda_scale == "auto":
        todo = "give a number with --lambda, in the scale absolute or relative"
        raise MoergeError("a merge on one machine has no tuning split", where="--lambda-scale auto", todo=todo)
    require_options(METHODS[recipe.method], _trunk_options(settings))
    if recipe.fit:
        for source in sources:
            require_fittable(source.expert.config, source.expert.folder)


def _trunk_options(settings: MergeSettings) -> TrunkOptions:
    base = settings.base
    return settings.trunk if base is None else settings.trunk.model_copy(update={"base": base.digest})


def _trunk(job: Job, experts: Sequence[DenseExpert], surveys: Sequence[Survey]) -> LocalTrunk:
    settings, parts = job.settings, list[Path]()
    if METHODS[settings.recipe.method].solved:
        for own, each in zip(experts, surveys, strict=True):
            path = job.work / f"trunk-{own.domain}.safetensors"
            statistics, computing = settings.statistics, settings.computing
            parts.append(trunk_contribution(own, each.texts, path, statistics, computing, settings.rare_below))
    return local_trunk(
        experts,
        job.work / TRUNK,
        settings.recipe.method,
        parts,
        settings.trunk,
        base=settings.base,
        progress=job.progress,
    )
