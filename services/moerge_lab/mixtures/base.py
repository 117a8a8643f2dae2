"""The base class of mixtures: a stock dense model, some of whose modules are replaced by several members' modules.

So masks, positions, cache and loss are transformers' own, in every dense family.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)

from moerge.errors import IncompatibleExpertError
from moerge.models.config import read_config, require_same_config
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.families.registry import family_of

INITIAL_DEVIATION = 0.02
"""Standard deviation of random routers, as in the stock classes."""
_COPIED = ("vocab_size", "hidden_size", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")


class MixtureConfig(PretrainedConfig):
    """The config of a mixture.

    Attributes:
        dense: config of all members.
        members: their names; the first is the seed model.
        num_hidden_layers: layers of the cache, one for each member's attention.
    """

    dense: dict[str, Any] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    num_hidden_layers: int = 0
    use_cache: bool = True
    initializer_range: float = INITIAL_DEVIATION

    @classmethod
    def of(cls, dense: PretrainedConfig, members: Sequence[str], **settings: Any) -> Self:
        source = {name: value for name, value in dense.to_dict().items() if name != "_name_or_path"}
        kept = {name: source[name] for name in _COPIED if name in source}
        layers = dense.num_hidden_layers * len(members)
        return cls(dense=source, members=[*members], num_hidden_layers=layers, **kept, **settings)

    @property
    def dense_config(self) -> PretrainedConfig:
        return AutoConfig.for_model(**self.dense)


class Weights(nn.Module):
    """A module whose outputs weight the members, [B, T, n] or [B, T, n, H]; so a hook on it sees them."""


class Mixture(PreTrainedModel, GenerationMixin):
    """A mixture of members, around the stock dense model `stock`, whose modules subclasses replace."""

    config_class: type[MixtureConfig]
    base_model_prefix = "stock"
    _supports_sdpa = True

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__(config)
        self.stock: Any = AutoModelForCausalLM.from_config(config.dense_config, dtype=torch.get_default_dtype())
        self.replace_modules()
        self.post_init()  # type: ignore[no-untyped-call]

    def replace_modules(self) -> None:
        raise NotImplementedError

    def added(self) -> dict[str, nn.Parameter]:
        """The parameters that no member brings."""
        raise NotImplementedError

    def share(self, name: str) -> float:
        """The share of a parameter's elements that a token is multiplied by."""
        raise NotImplementedError

    def active_parameters(self) -> float:
        """The number of parameters that a token is multiplied by, with the head and without embeddings."""
        return active_parameters(self, self.share)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        **settings: Any,
    ) -> Any:
        cached = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        if cached and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        return self.stock(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=cached,
            **settings,
        )

    def loaded(self, state: Mapping[str, Tensor]) -> Self:
        """This model with a whole state, in evaluation mode."""
        self.load_state_dict(state)
        self.train(False)
        return self

    def get_input_embeddings(self) -> nn.Module:
        return cast(nn.Module, self.stock.get_input_embeddings())

    def get_output_embeddings(self) -> nn.Module:
        return cast(nn.Module, self.stock.get_output_embeddings())

    @property
    def layers(self) -> Any:
        return self.stock.model.layers


def common_config(members: Mapping[str, Path]) -> PretrainedConfig:
    """The config of dense checkpoint folders, required to be one and supported."""
    configs = {name: read_config(folder) for name, folder in members.items()}
    first = next(iter(configs.values()))
    if family_of(first).mixers:
        problem = f"some layers of {first.model_type} have no attention"
        todo = "use a recipe that publishes a version: moerge table --help"
        raise IncompatibleExpertError(problem, where="config.json: layer_types", todo=todo)
    for name, config in configs.items():
        require_same_config(first, config, name, "same")
    return first


def dense_state(folder: Path) -> dict[str, Tensor]:
    """All tensors of a dense model, float32."""
    return dict(expert_model(DenseFiles(folder)).state_dict())


def active_parameters(model: PreTrainedModel, share: Callable[[str], float] = lambda name: 1) -> float:
    """The number of parameters that a token is multiplied by, with the head and without the embedding.

    `share` gives the share of a parameter's elements that count for a token, by its name.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    embedding, head = (end.get_parameter("weight") for end in ends)
    counted = ((name, item) for name, item in model.named_parameters() if item is not embedding or item is head)
    return float(sum(share(name) * parameter.numel() for name, parameter in counted))


def numbered(module: nn.Module, layer: int) -> nn.Module:
    """The module with its attention's number in the cache."""
    for item in module.modules():
        if hasattr(item, "layer_idx"):
            item.layer_idx = layer  # type: ignore[assignment]
    return module


@contextmanager
def observed(
    model: nn.Module, kind: type[nn.Module] = Weights, weights: Callable[[Any], Tensor] = lambda output: output
) -> Iterator[list[tuple[str, Tensor]]]:
    """While open, the name and the weights in the output of every module of a kind are added to the list."""
    seen: list[tuple[str, Tensor]] = []

    def hook(name: str) -> Any:
        return lambda module, inputs, output: seen.append((name, weights(output).detach()))

    handles = [item.register_forward_hook(hook(name)) for name, item in model.named_modules() if isinstance(item, kind)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
