"""Routes one text through a published version. As a program it does so within a memory limit.

It reads a `Job` as one line of JSON, and writes a `RoutedText`, or a problem with exit status 1. It exits when its
standard input closes, so that it never outlives its parent.
"""

import json
import os
import resource
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import BaseModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from moerge.errors import MoergeError
from moerge.scoring.route_job import Job, TooLargeError, context_of
from moerge.scoring.routers import routers
from moerge_proto.routing import RoutedText
from moerge_proto.versions import Lineage

MAX_SCORES = 2_000_000  # layers x tokens x domains, about 16 MB of JSON
_NO_MEMORY = ("allocate memory", "not enough memory", "bad_alloc", "start new thread")


def pieces(text: str, offsets: Sequence[tuple[int, int]]) -> tuple[list[str], list[int]]:
    """Cuts `text` at the ends of its tokens, and gives each piece's token; joined, the pieces give the text.

    If a token ends at the end of the piece before it, as with the further bytes of a character, it becomes the token of
    that piece. Characters between two tokens belong to the second, characters after all tokens to the last.

    Args:
        offsets: first character and end of each token, without tokens added by the tokenizer.
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


@contextmanager
def _observed(model: PreTrainedModel) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """While open, each router's logits [n, D] and choices [n, k] are added to the list, layer by layer."""
    seen: list[tuple[Tensor, Tensor]] = []

    def see(module: object, inputs: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
        seen.append((output[0], output[2]))

    handles = [router.register_forward_hook(see) for router in routers(model)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def reading(ids: Sequence[int], context: int) -> Iterator[tuple[Tensor, slice]]:
    """Windows [1, T] of a text, and the new places of each.

    A text longer than `context` is read in windows that advance by half of it.
    """
    done = 0
    while done < len(ids):
        start = max(0, done - context // 2)
        yield torch.tensor([ids[start : start + context]]), slice(done - start, None)
        done = start + context


@torch.inference_mode()
def routed(model: PreTrainedModel, ids: Sequence[int], context: int) -> tuple[Tensor, Tensor]:
    """The routers' logits [L, n, D], float32, and choices [L, n, k] for a text of n tokens, see `reading`."""
    logits: list[Tensor] = []
    experts: list[Tensor] = []
    for window, new in reading(ids, context):
        with _observed(model) as seen:
            model.base_model(input_ids=window, use_cache=False)
        logits.append(torch.stack([each[new].float() for each, _ in seen]))
        experts.append(torch.stack([each[new] for _, each in seen]))
    return torch.cat(logits, dim=1), torch.cat(experts, dim=1)


class Encoded(NamedTuple):
    """A text's token ids, its pieces, and the place of each piece's token among the ids."""

    ids: list[int]
    pieces: list[str]
    places: list[int]


def encoded(folder: Path, text: str, where: str, todo: str) -> Encoded:
    """The tokens of a text.

    Args:
        folder: with the tokenizer.
        where, todo: name and remedy of a folder with a slow tokenizer.

    Raises:
        MoergeError: the tokenizer doesn't report its tokens' positions, or the text has no token.
    """
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    if not tokenizer.is_fast:
        raise MoergeError("expected a fast tokenizer, which reports the text of each token", where=where, todo=todo)
    found = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    own = [index for index, special in enumerate(found["special_tokens_mask"]) if not special]
    tokens, speakers = pieces(text, [found["offset_mapping"][index] for index in own])
    if not tokens:
        raise MoergeError("the text has no token", where="text", todo="give another text")
    return Encoded(found["input_ids"], tokens, [own[index] for index in speakers])


def route_text(folder: Path, number: int, text: str) -> RoutedText:
    """Routes `text` through the version in `folder`, with stock transformers.

    Raises:
        MoergeError: the version or the text is too large, or its tokenizer doesn't report its tokens' positions.
    """
    todo = "publish a version whose experts have tokenizer.json"
    ids, tokens, rows = encoded(folder, text, f"version {number}", todo)
    made = Lineage.model_validate_json((folder / "moerge.json").read_bytes())
    config = json.loads((folder / "config.json").read_bytes())
    each = len(made.domains) * int(config["num_hidden_layers"])
    if len(ids) * each > MAX_SCORES:
        found = f"expected at most {MAX_SCORES // each} tokens for this version, found {len(ids)}"
        raise TooLargeError(found, where="text", todo="give a shorter text")
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, trust_remote_code=False, dtype="auto")
    context = context_of(config)
    logits, experts = routed(model.eval(), ids, context)
    if not bool(logits.isfinite().all()):
        raise MoergeError("the routers' scores are not finite", where=f"version {number}", todo="use another version")
    return RoutedText(
        version=number,
        domains=made.domains,
        top_k=experts.shape[2],
        context=context,
        tokens=tokens,
        scores=logits[:, rows].double().numpy().round(4).tolist(),
        experts=experts[:, rows].tolist(),
    )


def _end_with_input() -> None:
    os.read(0, 1)  # returns when the input closes
    os._exit(1)


def main() -> None:
    """The program. It outputs nothing about the text except the answer: no messages and no core dump."""
    job = Job.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (job.limit, job.limit))
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        answer: BaseModel = route_text(job.folder, job.number, job.text)
    except MoergeError as error:
        answer = error.problem()
    except (MemoryError, RuntimeError, OSError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in _NO_MEMORY):
            raise
        answer = TooLargeError(
            f"routing needs more than the limit of {job.limit} bytes of memory",
            where="route_bytes",
            todo="give a shorter text, or ask the operator to raise route_bytes",
        ).problem()
    sys.stdout.buffer.write(answer.model_dump_json().encode())
    sys.stdout.flush()
    os._exit(0 if isinstance(answer, RoutedText) else 1)


if __name__ == "__main__":
    main()
