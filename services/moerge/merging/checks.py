"""The checks of a merge or an addition, before anything is computed or written."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.filesize import decimal

from moerge.bodies.methods.registry import METHODS
from moerge.documents.corpus import Corpus
from moerge.documents.pool import pool_texts
from moerge.errors import MoergeError
from moerge.files import LOCK, work_folder
from moerge.fits.fitted_files import fitted_bytes
from moerge.fits.fitting import require_fittable
from moerge.merging.kept_statistics import KeptExpert, KeptVersion
from moerge.merging.local_lineages import LocalBody, require_base, require_head
from moerge.merging.prompts import Prompts
from moerge.merging.settings import MergeSettings, Source
from moerge.models.dense_files import Dense, DenseFiles
from moerge.models.distance import UNRELATED, typical_distance
from moerge.models.expert_folder import DenseExpert, check_expert, require_finite, require_of_seed
from moerge.models.families.family import mlp_layers
from moerge.models.side_files import chat_model
from moerge.progress import Progress
from moerge.versions.version_plan import BASE
from moerge_proto.records import RECORD_FILE


def check(
    sources: Sequence[Source],
    out: Path,
    settings: MergeSettings,
    version: KeptVersion | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Checks output, options, experts and disk, of which it returns the missing bytes; errors are those of `merge`.

    `say` gets a sentence on each expert's tensors that are left out.
    """
    _check_out(out)
    experts = [source.expert for source in sources]
    if version is None:
        _check_options(settings, [expert.domain for expert in experts])
    else:
        _check_new(experts, version.record.experts)
        _check_kept_seed(settings, version.body)
    if why := experts[0].family.host.refusal(settings.recipe.solve.top_k):
        raise MoergeError(why, where="`top_k`", todo="give 1")
    if settings.recipe.fit:
        for expert in experts:
            if expert.domain not in settings.unfitted:
                require_fittable(expert)
    _check_experts(sources, settings, version, say)
    _tell_keeping(settings, say)
    if settings.chat_template is not None:
        chat_model(settings.chat_template, _models(experts, settings, version))
    rewritten = 0 if version is None else version.fused_bytes
    return _check_disk(sources, out, settings, rewritten)


def _check_out(out: Path) -> None:
    """Requires a new folder, or the version of an interrupted run, which has a work folder."""
    names, begun = _names(out), _names(work_folder(out)) - {LOCK}
    if out.is_file() or (names and not (begun and RECORD_FILE in names)):
        raise MoergeError("the folder is not empty", where=str(out), todo="name a new folder, or remove this one")


def _check_options(settings: MergeSettings, domains: Sequence[str]) -> None:
    recipe, experts = settings.recipe, len(domains)
    if unknown := sorted(settings.body.weights.keys() - set(domains)):
        raise MoergeError(f"no expert of {', '.join(unknown)}", where="`weights`", todo=f"use {', '.join(domains)}")
    if experts < 2:
        raise MoergeError("a merge needs two experts or more", where="`expert`", todo="name each: NAME=DIR")
    if recipe.solve.top_k > experts:
        what = f"{recipe.solve.top_k} experts per token, of {experts}"
        raise MoergeError(what, where="`top_k`", todo=f"give a number between 1 and {experts}")
    if recipe.solve.lambda_scale == "auto":
        todo = "give a number with `ridge_lambda`, in the scale absolute or relative"
        raise MoergeError("a merge on one machine has no tuning split", where="`lambda_scale` auto", todo=todo)
    require_base(recipe.body, settings.body, settings.base)
    require_head(recipe.head, recipe.body)


def _check_new(experts: Sequence[DenseExpert], old: Sequence[KeptExpert]) -> None:
    domains, digests = [member.domain for member in old], {member.record.dense: member.domain for member in old}
    for expert in experts:
        if expert.domain in domains:
            todo = f"name another domain than {', '.join(domains)}"
            raise MoergeError(f"the version has a domain {expert.domain!r} already", where="`add`", todo=todo)
        if (same := digests.get(expert.digest)) is not None:
            raise MoergeError(f"{expert.domain!r} is the expert of {same!r}", where="`add`", todo="name another expert")


def _check_kept_seed(settings: MergeSettings, body: LocalBody) -> None:
    """Requires the seed for a fit to its body."""
    if not (settings.recipe.fit and METHODS[body.method].is_seed):
        return
    todo = "name the folder or hub id that the version was made with; or give `fit` no"
    if settings.base is None:
        raise MoergeError("a fit to the seed's body needs the seed", where="`base`", todo=todo)
    if body.model != settings.base.digest:
        raise MoergeError("is not the seed of the version's body", where=f"`base` {settings.base.folder}", todo=todo)


