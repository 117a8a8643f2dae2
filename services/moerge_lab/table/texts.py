"""The table's texts: documents of each domain as token ids, some of them held out."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle
from pathlib import Path
from typing import Literal

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from moerge.documents.files import data_files
from moerge.documents.reader import BadLines, as_text, documents
from moerge.documents.splits import HELD_OUT_SHARE, split_digest, split_of
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.models.adapters import tokenizer_folder
from moerge.models.config import require_same_tokenizer
from moerge.models.tokens import Tokens
from moerge.scoring.perplexity import Window, windows
from moerge_lab.recipes.base import NO_ROWS
from moerge_lab.table.measure import Texts
from moerge_lab.training.batches import joined

Split = Literal["heldout", "tuning"]
"""The scored text: held out for reports, or for the choice of settings."""
_NEXT = 2**32
"""Distance of the document numbers of two domains."""
TUNING_TOKENS = 2_000
"""Tuning tokens per domain: each tried setting of a recipe costs a pass over them."""


@dataclass(frozen=True)
class Sources:
    """A domain's expert folder and files, for `data_files`.

    The files are for statistics, held-out text, other text, the choice of settings, and training.
    """

    expert: Path
    text: Sequence[str] = ()
    held_out: Sequence[str] = ()
    other: Sequence[str] = ()
    tuning: Sequence[str] = ()
    training: Sequence[str] = ()


@dataclass(frozen=True)
class Cut:
    """Windows of `context` tokens that advance by `stride`, about `tokens` scored tokens per domain."""

    context: int = 256
    stride: int = 128
    tokens: int = 20_000


def read_texts(name: str, sources: Sources, cut: Cut, split: Split = "heldout", *, training: bool = False) -> Texts:
    """A domain's documents, tokenized by its expert's tokenizer.

    Without held-out files, a tenth of the documents is held out; without tuning files, a tenth of the others is for
    tuning. With the split `tuning` that part is scored, and another tenth is for tuning. A document is in one part.
    With `training` the files for training are read; without such files, the text for statistics serves.

    Raises:
        MoergeError: a file can't be read, or a part is empty.
    """
    own, other = _texts("--text", sources.text), _texts("--other", sources.other)
    held = _texts("--held-out", sources.held_out) or [text for text in own if is_held_out(text)]
    apart = set(held)
    own = [text for text in own if text not in apart]
    tuning = _texts("--tuning", sources.tuning) or tuning_part(own)
    apart.update(tuning)
    if split == "tuning":
        held, tuning = tuning, tuning_part([text for text in own if text not in apart])
        apart.update(tuning)
    tokenizer = _tokenizer(sources.expert)
    scored = _windows(tokenizer, held, cut)
    if not scored:
        what = "held out" if split == "heldout" else "for tuning"
        todo = "give more text, or name files with --held-out"
        raise MoergeError(f"no document of two tokens is {what}", where=name, todo=todo)
    statistics, further = ([text for text in texts if text not in apart] for texts in (own, other))
    for option, given, left in (("--text", sources.text, statistics), ("--other", sources.other, further)):
        if given and not left:
            raise MoergeError("all text is held out", where=f"{option} {name}", todo="give more, or other, text")
    own_pieces, other_pieces = (_pieces(tokenizer, texts, cut.context) for texts in (statistics, further))
    settings = _windows(tokenizer, tuning, replace(cut, tokens=TUNING_TOKENS))
    rows = NO_ROWS
    if training:
        pooled = [text for text in _texts("--text", sources.training) if text not in apart] or statistics
        rows = joined(tokenizer(pooled)["input_ids"], tokenizer.eos_token_id, cut.context)
    return Texts(sources.expert, scored, own_pieces, other_pieces, settings, rows)


def require_one_tokenizer(sources: Mapping[str, Sources]) -> None:
    """Requires that all experts have one tokenizer, or that one only appends tokens to another's.

    Raises:
        IncompatibleExpertError: names the first expert with another one.
    """
    folders = {each.expert: name for name, each in sources.items()}
    first = next(iter(folders), None)
    for folder, name in folders.items():
        if first is None or folder == first:
            continue
        try:
            require_same_tokenizer(first, folder, name, "pad")
        except IncompatibleExpertError as error:
            what = f"{error.what}, so their perplexities per token can't be compared"
            raise IncompatibleExpertError(what, where=error.where, todo="name experts with one tokenizer") from error


def read_elsewhere(expert: Path, files: Sequence[str], cut: Cut, split: Split = "heldout") -> list[Window]:
    """Windows of text of no domain, tokenized by an expert's tokenizer; a tenth of its documents is for tuning."""
    every = _texts("--elsewhere", files)
    tuning = tuning_part(every)
    return _windows(_tokenizer(expert), tuning if split == "tuning" else [t for t in every if t not in tuning], cut)


