"""A merge on one machine, from experts and texts to a published version, by the steps of the service."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from moerge.bodies.methods.registry import METHODS
from moerge.errors import MoergeError
from moerge.files import LOCK, alone, atomic_file, work_folder
from moerge.merging.assemble import Assembled, are_fittable, assemble
from moerge.merging.checks import check
from moerge.merging.kept_statistics import CHOICES, KeptExpert, KeptVersion, Record, keep, share
from moerge.merging.recipe_file import FILE
from moerge.merging.report import DomainCounts, DomainScore, Report
from moerge.merging.scores import scores
from moerge.merging.settings import AUTO, MergeSettings, Source
from moerge.merging.texts import read_text
from moerge.models.keeping import all_keep, keeping
from moerge.versions.card_scores import recipe_card, scored_card
from moerge.versions.version_plan import BASE, small_files_of
from moerge_proto.digests import sha256_hex
from moerge_proto.records import RECORD_FILE, read_record
from moerge_proto.version_files import CARD_FILE, REPORT_FILE
from moerge_proto.versions import Lineage, SolveReport

__all__ = ["MergeSettings", "Source", "merge"]


def merge(
    sources: Sequence[Source],
    out: Path,
    settings: MergeSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
    version: KeptVersion | None = None,
    recipe: str | None = None,
) -> Report:
    """Merges experts into a version in the folder `out`, or adds them to one; an interrupted run continues.

    Args:
        sources: the experts, in slot order.
        out: a new folder, or that of an interrupted run of the same work.
        settings: by default the recommended recipe. An addition has the version's own in place of those that determine
            a version.
        say: gets other messages.
        version: that the experts are added to. Its own experts and texts aren't needed; its files are linked, not
            copied. None: a new merge.
        recipe: the content of the output's recipe file; None: it has none.

    Raises:
        MoergeError: names the unsuitable expert, text, option or resource, and the remedy.
    """
    settings, work = settings_of(sources, out, settings or MergeSettings(), version), work_folder(out)
    with alone(work):
        check(sources, out, settings, version, say)
        read = [read_text(source, settings, say, work) for source in sources]
        experts = [source.expert for source in sources]
        kept, own = None if version is None else version.parts, [domain.text for domain in read]
        assembled = assemble(experts, own, settings, work, kept, say=say)
        if not _is_written(out, assembled.lineage):
            assembled.write(out, settings.computing.progress, None if version is None else version.folder)
        members = [] if version is None else list(version.record.experts)
        if members and settings.scored_tokens:
            names = ", ".join(member.domain for member in members)
            say(f"only new domains are scored, not {names}; `moerge table version` scores all")
        windows = [(expert, domain.scored) for expert, domain in zip(experts, read, strict=True)]
        scored = [*[None] * len(members), *scores(windows, out, settings.computing, say)]
        slots = assembled.inputs.slots[len(members) :]
        for slot, source in zip(slots, sources, strict=True):
            members.append(KeptExpert(**slot.record._asdict(), generated=source.generated))
        named = [source.expert.domain for source in sources if source.held_out is not None]
        report = _report(out, settings, assembled, members, scored, version, named)
        card = scored_card((out / CARD_FILE).read_text(encoding="utf-8"), report.card_scores)
        if recipe is not None:
            with atomic_file(out / FILE) as file:
                file.write(recipe.encode())
            card = recipe_card(card, FILE, sha256_hex(recipe.encode()))
        with atomic_file(out / CARD_FILE) as file:
            file.write(card.encode())
        _keep_or_clear(work, settings, assembled, members, version)
    return report


def settings_of(
    sources: Sequence[Source], out: Path, settings: MergeSettings, version: KeptVersion | None
) -> MergeSettings:
    """The settings of a merge, or of an addition to a version, with a recipe that says whether MLPs are fitted."""
    if version is not None:
        if out.resolve() == version.folder.resolve():
            raise MoergeError("is the version to add experts to", where=f"`out` {out}", todo="name a new folder")
        settings = version.settings(settings)
    settings = _compared(sources, settings)
    recipe, fit, some = settings.recipe, settings.fit, len(settings.unfitted) < len(sources)
    if fit is None:
        fit = recipe.fit or (
            (version is not None or METHODS[recipe.body].is_seed)
            and some
            and are_fittable([source.expert for source in sources])
        )
    chat = _chat_template(settings, version)
    return replace(settings, recipe=recipe.model_copy(update={"fit": fit}), chat_template=chat)


def _compared(sources: Sequence[Source], settings: MergeSettings) -> MergeSettings:
    """The settings with the base's body and head if the experts keep them, and with the experts that need no fit."""
    base, recipe, found = settings.base, settings.recipe, settings.keeping
    if base is None or not (settings.automatic or METHODS[recipe.body].is_seed):
        return settings
    if found is None:
        experts = [source.expert for source in sources]
        total = len(experts) * sum(spec.bytes for spec in base.checkpoint.specs.values())
        with settings.computing.progress.track("comparing the experts with the base", total, "B") as tracker:
            found = {expert.domain: keeping(expert, base, tracker.advance) for expert in experts}
    body, head = all_keep(found.values())
    if settings.automatic and body:
        recipe = recipe.model_copy(update={"body": "seed"})
    is_seed = METHODS[recipe.body].is_seed
    if settings.automatic_head and is_seed and head:
        recipe = recipe.model_copy(update={"head": "seed"})
    if not is_seed or settings.fit is not None:
        return replace(settings, recipe=recipe, keeping=found)
    unfitted = [domain for domain, item in found.items() if item.keeps_body]
    seed_heads = [domain for domain, item in found.items() if item.keeps_all]
    return replace(settings, recipe=recipe, keeping=found, unfitted=unfitted, seed_heads=seed_heads)


