"""The context head: one more group of attention heads, by which routers see the text's domain.

A router reads one token's vector, and in the first layer that vector holds little of the text before. The context head
attends there to the tokens before, by their distance alone and most to the nearest. Its values are a linear estimate,
from the embedding, of how much likelier each token is in each domain: log p(token | domain) less its mean over domains
(naive Bayes). Their mean goes to a few reserved directions of the residual that embeddings hardly use. In later layers
the added heads are zero. All of it follows from the merged embedding and the token counts of each domain; the model's
class stays the same.

Attention by distance needs queries and keys that are equal for all tokens. They read a constant, which every embedding
gets in one more reserved direction. They lie in some of the planes that rotary positions turn, so that a score is a sum
of w cos(theta x distance), nearly - distance^2 / 2 WIDTH^2 up to a constant.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig

from moerge.errors import IncompatibleExpertError
from moerge.models.families import EMBEDDING, Family, head_dim
from moerge.models.reader import Checkpoint
from moerge.models.writer import TensorPlan
from moerge.threads import one_thread

WIDTH = 24.0
"""Standard deviation, in tokens, of the attention weights' bell over the distance."""
SIZE = 0.2
"""Norm of the head's output where one domain differs from the others, relative to an embedding's."""
_CONSTANT = 0.1
"""Norm of the constant, relative to an embedding's."""
_ROWS = 4096
_RIDGE = 1e-4
_ABSOLUTE_TOLERANCE = 1e-6
_TOLERANCE = 0.02
"""Deviation of queries and keys from those that follow from the config, relative to these; bfloat16 rounds them."""
_MOST, _UNEVEN = 10.0, 12.0
"""Bounds of what a single token writes: relative to an embedding, and to the root mean square over tokens."""


@dataclass(frozen=True)
class ContextHead:
    """The parameters of the head, over n directions; float64.

    Attributes:
        reserved: [H, n + 1] orthonormal, reserved directions of the residual: the constant's, then the output's.
        query_key: [head dim, H], rows of the query and the key projection.
        values: [n, H], rows of the value projection.
        output: [H, n], columns of the output projection.
        epsilon: of the first layer's attention norm.
    """

    reserved: Tensor
    query_key: Tensor
    values: Tensor
    output: Tensor
    epsilon: float

    def embedded(self, embedding: Tensor) -> Tensor:
        """An embedding [V, H] whose reserved directions hold the constant alone, in its dtype."""
        return torch.cat(
            [_embedded(part.double(), self.reserved, self.epsilon).to(part.dtype) for part in embedding.split(_ROWS)]
        )

    def without_reserved(self, tensor: Tensor) -> Tensor:
        """[H, any] without the reserved directions, in its dtype."""
        return (tensor.double() - self.reserved @ (self.reserved.T @ tensor.double())).to(tensor.dtype)


def _embedded(rows: Tensor, reserved: Tensor, epsilon: float) -> Tensor:
    """Rows [n, H] whose reserved directions hold a constant alone; behind the norm it is the same for every row."""
    rest = rows - rows @ reserved @ reserved.T
    size = (rest.pow(2).sum(dim=1, keepdim=True) + epsilon * rows.shape[1]).sqrt()
    constant: Tensor = size * _CONSTANT / (1 - _CONSTANT**2) ** 0.5 * reserved[:, 0]
    return rest + constant


def _normed(rows: Tensor, epsilon: float) -> Tensor:
    """Rows [n, H], each of root mean square 1."""
    normed: Tensor = rows / (rows.pow(2).mean(dim=1, keepdim=True) + epsilon).sqrt()
    return normed


