"""The work of a merge on one output folder: the steps that merging and adding share."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.filesize import decimal

from moerge.documents.corpus import Corpus
from moerge.documents.fitting_sample import fitting_sample
from moerge.documents.shards import enough, shard_name
from moerge.documents.splits import HELD_OUT_SHARE
from moerge.errors import MoergeError
from moerge.experts.fitted_files import fitted_bytes
from moerge.experts.fitting import fit
from moerge.experts.sample import fitting_sample_that_fits
from moerge.files import LOCK, atomic_file, work_folder
from moerge.memory.machine import free_for
from moerge.merging.kept import KeptExpert, Record
from moerge.merging.local import LocalTrunk
from moerge.merging.prompts import Prompts, written
from moerge.merging.report import SCORED_TOKENS, Report
from moerge.merging.texts import Survey, Texts, survey
from moerge.models.config import read_config
from moerge.models.expert_folder import DenseExpert, check_expert, require_finite
from moerge.models.tokens import Tokens
from moerge.progress import Progress
from moerge.statistics.contribution import Computing, router_contribution
from moerge.versions.card_scores import CARD_FILE, scored_card
from moerge.versions.folder import write_version
from moerge.versions.plan import VersionInputs, plan_version, solve_lineage
from moerge_proto.digests import digest_of
from moerge_proto.options import RARE_BELOW, RECOMMENDED, VersionRecipe
from moerge_proto.records import RECORD_FILE, read_record
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.trunks import TrunkOptions
from moerge_proto.versions import Lineage

LEAST_DOCUMENTS = 100
"""Least number of documents of a fit, if there are so many."""


@dataclass(frozen=True)
class Source:
    """A domain's expert and its documents, or prompts by which the expert writes them."""

    expert: DenseExpert
    corpus: Corpus | Prompts

    @property
    def generated(self) -> bool:
        return isinstance(self.corpus, Prompts)


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


