"""The table's texts: documents of each domain as token ids, some of them held out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, cycle
from pathlib import Path
from typing import Literal

from moerge.documents.corpus import Corpus
from moerge.documents.text import Entry
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.tokenizers import require_same_tokenizer
from moerge.models.tokens import Tokens
from moerge.scoring.draw import Cut, spread
from moerge.scoring.perplexity import Window
from moerge_lab.recipes.base import NO_ROWS
from moerge_lab.table.measure import Texts
from moerge_lab.table.switches import edges_of
from moerge_lab.training.batches import joined
from moerge_lab.training.inputs import end_of_text

Split = Literal["heldout", "tuning"]
"""The scored text: held out for reports, or for the choice of settings."""
_NEXT = 2**32
"""Distance of the document numbers of two domains."""
TUNING_TOKENS = 2_000
"""Tuning tokens per domain: each tried setting of a recipe costs a pass over them."""


@dataclass(frozen=True)
class Sources:
    """A domain's expert folder and files, for `data_files`. `tuning` is for the choice of settings."""

    expert: Path
    text: Sequence[str] = ()
    held_out: Sequence[str] = ()
    other: Sequence[str] = ()
    tuning: Sequence[str] = ()
    training: Sequence[str] = ()


def read_texts(name: str, sources: Sources, cut: Cut, split: Split = "heldout", *, training: bool = False) -> Texts:
    """A domain's documents, tokenized by its expert's tokenizer.

    Without held-out files, a tenth of the documents is held out; without tuning files, a tenth of the others is for
    tuning. With the split `tuning` that part is scored, and another tenth is for tuning. A document is in one part.
    With `training` the files for training are read; without such files, the text for statistics serves.
    """
    expert = DenseFiles(sources.expert)
    compared = any((sources.held_out, sources.other, sources.tuning, sources.training))  # with the text, as a whole
    read = partial(_read, expert, context=None if compared else cut.context)
    own, other = read("`text`", sources.text), read("`other`", sources.other)
    held = read("`held_out`", sources.held_out) or [entry for entry in own if entry.split == "held-out"]
    own = _without(own, held)
    tuning = read("`tuning`", sources.tuning) or tuning_part(own)
    apart = [*held, *tuning]
    if split == "tuning":
        held, tuning = tuning, tuning_part(_without(own, apart))
        apart += tuning
    scored = cut.drawn(_tokens(held))
    if not scored:
        what = "held out" if split == "heldout" else "for tuning"
        todo = "give more text, or name files with `held_out`"
        raise MoergeError(f"no document of two tokens is {what}", where=name, todo=todo)
    statistics, further = _without(own, apart), _without(other, apart)
    for field, given, left in (("`text`", sources.text, statistics), ("`other`", sources.other, further)):
        if given and not left:
            raise MoergeError("all text is held out", where=f"{field} {name}", todo="give more, or other, text")
    settings = replace(cut, tokens=TUNING_TOKENS).drawn(_tokens(tuning))
    rows = NO_ROWS
    if training:
        pooled = _without(read("`text`", sources.training), apart) or statistics
        rows = joined([tokens.ids for tokens in _tokens(pooled)], end_of_text(expert), cut.context)
    own_pieces, other_pieces = _pieces(statistics, cut.context), _pieces(further, cut.context)
    return Texts(sources.expert, scored, own_pieces, other_pieces, settings, rows)


def require_one_tokenizer(sources: Mapping[str, Sources]) -> None:
    """Requires that all experts have one tokenizer, or that one only appends tokens to another's."""
    first, *others = {source.expert: name for name, source in sources.items()}.items()
    for folder, name in others:
        try:
            require_same_tokenizer(DenseFiles(first[0]), DenseFiles(folder), name, "pad")
        except IncompatibleExpertError as error:
            what = f"{error.what}, so their perplexities per token can't be compared"
            raise IncompatibleExpertError(what, where=error.where, todo="name experts with one tokenizer") from error


def read_elsewhere(expert: Path, files: Sequence[str], cut: Cut, split: Split = "heldout") -> list[Window]:
    """Windows of text of no domain, tokenized by an expert's tokenizer; a tenth of its documents is for tuning."""
    every = _read(DenseFiles(expert), "`elsewhere`", files)
    tuning = tuning_part(every)
    return cut.drawn(_tokens(tuning if split == "tuning" else _without(every, tuning)))