def read_targets(sources: Mapping[str, Sources], cut: Cut, split: Split) -> tuple[dict[str, Texts], list[Window]]:
    """The domains' other texts to specialise on, with the domains' training text; and windows of their held-out text.

    A tenth of the other documents is the sample that recipes specialise by, in place of statistics. Of the others, a
    tenth is for tuning.

    Raises:
        MoergeError: a file can't be read, or a part is empty.
    """
    targets, generic = dict[str, Texts](), list[Window]()
    for name, each in sources.items():
        own, other = read_texts(name, replace(each, other=()), cut, split, training=True), _texts("--other", each.other)
        generic += [replace(window, document=window.document + _NEXT * len(targets)) for window in own.held_out]
        sample = [text for text in other if is_held_out(text)]
        scored = [text for text in other if not is_held_out(text)]
        tuning = tuning_part(scored)
        apart, tokenizer = set(tuning), _tokenizer(each.expert)
        scored = tuning if split == "tuning" else [text for text in scored if text not in apart]
        held_out, pieces = _windows(tokenizer, scored, cut), _pieces(tokenizer, sample, cut.context)
        if not held_out or not pieces:
            raise MoergeError("has too few documents", where=f"--other {name}", todo="give more text")
        targets[name] = replace(own, held_out=held_out, statistics=pieces, tuning=())
    return targets, spread(generic, cut.tokens)


def is_held_out(text: str) -> bool:
    """Tell whether a document is in the held-out tenth: a function of its text alone."""
    return split_of(split_digest(text), 0, HELD_OUT_SHARE) == "held-out"


def tuning_part(texts: Sequence[str]) -> list[str]:
    """The tenth of the documents with the highest digests; of two or more at least one."""
    ordered = sorted(set(texts), key=split_digest)
    return ordered[len(ordered) - max(len(ordered) // 10, len(ordered) > 1) :]


def _texts(option: str, sources: Sequence[str]) -> list[str]:
    if not sources:
        return []
    return list(filter(None, documents(data_files(*sources, option=option), "text", as_text, BadLines())))


def _tokenizer(expert: Path) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tokenizer_folder(expert), local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def _windows(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], cut: Cut) -> list[Window]:
    rows = [Tokens(tokenizer(text)["input_ids"]) for text in texts]
    return spread(windows(rows, cut.context, cut.stride), cut.tokens)


def spread(cut: Sequence[Window], tokens: int) -> list[Window]:
    """Windows with about `tokens` scored tokens, drawn with equal probability."""
    taken, chosen = 0, set[int]()
    for number in random.Random(0).sample(range(len(cut)), len(cut)):  # noqa: S311  # no secret
        if taken >= tokens:
            break
        chosen.add(number)
        taken += cut[number].scored
    return [window for number, window in enumerate(cut) if number in chosen]


def switched(domains: Mapping[str, Texts], cut: Cut) -> dict[str, Texts]:
    """Windows that begin with half a context of the other domains' text, in turn; their second half is scored.

    Raises:
        MoergeError: there is no other domain, or all documents of a domain are too short.
    """
    if len(domains) < 2:
        raise MoergeError("expected two domains or more, found one", where="--switch", todo="name several")
    half = cut.context // 2
    held_out = _behind_others({name: each.held_out for name, each in domains.items()}, half, cut.tokens)
    tuning = _behind_others({name: each.tuning for name, each in domains.items()}, half, TUNING_TOKENS)
    for name in domains:
        if not held_out[name]:
            todo = "give more text, or a smaller --context"
            raise MoergeError(f"no scored document has {half} tokens", where=f"--switch {name}", todo=todo)
    return {name: replace(each, held_out=held_out[name], tuning=tuning[name]) for name, each in domains.items()}


def _behind_others(cut: Mapping[str, Sequence[Window]], half: int, tokens: int) -> dict[str, list[Window]]:
    """The first `half` tokens of windows, each after as many of another domain; none if a domain has none."""
    halves = {
        name: [replace(window, tokens=window.tokens[:half], new=half) for window in each if len(window.tokens) >= half]
        for name, each in cut.items()
    }
    found = {}
    for name, every in halves.items():
        others = chain.from_iterable(zip(*(cycle(halves[other]) for other in cut if other != name), strict=True))
        pairs = zip(spread(every, tokens), others, strict=False)
        found[name] = [replace(own, tokens=Tokens([*other.tokens.ids, *own.tokens.ids])) for own, other in pairs]
    return found


def _pieces(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], context: int) -> list[list[int]]:
    """Documents of token ids; a document longer than the context is cut."""
    rows = tokenizer(list(texts))["input_ids"] if texts else []
    return [ids[start : start + context] for ids in rows for start in range(0, len(ids), context)]