def _chat_template(settings: MergeSettings, version: KeptVersion | None) -> str | None:
    """The lineage's name of the chosen chat template; that of a version by default."""
    name, method = settings.chat_template, METHODS[settings.recipe.body]
    if name is None:
        return None if version is None else version.lineage.chat_template
    return None if name == AUTO or (name == BASE and method.is_seed) else name


def _is_written(out: Path, lineage: Lineage) -> bool:
    """Tell whether an interrupted run has written the version."""
    if not (out / RECORD_FILE).is_file():
        return False
    if read_record(out) != lineage:
        raise MoergeError("contains another version", where=str(out), todo="name a new folder, or remove it")
    return True


def _keep_or_clear(
    work: Path, settings: MergeSettings, new: Assembled, members: list[KeptExpert], version: KeptVersion | None
) -> None:
    if settings.keep_statistics:
        if version is not None:
            share(version, work)
        merged = [KeptExpert(**record._asdict()) for record in new.body.contains]
        chosen = {name: getattr(version.record if version else settings, name) for name in CHOICES}
        keep(work, Record(experts=members, merged=merged, **chosen), new.inputs.slots)
        return
    for path in work.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _report(
    out: Path,
    settings: MergeSettings,
    new: Assembled,
    members: list[KeptExpert],
    scored: list[DomainScore | None],
    version: KeptVersion | None,
    held_out: Sequence[str],
) -> Report:
    counts = {part.domain: DomainCounts(part.documents, part.tokens) for part in new.inputs.contributed}
    merged = {record.digest for record in new.body.contains}
    late = [] if version is None else [member for member in members if member.record.dense not in merged]
    solved = SolveReport.model_validate_json((out / REPORT_FILE).read_text(encoding="utf-8"))
    conditions = [layer.condition for layer in solved.layers]
    return Report(
        str(out),
        new.lineage.domains,
        [counts[domain] for domain in new.lineage.domains],
        scored,
        (min(conditions), max(conditions)),
        generated=[member.domain for member in members if member.generated],
        held_out=held_out,
        seeds=[member.domain for member in members if member.record.dense == new.body.model],
        unfitted=[member.domain for member in late if merged and not member.fitted],
        chat=small_files_of(new.lineage, new.inputs)[1].warning,
    )
