"""The texts of a domain in a merge on one machine: documents for its statistics, and scored windows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moerge.documents.corpus import Corpus
from moerge.documents.shards import cut, enough
from moerge.documents.splits import SplitRule
from moerge.documents.text import Text
from moerge.errors import MoergeError
from moerge.merging.anchor import PoolText
from moerge.merging.assemble import StatisticsText
from moerge.merging.prompts import Prompts, written
from moerge.merging.settings import MergeSettings, Source
from moerge.models.expert_folder import DenseExpert
from moerge.scoring.draw import Cut
from moerge.scoring.perplexity import Window


@dataclass(frozen=True)
class DomainText:
    """A domain's text; `documents` and `tokens` count those of the statistics, `scored` has held-out windows."""

    domain: str
    text: Text
    documents: int
    tokens: int
    scored: Sequence[Window]


def read_text(
    source: Source, settings: MergeSettings, say: Callable[[str], None], work: Path | None = None
) -> DomainText:
    """A domain's text, which its expert first writes into `work` if there are only prompts; refuses too little text."""
    corpus, rule = source.corpus, SplitRule(settings.held_out_share)
    if isinstance(corpus, Prompts):
        if work is None:
            raise TypeError("prompts need a work folder")
        device, context, progress = settings.computing.device, settings.statistics.context, settings.computing.progress
        corpus, rule = written(source.expert, corpus, context, work, device, progress), SplitRule(0)
    read = read_corpus(source.expert.domain, corpus, settings, work, rule)
    field = "`prompt_tokens`" if source.generated else "`text`"
    _require_enough(read, source.expert, f"{field} {read.domain}", say)
    if settings.scored_tokens and not read.scored and not source.generated:
        say(f"{read.domain}: no document is held out, so the domain is not scored; give more documents")
    return read


def read_anchor_text(
    anchor: DenseExpert, settings: MergeSettings, say: Callable[[str], None], work: Path | None = None
) -> tuple[StatisticsText, int]:
    """The anchor's text, the settings' or the pool, and its number of tokens that count; refuses too little."""
    if settings.anchor_text is None:
        pool = PoolText.of(anchor)
        return pool, sum(map(len, pool))
    unscored = replace(settings, scored_tokens=0)
    read = read_corpus(anchor.domain, settings.anchor_text, unscored, work, SplitRule(0))
    _require_enough(read, anchor, "`anchor_text`", say)
    return read.text, read.tokens


def _require_enough(read: DomainText, expert: DenseExpert, where: str, say: Callable[[str], None]) -> None:
    hidden = int(expert.config.hidden_size)
    amount = f"{read.tokens:,} tokens for statistics in {read.documents:,} documents"
    if read.tokens < hidden:
        todo = f"give at least {hidden:,} tokens, the hidden size; {enough(hidden):,} are better"
        raise MoergeError(amount, where=where, todo=todo)
    if read.tokens < enough(hidden):
        say(f"{read.domain}: {amount}; give {enough(hidden):,} or more for well-determined routers")


def read_corpus(
    domain: str, corpus: Corpus, settings: MergeSettings, work: Path | None = None, rule: SplitRule | None = None
) -> DomainText:
    """A corpus as a domain's text, read and tokenised once; a few documents are cut into pieces first."""
    statistics, most = settings.statistics, settings.scored_tokens
    title, progress = f"reading texts of {domain}", settings.computing.progress
    split = corpus.under(rule or SplitRule(settings.held_out_share))
    text = split.read(title, progress, context=statistics.context, folder=work)
    documents = tokens = 0
    for document in text:
        count = sum(row.count for row in cut(document, statistics))
        documents, tokens = documents + (count > 0), tokens + count
    scored = Cut(statistics.context, max(1, statistics.context // 2), most).drawn(text.held_out) if most else []
    return DomainText(domain, text, documents, tokens, scored)
