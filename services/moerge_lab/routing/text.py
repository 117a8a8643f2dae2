"""A text in tokens, each with its piece of the text, and the windows in which a model reads it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles


def encoded(folder: Path, text: str) -> tuple[list[int], list[str], list[int]]:
    """A text's token ids by a folder's tokenizer, its pieces, and the place of each piece's token among the ids."""
    tokenizer = DenseFiles(folder).tokenizer
    if not tokenizer.is_fast:
        what = "expected a fast tokenizer, which reports the text of each token"
        raise MoergeError(what, where=str(folder), todo="save the tokenizer with tokenizer.json in the folder")
    encoding = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    plain = [index for index, special in enumerate(encoding["special_tokens_mask"]) if not special]
    tokens, speakers = pieces(text, [encoding["offset_mapping"][index] for index in plain])
    if not tokens:
        raise MoergeError("the text has no token", where="text", todo="give another text")
    return encoding["input_ids"], tokens, [plain[index] for index in speakers]


def pieces(text: str, offsets: Sequence[tuple[int, int]]) -> tuple[list[str], list[int]]:
    """The text cut at the ends of its tokens, and the number of each piece's token.

    If a token ends at the end of the piece before it, as with the further bytes of a character, it becomes the token of
    that piece. Characters between two tokens belong to the second, characters after all tokens to the last.
    """
    cut: list[str] = []
    speakers: list[int] = []
    done = 0
    for index, (_, end) in enumerate(offsets):
        if end > done:
            cut.append(text[done:end])
            speakers.append(index)
            done = end
        elif cut:
            speakers[-1] = index
    if cut:
        cut[-1] += text[done:]
    return cut, speakers


def reading(ids: Sequence[int], context: int) -> Iterator[tuple[Tensor, slice]]:
    """Windows [1, T] of a text, which advance by half of a context, and the new places of each."""
    done = 0
    while done < len(ids):
        start = max(0, done - context // 2)
        yield torch.tensor([ids[start : start + context]]), slice(done - start, None)
        done = start + context
