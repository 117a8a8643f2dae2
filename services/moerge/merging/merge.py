"""A merge on one machine, from experts and texts to a published version, by the steps of the service."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.filesize import decimal

from moerge.documents.corpus import Corpus
from moerge.documents.fitting_sample import fitting_sample, fitting_tokens
from moerge.documents.shards import enough, shard_name
from moerge.documents.splits import HELD_OUT_SHARE
from moerge.errors import MoergeError
from moerge.experts.fitting import fit, fitting_bytes, require_fittable
from moerge.files import LOCK, alone, atomic_file, work_folder
from moerge.merging.local import LocalTrunk, local_trunk, local_version
from moerge.merging.report import SCORED_TOKENS, DomainCounts, DomainScore, Report
from moerge.merging.texts import Survey, Texts, survey
from moerge.models.batches import batches
from moerge.models.expert_folder import DenseExpert, check_expert, require_finite
from moerge.models.reader import Checkpoint
from moerge.progress import Progress
from moerge.scoring.perplexity import Score, load, normalised, score
from moerge.scoring.routers import RoutingCounter
from moerge.statistics.contribution import Computing, router_contribution, trunk_contribution
from moerge.statistics.memory import free_bytes
from moerge.trunk.methods.registry import METHODS, require_options
from moerge.versions.card_scores import CARD_FILE, scored_card
from moerge.versions.files import LINEAGE_FILE, REPORT_FILE
from moerge.versions.folder import write_version
from moerge.versions.plan import VersionInputs, plan_version, solve_lineage
from moerge_proto.digests import digest_of
from moerge_proto.options import RARE_BELOW, RECOMMENDED, VersionRecipe
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.trunks import TrunkOptions
from moerge_proto.tuned import tuned
from moerge_proto.versions import Lineage, SolveReport

LEAST_DOCUMENTS = 100
"""Least number of documents of a fit, if there are so many."""


@dataclass(frozen=True)
class Source:
    """A domain's expert and its documents."""

    expert: DenseExpert
    corpus: Corpus


@dataclass(frozen=True)
class MergeSettings:
    """The choices of a merge.

    Attributes:
        recipe: trunk method, fit, and options of the solve.
        trunk: options of the trunk method, without its base.
        base: the base model, for a method that takes one.
        statistics: settings of the features.
        held_out_share: share of the held-out documents, which are scored.
        rare_below: smaller token counts are withheld from trunk contributions, as in workers.
        scored_tokens: per domain, of held-out documents; 0: no scores.
        computing: device, threads, key of shard names, progress.
        keep_statistics: whether the work folder stays.
    """

    recipe: VersionRecipe = RECOMMENDED
    trunk: TrunkOptions = field(default_factory=TrunkOptions)
    base: DenseExpert | None = None
    statistics: StatisticsSettings = field(default_factory=StatisticsSettings)
    held_out_share: float = HELD_OUT_SHARE
    rare_below: int = RARE_BELOW
    scored_tokens: int = SCORED_TOKENS
    computing: Computing = field(default_factory=Computing)
    keep_statistics: bool = False


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
    settings = settings or MergeSettings()
    job = _Job(sources, out, settings, say)
    with alone(work_folder(out)):
        return job.run()