def context_head_of(
    embedding: Tensor, gain: Tensor, counts: Tensor, query: Tensor, epsilon: float, directions: int
) -> ContextHead:
    """Solves for the head's parameters.

    Args:
        embedding: [V, H], the trunk's.
        gain: [H], of the norm that the first layer's attention reads through.
        counts: [D, V] float64, each token's count in each domain's text.
        query: [head dim], the query and key of every token, see `by_distance`.
        epsilon: of that norm.
        directions: n, at most; D - 1 hold all evidence.
    """
    domains, hidden = len(counts), embedding.shape[1]
    probabilities = (counts + 1) / (counts + 1).sum(dim=1, keepdim=True)
    frequency = probabilities.mean(dim=0).split(_ROWS)
    square = torch.zeros(hidden, hidden).double()
    for part, weights in zip(embedding.split(_ROWS), frequency, strict=True):
        read = _normed(part.double(), epsilon)
        square += read.T @ (weights[:, None] * read)
    reserved = torch.linalg.eigh(square).eigenvectors[:, : directions + 1]
    square, cross = torch.zeros(hidden, hidden).double(), torch.zeros(hidden, domains).double()
    means, power = torch.zeros(domains, hidden).double(), 0.0
    blocks = zip(embedding.split(_ROWS), frequency, probabilities.split(_ROWS, dim=1), strict=True)
    for part, weights, likelihoods in blocks:
        rows, logs = _embedded(part.double(), reserved, epsilon), likelihoods.log()
        read = _normed(rows, epsilon)
        square += read.T @ (weights[:, None] * read)
        cross += read.T @ (weights[:, None] * (logs - logs.mean(dim=0)).T)
        means += likelihoods @ read
        power += float((weights[:, None] * rows.pow(2)).sum())
    readout = torch.linalg.solve(square + _RIDGE * square.diagonal().mean() * torch.eye(hidden), cross)
    apart = means @ readout
    _, spread, axes = torch.linalg.svd(apart - apart.mean(dim=0))
    spread, axes = spread[:directions, None] / domains**0.5, axes[:directions]
    distinct = (spread > _ABSOLUTE_TOLERANCE) & (gain != 0)  # domains may have the same tokens
    values = torch.where(distinct, axes @ readout.T / spread / gain.double(), 0.0)
    constant = torch.where(gain != 0, reserved[:, 0] / gain.double(), 0.0) / (_CONSTANT * hidden**0.5)
    query_key = torch.outer(query.double(), constant)
    return ContextHead(reserved, query_key, values, reserved[:, 1:] * SIZE * (power / directions) ** 0.5, epsilon)


