"""Two tokenizers, compared by the ids of many texts, in a child process with limits: patterns can take for ever."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from moerge.errors import CheckpointError
from moerge.models.tokenizer import open_tokenizer

_SECONDS, _MEMORY = 120, 2**31  # of one comparison: processor time, bytes
_SEPARATORS = "", " ", "\n"
_STRIDE = 7919  # a prime, which gives each token another partner
_MOST_PAIRS, _MOST_MARKS, _AT_ONCE = 2**14, 2**10, 2**12
_SHOWN = 12  # ids
_RUNS = " ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200b", "0", "7", "-", "=", "a"
_SAMPLES = (
    "It's what we'LL say, isn't it? I'd say so; they've gone.",
    "Price: $1,234.56 (12%) on 2024-02-29 at 07:05, 3.5e-8 of 1000000",
    "def f(x):\n    return [y ** 2 for y in x if y != 0]  # note\n\n\n\tfor(;;){i+=1;}\r\n",
    "https://example.org/a_b?c=d&e=%20#f <tag attr='v'>&amp;</tag> {\"k\": null} \\frac{1}{2}",
    "naïve façade Ångström Straße İstanbul łódź ﬁn ① \uff21\uff22 ½",
    "nai\u0308ve fac\u0327ade A\u030angstro\u0308m \u1e9b\u0323 \u1112\u1161\u11ab",
    "Αθήνα Москва שלום مرحبا नमस्ते สวัสดี",
    "你好\uff0c世界。 こんにちは カタカナ 안녕하세요",
    "😀 👨\u200d👩\u200d👧 🇫🇷 ❤\ufe0f 𠀀 \ud7ff \ufffd \x00\x07\x1b",
)
"""Texts whose tokens depend on normalisation, splitting and scripts."""


class Difference(NamedTuple):
    """A text with its ids by two tokenizers."""

    text: str
    first: list[int]
    other: list[int]

    def __str__(self) -> str:
        first, other = (f"{ids[:_SHOWN]}{'...' if len(ids) > _SHOWN else ''}" for ids in (self.first, self.other))
        return f"{self.text!r} becomes {other}, not {first}"


def difference(first: Path, other: Path, texts: Iterable[str] = (), seconds: int = _SECONDS) -> Difference | None:
    """A text whose ids differ between the tokenizers of two folders; None: there is none among thousands of texts.

    They are all tokens' own strings and pairs of them, runs of white space and digits, samples of scripts, and `texts`.
    Texts with a token that only one tokenizer has are left out.

    Raises:
        CheckpointError: a tokenizer can't be read, fails, or takes more than `seconds` of processor time.
    """
    command = [sys.executable, "-P", "-m", __name__, str(seconds), str(first), str(other)]
    child = subprocess.run(command, input=json.dumps([*texts]).encode(), capture_output=True, check=False)  # noqa: S603  # our own command
    try:
        answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        problem = f"a comparison with another tokenizer takes over {seconds} s or {_MEMORY >> 30} GiB"
        if child.returncode > 0:  # no signal ended it
            problem = f"the tokenizer fails: {child.stderr.decode(errors='replace').strip().splitlines()[-1]}"
        raise CheckpointError(problem, where=str(other), todo="use the tokenizer of the seed model") from error
    if "what" in answer:
        raise CheckpointError(**answer)
    return Difference(**answer["difference"]) if answer["difference"] else None


def compared(
    first: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, texts: Iterable[str] = ()
) -> Difference | None:
    """As `difference`, of tokenizers in memory."""
    known = min(max(item.get_vocab().values(), default=0) for item in (first, other))
    some = ["", *_SAMPLES, *_runs(), *_marked(first), *texts]
    for special, rows in ((False, iter(some)), (True, chain(some, _tokens(first)))):
        while piece := [*islice(rows, _AT_ONCE)]:
            for text, ours, theirs in zip(piece, *(_ids(item, piece, special) for item in (first, other)), strict=True):
                if ours != theirs and max([*ours, *theirs], default=0) <= known:
                    return Difference(text, ours, theirs)
    return None


def _ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], special: bool) -> Iterable[list[int]]:
    if tokenizer.is_fast:
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        return (item.ids for item in encoded)
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=special, verbose=False)["input_ids"]
    return ids


def _tokens(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Each token's own string, and pairs of them."""
    own = [str(tokenizer.decode(id_)) for id_ in sorted(tokenizer.get_vocab().values())]
    yield from own
    for place in range(min(len(own), _MOST_PAIRS)):
        start = place * _STRIDE % len(own)
        yield f"{own[start]}{_SEPARATORS[place % len(_SEPARATORS)]}{own[(start * _STRIDE + place) % len(own)]}"


def _runs() -> Iterator[str]:
    for run in _RUNS:
        yield from (start + run * times + end for times in range(1, 18) for start, end in (("", ""), ("x", "y")))


def _marked(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Added tokens within text, where white space around them may be theirs."""
    for token in sorted(tokenizer.get_added_vocab())[:_MOST_MARKS]:
        yield from (f"a{token}b", f"a {token} b", f"{token}{token.upper()}")


def _answer(folders: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    try:
        first, other = (open_tokenizer(Path(folder)) for folder in folders)
    except CheckpointError as error:
        return {"what": error.what, "where": error.where, "todo": error.todo}
    found = compared(first, other, texts)
    return {"difference": found and found._asdict()}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps(_answer(sys.argv[2:], json.load(sys.stdin))))
