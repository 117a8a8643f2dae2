"""The table's texts: documents of each domain as token ids, some of them held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from moerge.documents.files import data_files
from moerge.documents.reader import BadLines, as_text, documents
from moerge.documents.splits import HELD_OUT_SHARE, split_digest, split_of
from moerge.errors import MoergeError
from moerge.models.tokens import Tokens
from moerge.scoring.perplexity import Window, windows
from moerge.table.measure import Texts


@dataclass(frozen=True)
class Sources:
    """A domain's expert folder and files, as `data_files` finds them.

    They are for statistics, held out, other ones, and for choices between settings.
    """

    expert: Path
    text: Sequence[str] = ()
    held_out: Sequence[str] = ()
    other: Sequence[str] = ()
    tuning: Sequence[str] = ()


@dataclass(frozen=True)
class Cut:
    """Windows of `context` tokens that advance by `stride`; of each domain as many as score about `tokens` in all."""

    context: int = 256
    stride: int = 128
    tokens: int = 20_000


def read_texts(name: str, sources: Sources, cut: Cut) -> Texts:
    """A domain's documents, tokenized as its expert does it.

    Where no file is held out, a tenth of the documents is. What is held out is never used for statistics.

    Raises:
        MoergeError: a file can't be read, or nothing is held out.
    """
    own, other = _texts("--text", sources.text), _texts("--other", sources.other)
    held = _texts("--held-out", sources.held_out) or [text for text in own if is_held_out(text)]
    tokenizer = AutoTokenizer.from_pretrained(sources.expert, local_files_only=True, trust_remote_code=False)
    rows = [Tokens(tokenizer(text)["input_ids"]) for text in held]
    scored = spread(windows(rows, cut.context, cut.stride), cut.tokens)
    if not scored:
        todo = "give more text, or name files with --held-out"
        raise MoergeError("no document of two tokens is held out", where=name, todo=todo)
    apart = set(held)
    statistics, further = ([text for text in texts if text not in apart] for texts in (own, other))
    for option, given, left in (("--text", sources.text, statistics), ("--other", sources.other, further)):
        if given and not left:
            raise MoergeError("all of it is held out", where=f"{option} {name}", todo="give more, or other, text")
    tuning = _texts("--tuning", sources.tuning)
    return Texts(
        sources.expert, scored, *(_pieces(tokenizer, each, cut.context) for each in (statistics, further, tuning))
    )


def is_held_out(text: str) -> bool:
    """Whether a document is of the tenth that is held out: a function of its text alone."""
    return split_of(split_digest(text), 0, HELD_OUT_SHARE) == "held-out"


def _texts(option: str, sources: Sequence[str]) -> list[str]:
    if not sources:
        return []
    return list(filter(None, documents(data_files(*sources, option=option), "text", as_text, BadLines())))


def spread(cut: Sequence[Window], tokens: int) -> list[Window]:
    """Windows that score about `tokens` tokens, spread evenly over all of them."""
    every, seen, taken, chosen = sum(window.scored for window in cut), 0, 0, list[Window]()
    for window in cut:
        seen += window.scored
        if every <= tokens or taken + window.scored / 2 <= seen * tokens / every:
            chosen.append(window)
            taken += window.scored
    return chosen or list(cut[:1])


def _pieces(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], context: int) -> list[list[int]]:
    """Documents of token ids; what is longer than the context is several."""
    rows = tokenizer(list(texts))["input_ids"] if texts else []
    return [ids[start : start + context] for ids in rows for start in range(0, len(ids), context)]
