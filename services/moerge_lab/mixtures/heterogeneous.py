"""Experts of different architectures: projectors, and a router on the mean embedding (MergeME section 3.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, silu
from transformers import AutoConfig, AutoModel, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from moerge.models.config import read_config
from moerge.models.dense_files import DenseFiles
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.models.families.registry import require_family
from moerge_lab.mixtures.bam import Shares
from moerge_lab.mixtures.base import INITIAL_DEVIATION, active_parameters, dense_state

_OF_MEMBERS = ("inputs.", "members.", "outputs.")


class HeterogeneousConfig(PretrainedConfig):
    """The config of experts of different architectures.

    Attributes:
        members: their names; the tokenizer is the first one's.
        dense: their configs, in the same order.
        num_experts_per_tok: experts per text; 0: all.
        skip: whether projectors add their input, cut or padded with zeros, to their output.
    """

    model_type = "moerge_heterogeneous"
    members: list[str] = field(default_factory=list)
    dense: list[dict[str, Any]] = field(default_factory=list)
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_experts_per_tok: int = 0
    skip: bool = False
    use_cache: bool = False
    tie_word_embeddings: bool = False
    initializer_range: float = INITIAL_DEVIATION
    bos_token_id: Any = None
    eos_token_id: Any = None
    pad_token_id: Any = None

    @property
    def dense_configs(self) -> list[PretrainedConfig]:
        return [AutoConfig.for_model(**item) for item in self.dense]


class Projector(nn.Module):
    """W2 silu(W1 x), between two widths."""

    def __init__(self, width: int, out: int, *, skip: bool) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, width, bias=False)
        self.down_proj = nn.Linear(width, out, bias=False)
        self._out, self._skip = out, skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(silu(self.up_proj(x)))
        return y + pad(x, (0, self._out - x.shape[-1])) if self._skip else y


class Heterogeneous(PreTrainedModel, GenerationMixin):
    """Whole dense models between a shared embedding and a shared head: y = sum_i alpha_i out_i(f_i(in_i(e))).

    At place t, alpha = softmax(top-K(theta . avg(e_1, ..., e_t))). So the next token after a prompt has the paper's
    weights, and no token depends on later ones. Text is generated without a cache.
    """

    config_class = HeterogeneousConfig
    _supports_sdpa = True

    def __init__(self, config: HeterogeneousConfig) -> None:
        super().__init__(config)
        width, dense = config.hidden_size, config.dense_configs
        widths = [int(item.hidden_size) for item in dense]
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.router = nn.Linear(width, len(dense), bias=False)
        self.weights = Shares(config.num_experts_per_tok)
        self.inputs = nn.ModuleList(Projector(width, item, skip=config.skip) for item in widths)
        self.members = nn.ModuleList(map(_without_embedding, dense))
        self.outputs = nn.ModuleList(Projector(item, width, skip=config.skip) for item in widths)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **settings: Any
    ) -> CausalLMOutput:
        """As a stock dense model's, without a cache; other arguments have no effect."""
        embedded = self.embed_tokens(input_ids)  # [B, T, H]
        weights = self.weights(self.router(running_means(embedded, attention_mask)))  # [B, T, n]
        mixed = torch.zeros_like(embedded)
        for number, member in enumerate(self.members):
            own = weights[..., number, None]
            if not (self.training or own.any()):  # optimizers, and processes together, want every gradient
                continue
            x = self.inputs[number](embedded)
            y = member(inputs_embeds=x, attention_mask=attention_mask, use_cache=False).last_hidden_state
            mixed = mixed + own * self.outputs[number](y)
        logits = self.lm_head(mixed)
        loss = None
        if labels is not None:
            loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **settings: Any
    ) -> dict[str, Any]:
        """The whole text, because there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def added(self) -> dict[str, nn.Parameter]:
        """All parameters outside the members' layers."""
        return {name: item for name, item in self.named_parameters() if not name.startswith("members.")}

    def active_parameters(self) -> float:
        """The number of parameters that a token is multiplied by, for K average experts."""
        chosen = (self.config.num_experts_per_tok or len(self.members)) / len(self.members)
        return active_parameters(self, lambda name: chosen if name.startswith(_OF_MEMBERS) else 1)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        result: nn.Linear = self.lm_head
        return result

    @classmethod
    def of(cls, members: Mapping[str, Path], seed: int, k: int = 0, *, skip: bool = False) -> Self:
        """The members with averaged embeddings and heads, random projectors and a random router.

        Rows of embeddings and heads are averaged by token string, each over the members that have it. With `skip`,
        projectors are zero beside their skip connections.

        Raises:
            IncompatibleExpertError: a family is unsupported.
        """
        configs = [read_config(folder) for folder in members.values()]
        for config in configs:
            require_family(config.model_type)
        model, generator = cls(_config([*members], configs, k, skip)), torch.Generator().manual_seed(seed)
        result = {name: _initial(name, item, generator, skip) for name, item in model.added().items()}
        embeddings, heads = list[Tensor](), list[Tensor]()
        for slot, folder in enumerate(members.values()):
            state = dense_state(folder)
            embeddings.append(state.pop(EMBEDDING))
            heads.append(state.pop(HEAD))
            result |= {f"members.{slot}.{name.removeprefix('model.')}": tensor for name, tensor in state.items()}
        rows = matching_rows([*members.values()], [len(table) for table in embeddings])
        width = model.config.hidden_size
        result |= {
            "embed_tokens.weight": averaged(embeddings, rows, width),
            "lm_head.weight": averaged(heads, rows, width),
        }
        model.load_state_dict(result)
        model.train(False)
        return model