def by_distance(config: PretrainedConfig) -> Tensor:
    """[head dim] float64: the query and key of every token, for scores that decrease with the distance.

    They lie in planes whose frequencies are each at most half of the one before, from a third of 1 / WIDTH on. So a
    whole turn in one plane is a part of a turn in another, and distant tokens get small weights.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    rotary = type(model.model.rotary_emb)(config=config)
    frequencies = rotary.inv_freq.double()
    chosen, last = [], 2 / (3 * WIDTH)
    for place, frequency in enumerate(frequencies.tolist()):
        if frequency <= last / 2:
            chosen.append(place)
            last = frequency
    chosen = chosen or [len(frequencies) - 1]
    weight = 1 / (WIDTH**2 * float(frequencies[chosen].pow(2).sum()))
    scale = model.model.layers[0].self_attn.scaling * rotary.attention_scaling**2
    query = torch.zeros(head_dim(config), dtype=torch.float64)
    query[chosen] = (weight / scale) ** 0.5
    return query


def with_context_head(
    plans: Sequence[TensorPlan], counts: Sequence[Tensor], family: Family, config: PretrainedConfig
) -> list[TensorPlan]:
    """The same trunk with a context head.

    It stays unchanged if there is only one domain, or if attention normalises queries, which the head must set.

    Args:
        plans: the trunk's tensors, in the dense family's names.
        counts: each domain's token counts, [V_d] float64; V_d may be smaller than the trunk's vocabulary.
        config: of the experts.
    """
    if len(counts) < 2 or family.attention.gain is None or any(plan.name.endswith("q_norm.weight") for plan in plans):
        return list(plans)
    named = {plan.name: plan for plan in plans}
    embedding, gain = named[EMBEDDING], named[family.attention.gain.format(layer=0)]
    directions = min(len(counts) - 1, head_dim(config))

    @cache
    def head() -> ContextHead:
        padded = torch.zeros(len(counts), embedding.shape[0], dtype=torch.float64)
        for row, own in zip(padded, counts, strict=True):
            row[: len(own)] = own
        rows, norm, query = embedding.compute(), gain.compute(), by_distance(config)
        with one_thread():
            return context_head_of(rows, norm, padded, query, config.rms_norm_eps, directions)

    def change(name: str, by: Callable[[Tensor], Tensor], rows: int = 0, columns: int = 0) -> None:
        plan = named[name]
        shape = (plan.shape[0] + rows, *(size + columns for size in plan.shape[1:]))
        named[name] = replace(plan, shape=shape, compute=lambda: by(plan.compute()))

    change(EMBEDDING, lambda tensor: head().embedded(tensor))
    wide = _wide(config)
    columns = (wide.num_attention_heads - config.num_attention_heads) * head_dim(config)
    for layer in range(config.num_hidden_layers):
        first = head if layer == 0 else None
        own, wider = family.input_blocks(config, layer), family.input_blocks(wide, layer)
        place = 0
        for module, blocks in own.items():
            added = [more - rows for rows, more in zip(blocks, wider[module], strict=True)]
            widened = partial(_widened_input, blocks=blocks, added=added, place=place)
            change(f"{module}.weight", partial(widened, head=first), sum(added))
            if f"{module}.bias" in named:
                change(f"{module}.bias", partial(widened, head=None), sum(added))
            place += len(blocks)
        output = family.attention.output.format(layer=layer) + ".weight"
        change(output, partial(_widened_output, added=columns, head=first), columns=columns)
    return [named[plan.name] for plan in plans]


def _wide(config: PretrainedConfig) -> PretrainedConfig:
    """The config with one more group of heads."""
    wide, width = copy(config), head_dim(config)
    wide.num_attention_heads += config.num_attention_heads // config.num_key_value_heads
    wide.num_key_value_heads += 1
    wide.head_dim = width
    return wide


def _widened_input(
    tensor: Tensor, blocks: Sequence[int], added: Sequence[int], place: int, head: Callable[[], ContextHead] | None
) -> Tensor:
    """A projection with rows added behind each of its blocks: the context head's, or zeros.

    Blocks are queries, keys and values, counted from 0; the projection's first one is number `place`.
    """
    parts = []
    for number, (block, rows) in enumerate(zip(tensor.split(list(blocks)), added, strict=True), place):
        more = torch.zeros(rows, *tensor.shape[1:], dtype=tensor.dtype)
        if head is not None:
            own = head().values if number == 2 else head().query_key
            more[: len(own)] = own.to(tensor.dtype)
        parts += [block, more]
    return torch.cat(parts)


def _widened_output(tensor: Tensor, added: int, head: Callable[[], ContextHead] | None) -> Tensor:
    """The output projection with added columns: zeros, or the context head's, which alone write to the reserved
    directions."""
    more = torch.zeros(len(tensor), added, dtype=tensor.dtype)
    if head is None:
        return torch.cat([tensor, more], dim=1)
    output = head().output
    more[:, : output.shape[1]] = output.to(tensor.dtype)
    return torch.cat([head().without_reserved(tensor), more], dim=1)


def wide_shapes(family: Family, config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of each attention weight of a trunk with a context head, and of each bias that it may have."""
    wide, shapes = _wide(config), dict[str, tuple[int, ...]]()
    for layer in range(config.num_hidden_layers):
        for module, rows in family.input_blocks(wide, layer).items():
            shapes[f"{module}.weight"] = (sum(rows), config.hidden_size)
            shapes[f"{module}.bias"] = (sum(rows),)
        output = family.attention.output.format(layer=layer) + ".weight"
        shapes[output] = (config.hidden_size, wide.num_attention_heads * head_dim(config))
    return shapes


def has_context_head(trunk: Checkpoint, family: Family, config: PretrainedConfig) -> bool:
    """Whether a trunk has one more group of attention heads in every layer than `config` says."""
    shapes = trunk.shapes
    return all(shapes.get(name, shape) == shape for name, shape in wide_shapes(family, config).items())


def without_context_head(trunk: Checkpoint, family: Family, config: PretrainedConfig) -> Callable[[str], Tensor]:
    """A reader of a trunk's tensors by name, without the added heads of a context head."""
    if not has_context_head(trunk, family, config):
        return trunk.tensor
    layers, wide = range(config.num_hidden_layers), _wide(config)
    own = {name: rows for layer in layers for name, rows in family.input_blocks(config, layer).items()}
    wider = {name: rows for layer in layers for name, rows in family.input_blocks(wide, layer).items()}
    outputs = {family.attention.output.format(layer=layer) + ".weight" for layer in layers}
    columns = config.num_attention_heads * head_dim(config)

    def tensor(name: str) -> Tensor:
        found, module = trunk.tensor(name), name.rpartition(".")[0]
        if name in outputs:
            return found[:, :columns]
        if module not in own:
            return found
        return torch.cat([part[:rows] for part, rows in zip(found.split(wider[module]), own[module], strict=True)])

    return tensor


