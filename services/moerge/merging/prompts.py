"""Prompts in place of a domain's texts: its expert writes the texts, by sampling."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from moerge.documents.chat_templates import TemplateRefusal, rendered
from moerge.documents.conversations import require_rows
from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.memory.machine import free_for
from moerge.memory.needs import Need, writing_texts
from moerge.memory.room import require_room
from moerge.memory.shapes import Shape
from moerge.models.expert_folder import DenseExpert
from moerge.progress import Progress
from moerge.scoring.perplexity import load
from moerge.threads import one_thread
from moerge_proto.digests import digest_of

LONGEST = 256
"""Most tokens behind a prompt."""
BATCH = 8
"""Texts at a time. Part of the result, because other batches give other roundings."""
TEMPERATURE = 1.0


@dataclass(frozen=True)
class Prompts:
    """A domain's prompts, and the tokens of the texts that its expert writes by them, including the prompts."""

    texts: Sequence[str]
    tokens: int


@dataclass(frozen=True)
class Writer:
    """An expert's transformers tokenizer; with a chat template, a prompt is a user's turn in it."""

    tokenizer: Any

    @property
    def chat(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def ids(self, prompt: str) -> list[int]:
        if not self.chat:
            return list(self.tokenizer(prompt)["input_ids"])
        turns = [{"role": "user", "content": prompt}]
        text = rendered(self.tokenizer, turns, prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def document(self, prompt: str, begun: Sequence[int], new: Sequence[int]) -> dict[str, Any]:
        """A line of the file of texts; `tokens` includes the prompt."""
        fields: dict[str, Any] = {"tokens": len(begun) + len(new)}
        if not self.chat:
            return {"text": self.tokenizer.decode([*begun, *new], skip_special_tokens=True), **fields}
        answer = self.tokenizer.decode(new, skip_special_tokens=True)
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        return {"messages": turns, **fields}


def checked(expert: DenseExpert, prompts: Prompts, context: int) -> tuple[Writer, list[list[int]]]:
    """The expert's writer, and the tokens of each prompt; arguments and errors are those of `written`."""
    writer, begun, where = Writer(expert.tokenizer), list[list[int]](), f"`prompt` {expert.domain}"
    # all special tokens, also those without a role, such as a template's marks of turns
    added = writer.tokenizer.added_tokens_decoder.values() if writer.chat else ()
    special = [token.content for token in added if token.special]
    for prompt in prompts.texts:
        try:
            begun.append(writer.ids(prompt))
        except TemplateRefusal as error:
            todo = "correct the expert's chat template, or give texts instead of prompts"
            raise MoergeError(f"the chat template refuses a prompt: {error}", where=where, todo=todo) from error
        require_rows(begun[-1], expert, where)
        if not prompt.strip() or not begun[-1]:
            raise MoergeError("a prompt is empty", where=where, todo="remove it")
        if len(begun[-1]) >= context:
            problem = f"a prompt has {len(begun[-1])} tokens; a text has at most {context}"
            raise MoergeError(problem, where=where, todo="shorten it, or raise `context`")
        if mark := next((token for token in special if token in prompt), ""):
            todo = "give the user's words alone; the expert's chat template is added to them"
            raise MoergeError(f"a prompt contains {mark!r}", where=where, todo=todo)
    return writer, begun


def written(expert: DenseExpert, prompts: Prompts, context: int, work: Path, device: str, progress: Progress) -> Corpus:
    """The texts that an expert writes by its prompts in turn, as JSON Lines in `work`; an interrupted run continues.

    Equal arguments give equal texts on one machine. `context` is the most tokens of a text.

    Raises:
        MoergeError: a prompt is too long or empty, has the chat template's tokens, or is refused by it;
            or memory is short.
    """
    writer, begun = checked(expert, prompts, context)
    name = digest_of([expert.digest, list(prompts.texts), prompts.tokens, context, device])
    path = work / f"generated-{expert.domain}-{name[:16]}.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    done = sum(json.loads(line)["tokens"] for line in lines)
    with progress.track(f"texts of {expert.domain} by its expert", prompts.tokens, "tokens") as tracker:
        tracker.advance(min(done, prompts.tokens))
        if done < prompts.tokens:
            require_memory(expert, device)
            model = load(expert.folder, device=device)
        while done < prompts.tokens:
            number = len(lines) // BATCH
            chosen = [place % len(begun) for place in range(number * BATCH, (number + 1) * BATCH)]
            answers = _sampled(model, writer.tokenizer, [begun[place] for place in chosen], context, number)
            pairs = zip(chosen, answers, strict=True)
            texts = [writer.document(prompts.texts[place], begun[place], new) for place, new in pairs]
            lines += [json.dumps(text, ensure_ascii=False) for text in texts]
            with atomic_file(path, private=True) as out:
                out.write("".join(f"{line}\n" for line in lines).encode())
            new_tokens = sum(text["tokens"] for text in texts)
            tracker.advance(min(new_tokens, prompts.tokens - done))
            done += new_tokens
    return Corpus([str(path)], expert, chat="messages" if writer.chat else None, where=f"`prompt` {expert.domain}")


def require_memory(expert: DenseExpert, device: str) -> Need:
    """Requires, and returns, the memory of an expert that writes texts."""
    need = writing_texts(Shape.of(expert.config, torch.float32), expert.domain, device)
    require_room(need, free_for(device), ["texts instead of prompts", "a larger machine"])
    return need


@torch.inference_mode()
def _sampled(
    model: PreTrainedModel, tokenizer: Any, begun: Sequence[Sequence[int]], context: int, seed: int
) -> list[list[int]]:
    """New tokens behind each beginning, up to the end of the text; sampled with a seed, on one thread."""
    width = max(map(len, begun))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in begun], device=model.device)  # [B, T]
    real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in begun], device=model.device)
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = tokenizer.eos_token_id if ends is None else ends
    stops = set(ends if isinstance(ends, list) else [ends])
    model.generation_config = GenerationConfig(eos_token_id=ends)  # without the owner's way of sampling
    chosen = GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        max_new_tokens=min(LONGEST, context - width),
        eos_token_id=ends,
        pad_token_id=0,
    )
    with one_thread(), torch.random.fork_rng():
        torch.manual_seed(seed)
        result = model.generate(ids, attention_mask=real, generation_config=chosen)  # type: ignore[operator]
    rows = (row[width:].tolist() for row in result)
    return [row[: next((place for place, id_ in enumerate(row) if id_ in stops), len(row))] for row in rows]