def read_targets(sources: Mapping[str, Sources], cut: Cut, split: Split) -> tuple[dict[str, Texts], list[Window]]:
    """The domains' other texts to specialise on, with the domains' training text; and windows of their held-out text.

    A tenth of the other documents is the sample that recipes specialise by, in place of statistics. Of the others, a
    tenth is for tuning.
    """
    targets, generic = dict[str, Texts](), list[Window]()
    for name, source in sources.items():
        own = read_texts(name, replace(source, other=()), cut, split, training=True)
        generic += [replace(window, document=window.document + _NEXT * len(targets)) for window in own.held_out]
        other = _read(DenseFiles(source.expert), "`other`", source.other)
        sample = [entry for entry in other if entry.split == "held-out"]
        scored = _without(other, sample)
        tuning = tuning_part(scored)
        scored = tuning if split == "tuning" else _without(scored, tuning)
        held_out, pieces = cut.drawn(_tokens(scored)), _pieces(sample, cut.context)
        if not held_out or not pieces:
            raise MoergeError("has too few documents", where=f"`other` {name}", todo="give more text")
        targets[name] = replace(own, held_out=held_out, statistics=pieces, tuning=())
    return targets, spread(generic, cut.tokens)


def tuning_part(documents: Sequence[Entry]) -> list[Entry]:
    """The tenth of the documents with the highest digests; of two or more at least one."""
    ordered = sorted({entry.digest: entry for entry in documents}.values(), key=lambda entry: entry.place)
    return ordered[len(ordered) - max(len(ordered) // 10, len(ordered) > 1) :]


def _read(expert: DenseFiles, where: str, files: Sequence[str], context: int | None = None) -> list[Entry]:
    """The files' good documents for an expert's tokenizer; a few documents in pieces of `context` tokens."""
    if not files:
        return []
    return list(Corpus(files, expert, bad_share=0, where=where).read(context=context).documents())


def _tokens(documents: Sequence[Entry]) -> list[Tokens]:
    return [entry.tokens() for entry in documents]


def _without(documents: Sequence[Entry], others: Sequence[Entry]) -> list[Entry]:
    digests = {entry.digest for entry in others}
    return [entry for entry in documents if entry.digest not in digests]


def switched(domains: Mapping[str, Texts], cut: Cut) -> dict[str, Texts]:
    """Windows that begin with half a context of the other domains' text, in turn; their second half is scored."""
    if len(domains) < 2:
        raise MoergeError("expected two domains or more, found one", where="`switch`", todo="name several")
    half = cut.context // 2
    held_out = _behind_others({name: domain.held_out for name, domain in domains.items()}, half, cut.tokens)
    tuning = _behind_others({name: domain.tuning for name, domain in domains.items()}, half, TUNING_TOKENS)
    for name in domains:
        if not held_out[name]:
            todo = "give more text, or a smaller `context`"
            raise MoergeError(f"no scored document has {half} tokens", where=f"`switch` {name}", todo=todo)
    return {
        name: replace(domain, held_out=held_out[name], tuning=tuning[name], edges=edges_of(half))
        for name, domain in domains.items()
    }


def _behind_others(cut: Mapping[str, Sequence[Window]], half: int, tokens: int) -> dict[str, list[Window]]:
    """The first `half` tokens of windows, each after as many of another domain; none if a domain has none."""
    halves = {
        name: [replace(window, tokens=window.tokens[:half], new=half) for window in item if len(window.tokens) >= half]
        for name, item in cut.items()
    }
    result = {}
    for name, every in halves.items():
        others = chain.from_iterable(zip(*(cycle(halves[other]) for other in cut if other != name), strict=True))
        pairs = zip(spread(every, tokens), others, strict=False)
        result[name] = [replace(own, tokens=Tokens([*other.tokens.ids, *own.tokens.ids])) for own, other in pairs]
    return result


def _pieces(documents: Sequence[Entry], context: int) -> list[list[int]]:
    """Documents of token ids; a document longer than the context is cut."""
    return [list(piece.ids) for tokens in _tokens(documents) for piece in tokens.pieces(context)]