def running_means(embedded: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """avg(e_1, ..., e_t) at each place t, without padding: [B, T, H] -> [B, T, H]."""
    ones = torch.ones(embedded.shape[:2], device=embedded.device)
    counted = (ones if attention_mask is None else attention_mask.float())[..., None]
    sums = (embedded.float() * counted).cumsum(1)
    return (sums / counted.cumsum(1).clamp_min(1)).to(embedded.dtype)


def averaged(tables: Sequence[Tensor], rows: Sequence[Tensor], width: int) -> Tensor:
    """The mean row of each token over the members' tables [V_i, H_i] that have it, padded with zeros: [V, width].

    Args:
        rows: of the members, [V]: each token's row in its table; -1: none.
    """
    total, count = torch.zeros(len(rows[0]), width, dtype=torch.float64), torch.zeros(len(rows[0]), 1)
    for table, row in zip(tables, rows, strict=True):
        known = row >= 0
        total[known, : table.shape[1]] += table[row[known]].double()
        count[known] += 1
    return (total / count).float()


def matching_rows(folders: Sequence[Path], sizes: Sequence[int]) -> list[Tensor]:
    """Each member's row of every row of the first one's embedding, by token string; -1: none.

    Args:
        folders: with tokenizers.
        sizes: rows of the members' embeddings.
    """
    first, *others = [DenseFiles(folder).tokenizer.get_vocab() for folder in folders]
    result = [torch.arange(sizes[0])]
    for vocabulary, size in zip(others, sizes[1:], strict=True):
        rows = torch.full((sizes[0],), -1)
        for token, row in first.items():
            if row < sizes[0] and vocabulary.get(token, size) < size:
                rows[row] = vocabulary[token]
        if vocabulary == first:  # rows without a token, too
            rows[: min(sizes[0], size)] = torch.arange(min(sizes[0], size))
        result.append(rows)
    return result


def _config(names: list[str], dense: Sequence[PretrainedConfig], k: int, skip: bool) -> HeterogeneousConfig:
    first = dense[0]
    return HeterogeneousConfig(
        members=names,
        dense=[item.to_dict() for item in dense],
        vocab_size=first.vocab_size,
        hidden_size=max(item.hidden_size for item in dense),
        num_hidden_layers=max(item.num_hidden_layers for item in dense),
        num_experts_per_tok=k,
        skip=skip,
        bos_token_id=first.bos_token_id,
        eos_token_id=first.eos_token_id,
        pad_token_id=first.pad_token_id,
    )


def _without_embedding(config: PretrainedConfig) -> nn.Module:
    model: PreTrainedModel = AutoModel.from_config(config, dtype=torch.get_default_dtype())
    model.set_input_embeddings(nn.Identity())
    return model


def _initial(name: str, parameter: nn.Parameter, generator: torch.Generator, skip: bool) -> Tensor:
    if skip and name.endswith("down_proj.weight"):
        return torch.zeros(parameter.shape)
    deviation = INITIAL_DEVIATION if name.startswith("router.") else parameter.shape[-1] ** -0.5
    return torch.randn(parameter.shape, generator=generator) * deviation
