"""The texts of a domain in a merge on one machine: documents for its statistics, and scored windows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moerge.documents.corpus import Corpus
from moerge.documents.shards import cut, enough
from moerge.documents.splits import SplitRule
from moerge.documents.text import Text
from moerge.errors import MoergeError
from moerge.merging.prompts import Prompts, written
from moerge.merging.settings import MergeSettings, Source
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
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
    apart = source.held_out is not None
    corpus, rule = source.corpus, SplitRule(0 if apart else settings.held_out_share)
    if isinstance(corpus, Prompts):
        if work is None:
            raise TypeError("prompts need a work folder")
        device, context, progress = settings.computing.device, settings.statistics.context, settings.computing.progress
        corpus, rule = written(source.expert, corpus, context, work, device, progress), SplitRule(0)
    read = read_corpus(source.expert.domain, corpus, settings, work, rule)
    field = "`prompt_tokens`" if source.generated else "`text`"
    _require_enough(read, source.expert, f"{field} {read.domain}", say)
    if source.held_out is not None:
        read = _with_held_out(read, source.held_out, settings, work)
    if settings.scored_tokens and not read.scored and not source.generated:
        say(f"{read.domain}: no document is held out, so the domain is not scored; give more documents")
    return read


def _with_held_out(read: DomainText, corpus: Corpus, settings: MergeSettings, work: Path | None) -> DomainText:
    """The text with windows of other documents to score, none of which it may have."""
    title = f"reading held-out texts of {read.domain}"
    apart = corpus.under(SplitRule(0)).read(title, settings.computing.progress, folder=work)
    known = {entry.digest for entry in read.text.documents()}
    shared, where = sum(entry.digest in known for entry in apart.documents()), f"`held_out` {read.domain}"
    if shared:
        todo = "leave them out of one of the two"
        raise MoergeError(f"{shared:,} of its documents are in the domain's text, too", where=where, todo=todo)
    if not (scored := _windows(apart, settings)) and settings.scored_tokens:
        raise MoergeError("no document has two tokens", where=where, todo="give more text")
    return replace(read, scored=scored)


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
    statistics = settings.statistics
    title, progress = f"reading texts of {domain}", settings.computing.progress
    split = corpus.under(rule or SplitRule(settings.held_out_share))
    text = split.read(title, progress, context=statistics.context, folder=work)
    documents = tokens = 0
    for document in text:
        count = sum(row.count for row in cut(document, statistics))
        documents, tokens = documents + (count > 0), tokens + count
    return DomainText(domain, text, documents, tokens, _windows(text.held_out, settings))


def _windows(documents: Iterable[Tokens], settings: MergeSettings) -> list[Window]:
    """The scored windows of documents, which can be read twice; none without scored tokens."""
    context, most = settings.statistics.context, settings.scored_tokens
    return Cut(context, max(1, context // 2), most).drawn(documents) if most else []
