"""Experts added to a version on one machine, under its trunk and with its statistics, as in the service."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.experts.fitting import require_fittable
from moerge.files import alone
from moerge.merging.job import Job, MergeSettings, Source
from moerge.merging.kept import Kept, KeptExpert, keep, kept_expert, share, windows_digest
from moerge.merging.local import slot_of, version_of
from moerge.merging.report import DomainCounts, Report
from moerge.merging.scores import HeldOut, scores
from moerge.merging.texts import Texts, survey
from moerge.scoring.perplexity import Score, Window
from moerge.versions.files import REPORT_FILE
from moerge_proto.trunks import TrunkOptions
from moerge_proto.versions import SolveReport


def add(
    sources: Sequence[Source],
    version: Kept,
    out: Path,
    settings: MergeSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
    texts: Mapping[str, Corpus] | None = None,
) -> Report:
    """Appends experts to a version into the folder `out`; an interrupted run continues.

    The version's experts and texts aren't needed. Its files of the trunk and of experts are linked, not copied.

    Args:
        sources: the new experts, in slot order.
        version: its files stay as they are.
        out: a new folder, or that of an interrupted run of the same work.
        settings: those that determine the version are replaced by the version's own.
        say: gets other messages.
        texts: old domain -> the texts of its merge, to score its held-out ones again.

    Raises:
        MoergeError: an expert, a text, an option or the machine is unsuitable; names it and the remedy.
    """
    job = job_of(version, out, settings or MergeSettings(), say)
    with alone(job.work):
        return _added(job, version, sources, texts or {})


def job_of(version: Kept, out: Path, settings: MergeSettings, say: Callable[[str], None]) -> Job:
    """The work of `add`, with the version's settings.

    Raises:
        MoergeError: the output is the version's folder.
    """
    record = version.record
    own = replace(
        settings,
        recipe=record.recipe,
        trunk=TrunkOptions(),
        base=None,
        statistics=record.statistics,
        held_out_share=record.held_out_share,
        rare_below=record.rare_below,
    )
    if out.resolve() == version.folder.resolve():
        raise MoergeError("is the folder of --from", where=f"--out {out}", todo="name a new folder")
    return Job(out, own, say)


def _added(job: Job, version: Kept, sources: Sequence[Source], texts: Mapping[str, Corpus]) -> Report:
    settings, trunk, old = job.settings, version.trunk, version.record.experts
    check(job, version, sources)
    surveys = [job.surveyed(source) for source in sources]
    members = [job.expert(source.expert, each, trunk) for source, each in zip(sources, surveys, strict=True)]
    parts = [job.contribution(own, each, trunk) for own, each in zip(members, surveys, strict=True)]
    slots = [*version.slots, *map(slot_of, members)]
    every = [*version.contributions.values(), *parts]
    lineage, inputs = version_of(slots, trunk, every, version.lineage.options, tied=version.lineage.tied)
    job.publish(lineage, inputs, version.earlier)
    held_out = [_again(job, each, texts) for each in old]
    if settings.scored_tokens and (missing := [each.domain for each in old if each.domain not in texts]):
        job.say(f"not scored, for want of held-out text: {', '.join(missing)}; give their --text of the merge again")
    held_out += [HeldOut(each.scored, source.expert.folder) for source, each in zip(sources, surveys, strict=True)]
    found = scores(held_out, job.out, settings.computing, job.say)
    counts = {each.domain: DomainCounts(each.documents, each.tokens) for each in inputs.contributed}
    new = [
        kept_expert(slot.record, own.windows, each.expert, generated=source.generated)
        for slot, source, own, each in zip(
            slots[len(old) :], sources, held_out[len(old) :], found[len(old) :], strict=True
        )
    ]
    merged = {each.digest for each in trunk.contains}
    report = Report.of(
        str(job.out),
        lineage.domains,
        [counts[domain] for domain in lineage.domains],
        [each.domain for each in found],
        SolveReport.model_validate_json((job.out / REPORT_FILE).read_text(encoding="utf-8")),
        generated=[each.domain for each in (*old, *new) if each.generated],
        newcomers=[each.domain for each in (*old, *new) if each.original not in merged],
    )
    job.score_card(report)
    if settings.keep_statistics:
        share(version, job.work)
        keep(job.work, job.record([*old, *new], version.record.merged), slots)
    else:
        job.clear()
    return report


def check(job: Job, version: Kept, sources: Sequence[Source]) -> int:
    """Checks output, experts and disk; returns the missing bytes on it.

    Raises:
        MoergeError: as in `add`.
    """
    job.check_out()
    _check_new(sources, version.record.experts)
    if job.settings.recipe.fit:
        for source in sources:
            require_fittable(source.expert.config, source.expert.folder)
    job.check_experts([source.expert for source in sources], version.trunk.config)
    return job.check_disk(sources)


def _check_new(sources: Sequence[Source], old: Sequence[KeptExpert]) -> None:
    domains, digests = [each.domain for each in old], {each.original: each.domain for each in old}
    for source in sources:
        domain = source.expert.domain
        if domain in domains:
            todo = f"name another domain than {', '.join(domains)}"
            raise MoergeError(f"the version has a domain {domain!r} already", where="--add", todo=todo)
        if (same := digests.get(source.expert.digest)) is not None:
            raise MoergeError(f"{domain!r} is the expert of {same!r}", where="--add", todo="name another expert")


def _again(job: Job, own: KeptExpert, texts: Mapping[str, Corpus]) -> HeldOut:
    """An old domain's held-out windows, none without its texts, and its expert's score on them."""
    nothing = HeldOut((), Score(0.0, 0))
    if (corpus := texts.get(own.domain)) is None or not job.settings.scored_tokens:
        return nothing
    read = Texts(corpus, job.settings.statistics, job.settings.held_out_share)
    windows: Sequence[Window] = survey(own.domain, read, job.settings.scored_tokens, job.progress).scored
    if own.score is None or not windows or windows_digest(windows) != own.score.windows:
        found = "its held-out text isn't that of its merge; give the same --text, --chat and --scored-tokens"
        job.say(f"{own.domain}: not scored: {found}")
        return nothing
    return HeldOut(windows, Score(own.score.nll, own.score.tokens))
