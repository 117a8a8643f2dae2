"""Replies of a model, token by token, each with its expert."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.generation.streamers import BaseStreamer

from moerge.documents.chat_templates import TemplateRefusal, rendered
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.families.hosts import HOSTS
from moerge.scoring.perplexity import load
from moerge.scoring.routers import RouterOutput, routers
from moerge_proto.records import TunedModel, read_record
from moerge_proto.versions import Lineage

_BEFORE = 8
"""Tokens before a reply that are decoded with it: a tokenizer may omit the first space of a text."""
_INCOMPLETE = "\ufffd"
"""The decoded text of the first bytes of a character."""


@dataclass(frozen=True)
class Piece:
    """A token's text and expert. `layers`: expert -> number of layers that chose it first, if any."""

    text: str
    expert: str
    layers: Mapping[str, int]


class Speaker:
    """A stock MoE model that replies.

    Attributes:
        experts: their names, by slot: domains, or numbers if the folder has no record.
        converses: whether the tokenizer has a chat template.
    """

    def __init__(self, folder: Path, device: str = "cpu", tokens: int = 256, temperature: float | None = None) -> None:
        """Loads the model in its own number format.

        Args:
            tokens: of a reply at most.
            temperature: 0: the likeliest tokens; None: the model's own generation settings.

        Raises:
            MoergeError: the folder has no stock MoE model.
        """
        files = DenseFiles(folder)
        self.experts = _experts(folder, files.config)
        self._tokenizer: Any = files.tokenizer
        self._model: Any = load(folder, cast(torch.dtype, files.config.dtype or torch.float32), device)
        self._context, self._tokens = int(files.config.max_position_embeddings), tokens
        self._settings: dict[str, Any] = {"num_beams": 1}
        if temperature is not None:
            self._settings |= {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        self.converses = bool(self._tokenizer.chat_template)

    def reply(self, said: str | Sequence[Mapping[str, str]], show: Callable[[Piece], None]) -> None:
        """Calls `show` with each piece of a reply, or of the continuation of a text, as it is generated."""
        ids = self._ids(said)
        room = self._context - len(ids)
        if not ids or room < 1:
            what = f"expected 1 to {self._context - 1:,} tokens, the model's context, found {len(ids):,}"
            raise MoergeError(what, where="text", todo="give a shorter text" if ids else "give a text")
        with ExitStack() as stack, torch.inference_mode():
            chosen = list[int]()

            def see(module: nn.Module, inputs: object, output: RouterOutput) -> None:
                chosen.append(int(output[2][-1, 0]))

            for router in routers(self._model):
                stack.callback(router.register_forward_hook(see).remove)
            given = torch.tensor([ids], device=self._model.device)
            self._model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=min(self._tokens, room),
                streamer=_Pieces(self._tokenizer, self.experts, chosen, show),
                **self._settings,
            )

    def _ids(self, said: str | Sequence[Mapping[str, str]]) -> list[int]:
        if isinstance(said, str):
            return list(self._tokenizer(said)["input_ids"])
        try:
            text = rendered(self._tokenizer, said, prompt=True)
        except TemplateRefusal as error:
            todo = "continue a text, with `text`"
            raise MoergeError(f"refuses the conversation: {error}", where="chat template", todo=todo) from error
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


class _Pieces(BaseStreamer):
    """Cuts the new tokens' text into pieces; further bytes of a character belong to its last token.

    `chosen` gets each layer's first choice at the last position, in every forward pass.
    """

    def __init__(
        self, tokenizer: Any, experts: Sequence[str], chosen: list[int], show: Callable[[Piece], None]
    ) -> None:
        self._tokenizer, self._experts, self._chosen, self._show = tokenizer, experts, chosen, show
        self._ids, self._done = list[int](), 0
        self._layers = Counter[str]()

    def put(self, value: Tensor) -> None:
        ids: list[int] = value.flatten().tolist()
        if not self._ids:
            self._ids = ids[-_BEFORE:]
            self._done = len(self._text())
            return
        self._ids += ids
        self._layers = Counter(self._experts[slot] for slot in self._chosen)
        self._chosen.clear()
        if not self._text().endswith(_INCOMPLETE):
            self.end()

    def end(self) -> None:
        text = self._text()
        if new := text[self._done :]:
            layers = {name: self._layers[name] for name in self._experts if self._layers[name]}
            self._show(Piece(new, max(layers, key=layers.__getitem__), layers))
            self._done = len(text)

    def _text(self) -> str:
        return str(self._tokenizer.decode(self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _experts(folder: Path, config: PretrainedConfig) -> Sequence[str]:
    """The names of a stock MoE model's experts; MoergeError if it is none."""
    host = HOSTS.get(config.model_type)
    if host is None or getattr(config, host.count, None) is None:
        what = f"expected a Mixture-of-Experts class that moerge publishes, found a model of type {config.model_type!r}"
        todo = "name the folder of a version, from moerge merge or moerge pull"
        raise MoergeError(what, where=f"{folder / 'config.json'}: model_type", todo=todo)
    slots, record = host.slots(config), read_record(folder)
    named = list(record.domains) if isinstance(record, Lineage | TunedModel) else []
    return named if len(named) == slots else [f"expert {slot}" for slot in range(slots)]