def require_context_head(trunk: Checkpoint, family: Family, config: PretrainedConfig, counts: Tensor) -> None:
    """Requires that the added heads of a trunk are as wide and as faint as a context head is.

    What it attends to follows from the config. Its values depend on the other domains' token counts, so they are only
    bounded: no token may write much more than others.

    Args:
        trunk: has `wide_shapes`.
        config: of the experts.
        counts: [V] float64, of the tokens in the owner's own text.

    Raises:
        IncompatibleExpertError: names the tensor that is not as `with_context_head` makes it.
    """
    wide, width = _wide(config), head_dim(config)
    output = family.attention.output.format(layer=0) + ".weight"
    if family.attention.gain is None or any(name.endswith("q_norm.weight") for name in trunk.specs):
        raise _no_context_head("its family has no context heads", output)
    added = list[tuple[str, Tensor]]()  # rows of the first added query head, key and value of the first layer
    for layer in range(config.num_hidden_layers):
        wider, kept = family.input_blocks(wide, layer), width if layer == 0 else 0
        for module, own in family.input_blocks(config, layer).items():
            for name in {f"{module}.weight", f"{module}.bias"} & trunk.specs.keys():
                parts = zip(trunk.tensor(name).split(wider[module]), own, strict=True)
                more = [part[rows:].double() for part, rows in parts]
                if layer == 0 and name.endswith("weight"):
                    added += [(name, part[:width]) for part in more]
                    more = [part[width:] for part in more]
                _require_zeros(name, more)
        name = family.attention.output.format(layer=layer) + ".weight"
        columns = trunk.tensor(name)[:, config.num_attention_heads * width :]
        _require_zeros(name, [columns[:, kept:]])
    *queries_keys, (_, values) = added
    gain, embedding = trunk.tensor(family.attention.gain.format(layer=0)).double(), trunk.tensor(EMBEDDING)
    embedding, frequency = embedding[: len(counts)].double(), (counts + 1) / (counts + 1).sum()
    read = _normed(embedding, config.rms_norm_eps) * gain
    for name, rows in queries_keys:
        _require_by_distance(name, rows, read, by_distance(config))
    columns = trunk.tensor(output)[:, config.num_attention_heads * width :][:, :width].double()
    size = float((embedding.square().sum(dim=1) @ frequency).sqrt())
    _require_faint(output, read @ (columns @ values).T, size, frequency)


def _require_zeros(name: str, tensors: Iterable[Tensor]) -> None:
    if any(bool(tensor.any()) for tensor in tensors):
        raise _no_context_head("its further heads are not zero", name)


def _require_by_distance(name: str, rows: Tensor, read: Tensor, expected: Tensor) -> None:
    """Requires that rows [n, H] give `expected` [n], or a share of it, for every vector of `read` [V, H]."""
    found, tolerance = read @ rows.T, _TOLERANCE * float(expected.norm())
    mean = found.mean(dim=0)
    share = (mean @ expected / (expected @ expected)).clamp(0, 1)
    if not float((mean - share * expected).norm()) <= tolerance:
        raise _no_context_head("they attend to fewer tokens than a context head does", name)
    if not float((found - mean).norm(dim=1).max()) <= tolerance:
        raise _no_context_head("they attend by more than distance", name)


def _require_faint(name: str, written: Tensor, size: float, frequency: Tensor) -> None:
    """Requires about even norms of what tokens write [V, H], not much above an embedding's."""
    norms = written.norm(dim=1)
    most, usual = float(norms.max()), float((norms.square() @ frequency).sqrt())
    if not most <= min(_MOST * size, _UNEVEN * usual):
        found = f"a single token writes {most / size:.3g} times an embedding, {most / usual:.3g} times the usual"
        raise _no_context_head(f"{found}; at most {_MOST:g} and {_UNEVEN:g} times are expected", name)


def _no_context_head(found: str, name: str) -> IncompatibleExpertError:
    todo = "ask the operator how the trunk was merged"
    return IncompatibleExpertError(f"the trunk has heads that your expert lacks, and {found}", where=name, todo=todo)