def _check_experts(
    sources: Sequence[Source], settings: MergeSettings, version: KeptVersion | None, say: Callable[[str], None]
) -> None:
    """Requires complete and finite checkpoints of one architecture and tokenizer.

    They are the seed's under its body, otherwise the version's or the first expert's. Without either of the first two,
    one vocabulary may append tokens to the other.
    """
    seed = settings.base if METHODS[settings.recipe.body].is_seed else None
    kept = None if version is None else version.slots[0].side_files
    for number, source in enumerate(sources):
        who, texts = f"expert of {source.expert.domain!r}", _texts(source)
        first = None if seed is not None else kept or (sources[0].expert if number else None)
        check_expert(source.expert, first, who, "pad" if kept is None else "same", say, texts)
        if seed is not None and (replaced := require_of_seed(seed, source.expert, who, str(seed.folder), texts)):
            say(f"{who}: {replaced}")
    every = [source.expert for source in sources]
    if settings.base is not None:
        check_expert(settings.base, None if seed is not None else every[0], "the base", say=say)
        every.append(settings.base)
    _require_finite(every, settings.computing.progress)
    _warn_of_unrelated(settings.base or (every[0] if version is None else version.body), every, say)


def _require_finite(every: Sequence[DenseExpert], progress: Progress) -> None:
    total = sum(spec.bytes for expert in every for spec in expert.checkpoint.specs.values())
    with progress.track("checking the experts", total, "B") as tracker:
        for expert in every:
            try:
                require_finite(expert.checkpoint, tracker)
            except MoergeError as error:
                raise MoergeError(error.what, where=f"{expert.folder}: {error.where}", todo=error.todo) from error


def _warn_of_unrelated(origin: Dense, every: Sequence[DenseExpert], say: Callable[[str], None]) -> None:
    for expert in every:
        if expert is not origin and typical_distance(origin.checkpoint, expert.checkpoint) > UNRELATED:
            say(
                f"warning: {expert.folder} was trained from another model than {origin.checkpoint.path}: their weights "
                "have nothing in common, and a version of both answers badly. Train all experts from one seed model"
            )


def _tell_keeping(settings: MergeSettings, say: Callable[[str], None]) -> None:
    """Says what experts keep of the base, and what follows."""
    if settings.base is None or settings.keeping is None:
        return
    if len(settings.unfitted) == len(settings.keeping):
        parts = "body and head" if settings.recipe.head == "seed" else "body"
        say(f"every expert keeps the {parts} of {settings.base.folder}: the version has it, and no MLPs are fitted")
        return
    for domain, found in settings.keeping.items():
        then = "; its MLPs stay as they are" if domain in settings.unfitted else ""
        say(f"{domain}: {found}{then}")


def _texts(source: Source) -> Iterator[str]:
    """Texts with which tokenizers are compared: public ones, and the domain's first documents."""
    yield from pool_texts()
    if isinstance(source.corpus, Corpus):
        yield from source.corpus.first_texts()


def _models(
    experts: Sequence[DenseExpert], settings: MergeSettings, version: KeptVersion | None
) -> dict[str, DenseFiles]:
    """Name -> model with a chat template that can be chosen."""
    base = settings.base if version is None else version.body.base
    models: dict[str, DenseFiles] = {} if base is None else {BASE: base}
    if version is not None:
        models |= {slot.record.domain: slot.side_files for slot in version.slots}
    return models | {expert.domain: expert for expert in experts}


def _check_disk(sources: Sequence[Source], out: Path, settings: MergeSettings, rewritten: int) -> int:
    """Requires, and returns, the missing bytes of output and work.

    The output has body, head and all MLPs, `rewritten` bytes of an earlier version's; the work folder a body and the
    sums, experts' parts, and token ids of 4 bytes, which are about as large as the texts.
    """
    work, total = work_folder(out), rewritten
    for expert in (source.expert for source in sources):
        size, hidden = sum(spec.bytes for spec in expert.checkpoint.specs.values()), int(expert.config.hidden_size)
        total += size + 8 * hidden * (hidden + 1) * len(mlp_layers(expert.config))
        total += fitted_bytes(expert) if settings.recipe.fit and expert.domain not in settings.unfitted else 0
    for corpus in (source.corpus for source in sources):
        total += 4 * corpus.tokens if isinstance(corpus, Prompts) else corpus.size()
    total -= sum(path.stat().st_size for path in work.rglob("*") if path.is_file())  # of an interrupted run
    free = shutil.disk_usage(next(folder for folder in work.absolute().parents if folder.is_dir())).free
    if free < total and not _names(out):
        what = f"output and work need up to {decimal(total)} more; {decimal(free)} are free"
        raise MoergeError(what, where=str(work), todo="make room, or name `out` on a larger disk")
    return max(0, total)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