@dataclass(frozen=True)
class Job:
    """A merge's output folder, settings, and receiver of messages."""

    out: Path
    settings: MergeSettings
    say: Callable[[str], None]

    @property
    def work(self) -> Path:
        return work_folder(self.out)

    @property
    def progress(self) -> Progress:
        return self.settings.computing.progress

    def check_out(self) -> None:
        """Requires a new folder, or the version of an interrupted run, which has a work folder."""
        found, begun = _names(self.out), _names(self.work) - {LOCK}
        if self.out.is_file() or (found and not (begun and RECORD_FILE in found)):
            todo = "name a new folder, or remove this one"
            raise MoergeError("the folder is not empty", where=str(self.out), todo=todo)

    def check_experts(self, experts: Sequence[DenseExpert], reference: Path | None = None) -> None:
        """Requires complete and finite checkpoints of one architecture and tokenizer, by default the first one's."""
        for number, each in enumerate(experts):
            first = reference or (experts[0].folder if number else None)
            check_expert(each.folder, first, f"expert of {each.domain!r}")
        total = sum(spec.bytes for each in experts for spec in each.checkpoint.specs.values())
        with self.progress.track("checking the experts", total, "B") as tracker:
            for each in experts:
                try:
                    require_finite(each.checkpoint, tracker)
                except MoergeError as error:
                    raise MoergeError(error.what, where=f"{each.folder}: {error.where}", todo=error.todo) from error

    def check_disk(self, sources: Sequence[Source]) -> int:
        """Requires, and returns, the missing bytes of output and work.

        The output has the trunk and all MLPs; the work folder a trunk and the sums, and fitted experts.
        """
        hidden, total = 0, 0
        for source in sources:
            config, own = source.expert.config, source.expert.checkpoint
            size = sum(spec.bytes for spec in own.specs.values())
            hidden = int(config.hidden_size)
            total += size + 8 * hidden * (hidden + 1) * int(config.num_hidden_layers)
            total += fitted_bytes(source.expert) if self.settings.recipe.fit else 0
        total -= sum(path.stat().st_size for path in self.work.rglob("*") if path.is_file())  # of an interrupted run
        free = shutil.disk_usage(next(each for each in self.work.absolute().parents if each.is_dir())).free
        if free < total and not _names(self.out):
            found = f"output and work need up to {decimal(total)} more; {decimal(free)} are free"
            raise MoergeError(found, where=str(self.work), todo="make room, or name --out on a larger disk")
        return max(0, total)

    def surveyed(self, source: Source) -> Survey:
        """A domain's texts, which the expert writes first if there are only prompts.

        Raises:
            MoergeError: there is too little text.
        """
        settings, own = self.settings, source.expert
        if isinstance(source.corpus, Prompts):
            device, context = settings.computing.device, settings.statistics.context
            corpus = written(own, source.corpus, context, self.work, device, self.progress)
            texts = Texts(corpus, settings.statistics, 0)
            found = survey(own.domain, texts, 0, self.progress)
        else:
            texts = Texts(source.corpus, settings.statistics, settings.held_out_share)
            found = survey(own.domain, texts, settings.scored_tokens, self.progress)
        self._check_text(found, source)
        return found

    def _check_text(self, found: Survey, source: Source) -> None:
        """Refuses too little text, and reports where more would make better routers."""
        hidden, option = int(source.expert.config.hidden_size), "--prompt-tokens" if source.generated else "--text"
        read = f"{found.tokens:,} tokens for statistics in {found.documents:,} documents"
        if found.tokens < hidden:
            todo = f"give at least {hidden:,} tokens, the hidden size; {enough(hidden):,} are better"
            raise MoergeError(read, where=f"{option} {found.domain}", todo=todo)
        if found.tokens < enough(hidden):
            self.say(f"{found.domain}: {read}; give {enough(hidden):,} or more for well-determined routers")
        if self.settings.scored_tokens and not found.scored and not source.generated:
            self.say(f"{found.domain}: no document is held out, so the domain is not scored; give more documents")

    def expert(self, own: DenseExpert, found: Survey, trunk: LocalTrunk) -> DenseExpert:
        """The expert, or with a fit the fitted expert."""
        if not self.settings.recipe.fit:
            return own
        statistics, computing = self.settings.statistics, self.settings.computing

        def sample(tokens: int) -> list[list[Tokens]]:
            return fitting_sample(found.texts.named("statistics"), statistics, tokens, LEAST_DOCUMENTS)

        device = computing.device
        chosen, cut = fitting_sample_that_fits(own, statistics, sample, device, free_for(device), self.say)
        rows = [row for document in chosen for row in document]
        name = digest_of({"expert": own.digest, "trunk": trunk.digest, "rows": shard_name(b"", rows)})
        folder = self.work / f"fitted-{own.domain}-{name[:16]}"
        if not folder.is_dir():
            part = self.work / f".{folder.name}.part"
            total = sum(row.count for row in rows) * int(own.config.num_hidden_layers)
            with self.progress.track(f"fitting MLPs of {own.domain}", total, "tokens") as tracker:
                fit(own.folder, trunk.path, cut, part, computing.device, tracker.advance)
            os.replace(part, folder)
        return replace(own, folder=folder, trained=own)

    def contribution(self, expert: DenseExpert, found: Survey, trunk: LocalTrunk) -> Path:
        """The file of the expert's router contribution."""
        path = self.work / f"router-{expert.domain}-{trunk.digest[:16]}.safetensors"
        return router_contribution(expert, trunk, found.texts, path, self.settings.statistics, self.settings.computing)

    def publish(self, lineage: Lineage, inputs: VersionInputs, earlier: Mapping[str, Path]) -> None:
        """Writes the version unless the output has it; for `earlier` see `write_version`.

        Raises:
            MoergeError: the output is another version.
        """
        if self._is_written(lineage):
            return
        layers = int(read_config(inputs.config).num_hidden_layers)
        with self.progress.track("solving the routers", layers, "layers") as tracker:
            solution = solve_lineage(lineage, inputs, lambda layer: tracker.advance(1))
        plan = plan_version(lineage, inputs, lambda lineage, inputs: solution)
        total = sum(sum(file.tensors.values()) for file in plan.files)
        with self.progress.track(f"writing {self.out.name}", total, "B") as tracker:
            write_version(plan, self.out, lambda file: tracker.advance(sum(file.tensors.values())), earlier)

    def _is_written(self, lineage: Lineage) -> bool:
        if not (self.out / RECORD_FILE).is_file():
            return False
        if read_record(self.out) != lineage:
            raise MoergeError("contains another version", where=str(self.out), todo="name a new folder, or remove it")
        return True

    def score_card(self, report: Report) -> None:
        """Puts the scores into the model card."""
        path = self.out / CARD_FILE
        card = scored_card(path.read_text(encoding="utf-8"), report.card_scores)
        with atomic_file(path) as out:
            out.write(card.encode())

    def record(self, experts: Sequence[KeptExpert], merged: Sequence[KeptExpert]) -> Record:
        """The record of this merge, for later additions."""
        settings = self.settings
        return Record(
            recipe=settings.recipe,
            statistics=settings.statistics,
            held_out_share=settings.held_out_share,
            rare_below=settings.rare_below,
            experts=list(experts),
            merged=list(merged),
        )

    def clear(self) -> None:
        """Empties the work folder."""
        for path in self.work.iterdir():
            if path.name != LOCK:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