@dataclass(frozen=True)
class _Job:
    sources: Sequence[Source]
    out: Path
    settings: MergeSettings
    say: Callable[[str], None]

    @property
    def _work(self) -> Path:
        return work_folder(self.out)

    def run(self) -> Report:
        self._check_out()
        self._check_options()
        self._check_experts()
        surveys = [self._surveyed(source) for source in self.sources]
        for each in surveys:
            self._check_text(each)
        self._check_disk()
        trunk = self._trunk(surveys)
        experts = [self._expert(source.expert, each, trunk) for source, each in self._pairs(surveys)]
        parts = [self._contribution(expert, each, trunk) for expert, each in zip(experts, surveys, strict=True)]
        lineage, inputs = local_version(experts, trunk, parts, self.settings.recipe.solve)
        if not self._is_written(lineage):
            self._write(lineage, inputs)
        report = self._report(surveys)
        self._score_card(report)
        if not self.settings.keep_statistics:
            for path in self._work.iterdir():
                if path.name != LOCK:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return report

    def _check_out(self) -> None:
        """Requires a new folder, or the version of an interrupted run, which has a work folder."""
        found, begun = _names(self.out), _names(self._work) != {LOCK}
        if self.out.is_file() or (found and not (begun and LINEAGE_FILE in found)):
            todo = "name a new folder, or remove this one"
            raise MoergeError("the folder is not empty", where=str(self.out), todo=todo)

    @property
    def _progress(self) -> Progress:
        return self.settings.computing.progress

    def _pairs(self, surveys: Sequence[Survey]) -> list[tuple[Source, Survey]]:
        return list(zip(self.sources, surveys, strict=True))

    def _check_options(self) -> None:
        recipe, domains = self.settings.recipe, [source.expert.domain for source in self.sources]
        if len(domains) < 2:
            raise MoergeError("a merge needs two experts or more", where="--expert", todo="name each: NAME=DIR")
        if recipe.solve.top_k > len(domains):
            found = f"{recipe.solve.top_k} experts per token, of {len(domains)}"
            raise MoergeError(found, where="--k", todo=f"give a number between 1 and {len(domains)}")
        if recipe.solve.lambda_scale == "auto":
            todo = "give a number with --lambda, in the scale absolute or relative"
            raise MoergeError("a merge on one machine has no tuning split", where="--lambda-scale auto", todo=todo)
        require_options(METHODS[recipe.method], self._trunk_options)
        if recipe.fit:
            for source in self.sources:
                require_fittable(source.expert.config, source.expert.folder)

    @property
    def _trunk_options(self) -> TrunkOptions:
        base = self.settings.base
        return self.settings.trunk if base is None else self.settings.trunk.model_copy(update={"base": base.digest})

    def _check_experts(self) -> None:
        """Requires complete and finite checkpoints of one architecture and tokenizer."""
        experts = [source.expert for source in self.sources]
        base = self.settings.base
        every = experts if base is None else [base, *experts]
        for number, each in enumerate(every):
            check_expert(each.folder, every[0].folder if number else None, f"expert of {each.domain!r}")
        total = sum(spec.bytes for each in every for spec in each.checkpoint.specs.values())
        with self._progress.track("checking the experts", total, "B") as tracker:
            for each in every:
                require_finite(each.checkpoint, tracker)

    def _surveyed(self, source: Source) -> Survey:
        texts = Texts(source.corpus, self.settings.statistics, self.settings.held_out_share)
        return survey(source.expert.domain, texts, self.settings.scored_tokens, self._progress)

    def _check_text(self, found: Survey) -> None:
        """Refuses too little text, and reports where more would make better routers."""
        hidden = int(self.sources[0].expert.config.hidden_size)
        read = f"{found.tokens:,} tokens for statistics in {found.documents:,} documents"
        if found.tokens < hidden:
            todo = f"give at least {hidden:,} tokens, the hidden size; {enough(hidden):,} are better"
            raise MoergeError(read, where=f"--text {found.domain}", todo=todo)
        if found.tokens < enough(hidden):
            self.say(f"{found.domain}: {read}; give {enough(hidden):,} or more for well-determined routers")
        if self.settings.scored_tokens and not found.scored:
            self.say(f"{found.domain}: no document is held out, so the domain is not scored; give more documents")

    def _check_disk(self) -> None:
        """The output has the trunk and all MLPs; the work folder a trunk and the sums, and with a fit dense experts."""
        hidden, total = 0, 0
        for source in self.sources:
            config, own = source.expert.config, source.expert.checkpoint
            size = sum(spec.bytes for spec in own.specs.values())
            hidden = int(config.hidden_size)
            total += size + 8 * hidden * (hidden + 1) * int(config.num_hidden_layers)
            total += size if self.settings.recipe.fit else 0
        total -= sum(path.stat().st_size for path in self._work.rglob("*") if path.is_file())  # of an interrupted run
        free = shutil.disk_usage(self._work).free
        if free < total and not _names(self.out):
            found = f"output and work need up to {decimal(total)} more; {decimal(free)} are free"
            raise MoergeError(found, where=str(self._work), todo="make room, or name --out on a larger disk")

    def _trunk(self, surveys: Sequence[Survey]) -> LocalTrunk:
        recipe, settings, parts = self.settings.recipe, self.settings, list[Path]()
        if METHODS[recipe.method].solved:
            for source, each in self._pairs(surveys):
                path = self._work / f"trunk-{source.expert.domain}.safetensors"
                statistics, computing = settings.statistics, settings.computing
                parts.append(
                    trunk_contribution(source.expert, each.texts, path, statistics, computing, settings.rare_below)
                )
        return local_trunk(
            [source.expert for source in self.sources],
            self._work / "trunk",
            recipe.method,
            parts,
            settings.trunk,
            base=settings.base,
            progress=self._progress,
        )

    def _expert(self, own: DenseExpert, found: Survey, trunk: LocalTrunk) -> DenseExpert:
        """The expert, or with a fit the fitted expert."""
        if not self.settings.recipe.fit:
            return own
        hidden = int(own.config.hidden_size)
        documents = found.texts.named("statistics")
        sample = fitting_sample(documents, self.settings.statistics, fitting_tokens(hidden), LEAST_DOCUMENTS)
        rows = [row for document in sample for row in document]
        name = digest_of({"expert": own.digest, "trunk": trunk.digest, "rows": shard_name(b"", rows)})
        folder = self._work / f"fitted-{own.domain}-{name[:16]}"
        if not folder.is_dir():
            asked, free = fitting_bytes(own, fitting_tokens(hidden)), free_bytes(self.settings.computing.device)
            if free is not None and asked > free:
                needs = f"fitting needs {decimal(asked)} of memory; {decimal(free)} are free"
                raise MoergeError(needs, where="--fit", todo="merge without --fit, or on a larger machine")
            part = self._work / f".{folder.name}.part"
            shutil.rmtree(part, ignore_errors=True)  # of a killed run
            total = sum(row.count for row in rows) * int(own.config.num_hidden_layers)
            with self._progress.track(f"fitting MLPs of {own.domain}", total, "tokens") as tracker:
                cut = list(batches(rows, self.settings.statistics.batch_tokens))
                fit(own.folder, trunk.path, cut, part, self.settings.computing.device, tracker.advance)
            os.replace(part, folder)
        return replace(own, folder=folder, trained=own)

    def _contribution(self, expert: DenseExpert, found: Survey, trunk: LocalTrunk) -> Path:
        path = self._work / f"router-{expert.domain}-{trunk.digest[:16]}.safetensors"
        return router_contribution(expert, trunk, found.texts, path, self.settings.statistics, self.settings.computing)

    def _is_written(self, lineage: Lineage) -> bool:
        """Whether the output is this version.

        Raises:
            MoergeError: it is another version.
        """
        path = self.out / LINEAGE_FILE
        if not path.is_file():
            return False
        found = path.read_bytes()
        if tuned(found) is not None or Lineage.model_validate_json(found) != lineage:
            raise MoergeError("contains another version", where=str(self.out), todo="name a new folder, or remove it")
        return True

    def _write(self, lineage: Lineage, inputs: VersionInputs) -> None:
        layers = int(self.sources[0].expert.config.num_hidden_layers)
        with self._progress.track("solving the routers", layers, "layers") as tracker:
            solution = solve_lineage(lineage, inputs, lambda layer: tracker.advance(1))
        plan = plan_version(lineage, inputs, lambda lineage, inputs: solution)
        total = sum(sum(file.tensors.values()) for file in plan.files)
        with self._progress.track(f"writing {self.out.name}", total, "B") as tracker:
            write_version(plan, self.out, lambda file: tracker.advance(sum(file.tensors.values())))

    def _report(self, surveys: Sequence[Survey]) -> Report:
        solved = SolveReport.model_validate_json((self.out / REPORT_FILE).read_text(encoding="utf-8"))
        domains = [source.expert.domain for source in self.sources]
        counts = [DomainCounts(each.documents, each.tokens) for each in surveys]
        results = self._scores(surveys)
        return Report.of(str(self.out), domains, counts, results, solved)

    def _score_card(self, report: Report) -> None:
        """Puts the scores into the model card."""
        path = self.out / CARD_FILE
        card = scored_card(path.read_text(encoding="utf-8"), report.card_scores)
        with atomic_file(path) as out:
            out.write(card.encode())

    def _scores(self, surveys: Sequence[Survey]) -> list[DomainScore | None]:
        """The scores of each domain's expert and of the version on held-out documents."""
        if not any(each.scored for each in surveys):
            return [None] * len(surveys)
        tensors = Checkpoint(self.out).specs.values()
        asked, free = 4 * sum(torch.Size(spec.shape).numel() for spec in tensors), free_bytes("cpu")
        if free is not None and asked > free:
            self.say(f"not scored: the version needs {decimal(asked)} of memory; {decimal(free)} are free")
            return [None] * len(surveys)
        device, experts, found = self.settings.computing.device, list[Score](), list[DomainScore | None]()
        total = 2 * sum(window.scored for each in surveys for window in each.scored)
        with self._progress.track("scoring experts and version", total, "tokens") as tracker:
            for source, each in self._pairs(surveys):
                model = load(source.expert.folder, device=device)
                experts.append(score(model, each.scored, tracker))
                del model
            version = load(self.out, device=device)
            for own, each in zip(experts, surveys, strict=True):
                if not each.scored:
                    found.append(None)
                    continue
                counter = RoutingCounter(version)
                with counter.counting():
                    scored = score(version, each.scored, tracker, counter.count)
                shares = (counter.counts.sum(dim=0) / counter.counts.sum()).tolist()
                points = normalised(own, scored)
                found.append(DomainScore(own.perplexity, scored.perplexity, points, scored.tokens, shares))
        return found


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
