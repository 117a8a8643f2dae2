"""A context head: one more group of attention heads, by which routers see what the text is about.

A router reads one token's vector, and in the first layer that has seen little else of the text. In that layer the added
head attends to the tokens before by their distance alone, most to the nearest, and to what is linear in an embedding
of the logarithm of how much likelier its token is in each domain (the evidence of naive Bayes). It writes the mean into
a few directions of the residual that embeddings hardly use. In the layers behind it is zero. All of it follows from the
merged embedding and from how often each token stood in each domain, and the model's class stays what it is.

Attention by distance needs queries and keys that are the same for all tokens. They read a constant, which every
embedding gets in one more such direction, and have parts in some of the planes that positions rotate, so that a score
is a sum of w cos(theta x distance), which is nearly - distance^2 / 2 WIDTH^2 up to a constant.
"""

from collections.abc import Callable, Sequence
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
"""Standard deviation of the bell that the weights of tokens before make over distance, in tokens."""
SIZE = 0.2
"""How large what is written is where one domain differs from the others, by the size of an embedding."""
_CONSTANT = 0.1
"""How large the constant is, by the size of an embedding."""
_ROWS = 4096
_RIDGE = 1e-4
_SAME = 1e-6
_ALIKE = 0.1


@dataclass(frozen=True)
class Context:
    """What the head reads and writes, in n directions; float64.

    Attributes:
        lane: [H, n + 1] orthonormal, directions of the residual: of the constant, and those that are written to.
        asking: [head dim, H], the rows of queries and of keys.
        evidence: [n, H], rows of values.
        written: [H, n], what a unit of evidence adds to the residual.
        epsilon: of the norm that the first layer's attention reads through.
    """

    lane: Tensor
    asking: Tensor
    evidence: Tensor
    written: Tensor
    epsilon: float

    def embedded(self, embedding: Tensor) -> Tensor:
        """An embedding [V, H] with nothing in the lane but the constant, in its dtype."""
        return torch.cat(
            [_embedded(part.double(), self.lane, self.epsilon).to(part.dtype) for part in embedding.split(_ROWS)]
        )

    def without_lane(self, tensor: Tensor) -> Tensor:
        """[H, any], with nothing in the lane, in its dtype."""
        return (tensor.double() - self.lane @ (self.lane.T @ tensor.double())).to(tensor.dtype)


def _embedded(rows: Tensor, lane: Tensor, epsilon: float) -> Tensor:
    """Rows [n, H] with nothing in the lane but what a norm makes the same constant of each."""
    rest = rows - rows @ lane @ lane.T
    size = (rest.pow(2).sum(dim=1, keepdim=True) + epsilon * rows.shape[1]).sqrt()
    constant: Tensor = size * _CONSTANT / (1 - _CONSTANT**2) ** 0.5 * lane[:, 0]
    return rest + constant


def _normed(rows: Tensor, epsilon: float) -> Tensor:
    """Rows [n, H], each of root mean square 1."""
    normed: Tensor = rows / (rows.pow(2).mean(dim=1, keepdim=True) + epsilon).sqrt()
    return normed


def context_of(
    embedding: Tensor, gain: Tensor, counts: Tensor, asked: Tensor, epsilon: float, directions: int
) -> Context:
    """Solves for what the context head does.

    Args:
        embedding: [V, H], the trunk's.
        gain: [H], of the norm that the first layer's attention reads through.
        counts: [D, V] float64, how often each token stood in each domain's text.
        asked: [head dim], the query and key of every token, as `by_distance` gives them.
        epsilon: of that norm.
        directions: n, how many there may be; D - 1 tell all.
    """
    domains, hidden = len(counts), embedding.shape[1]
    chances = (counts + 1) / (counts + 1).sum(dim=1, keepdim=True)
    frequency = chances.mean(dim=0).split(_ROWS)
    square = torch.zeros(hidden, hidden).double()
    for part, weights in zip(embedding.split(_ROWS), frequency, strict=True):
        read = _normed(part.double(), epsilon)
        square += read.T @ (weights[:, None] * read)
    lane = torch.linalg.eigh(square).eigenvectors[:, : directions + 1]
    square, cross = torch.zeros(hidden, hidden).double(), torch.zeros(hidden, domains).double()
    means, power = torch.zeros(domains, hidden).double(), 0.0
    for part, weights, chance in zip(embedding.split(_ROWS), frequency, chances.split(_ROWS, dim=1), strict=True):
        rows, logs = _embedded(part.double(), lane, epsilon), chance.log()
        read = _normed(rows, epsilon)
        square += read.T @ (weights[:, None] * read)
        cross += read.T @ (weights[:, None] * (logs - logs.mean(dim=0)).T)
        means += chance @ read
        power += float((weights[:, None] * rows.pow(2)).sum())
    readout = torch.linalg.solve(square + _RIDGE * square.diagonal().mean() * torch.eye(hidden), cross)
    apart = means @ readout
    _, spread, axes = torch.linalg.svd(apart - apart.mean(dim=0))
    spread, axes = spread[:directions, None] / domains**0.5, axes[:directions]
    told = (spread > _SAME) & (gain != 0)  # domains may have the same tokens
    evidence = torch.where(told, axes @ readout.T / spread / gain.double(), 0.0)
    constant = torch.where(gain != 0, lane[:, 0] / gain.double(), 0.0) / (_CONSTANT * hidden**0.5)
    asking = torch.outer(asked.double(), constant)
    return Context(lane, asking, evidence, lane[:, 1:] * SIZE * (power / directions) ** 0.5, epsilon)


def by_distance(config: PretrainedConfig) -> Tensor:
    """[head dim] float64: the query and key of every token, for scores that fall with the distance.

    Their parts lie in planes whose frequencies are each at most half of the one before, from a third of 1 / WIDTH on,
    so that what is a whole turn away in one plane is far away in another.
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
    asked = torch.zeros(head_dim(config), dtype=torch.float64)
    asked[chosen] = (weight / scale) ** 0.5
    return asked


def with_context(
    plans: Sequence[TensorPlan], counts: Sequence[Tensor], family: Family, config: PretrainedConfig
) -> list[TensorPlan]:
    """The same trunk with a context head.

    It stays as it is if there is one domain alone, or if attention normalises queries, so that they can't be chosen.

    Args:
        plans: the trunk's tensors, in the dense family's names.
        counts: one domain's tokens each, [V_d] float64; vocabularies may end sooner than the trunk's.
        config: of the experts.
    """
    if len(counts) < 2 or family.attention.gain is None or any(plan.name.endswith("q_norm.weight") for plan in plans):
        return list(plans)
    named = {plan.name: plan for plan in plans}
    embedding, gain = named[EMBEDDING], named[family.attention.gain.format(layer=0)]
    directions = min(len(counts) - 1, head_dim(config))

    @cache
    def context() -> Context:
        padded = torch.zeros(len(counts), embedding.shape[0], dtype=torch.float64)
        for row, own in zip(padded, counts, strict=True):
            row[: len(own)] = own
        rows, norm, asked = embedding.compute(), gain.compute(), by_distance(config)
        with one_thread():
            return context_of(rows, norm, padded, asked, config.rms_norm_eps, directions)

    def change(name: str, by: Callable[[Tensor], Tensor], rows: int = 0, columns: int = 0) -> None:
        plan = named[name]
        shape = (plan.shape[0] + rows, *(size + columns for size in plan.shape[1:]))
        named[name] = replace(plan, shape=shape, compute=lambda: by(plan.compute()))

    change(EMBEDDING, lambda tensor: context().embedded(tensor))
    wide = _wide(config)
    columns = (wide.num_attention_heads - config.num_attention_heads) * head_dim(config)
    for layer in range(config.num_hidden_layers):
        first = context if layer == 0 else None
        own, wider = family.input_blocks(config, layer), family.input_blocks(wide, layer)
        place = 0
        for module, blocks in own.items():
            added = [more - rows for rows, more in zip(blocks, wider[module], strict=True)]
            reading = partial(_reading, blocks=blocks, added=added, place=place)
            change(f"{module}.weight", partial(reading, context=first), sum(added))
            if f"{module}.bias" in named:
                change(f"{module}.bias", partial(reading, context=None), sum(added))
            place += len(blocks)
        output = family.attention.output.format(layer=layer) + ".weight"
        change(output, partial(_writing, added=columns, context=first), columns=columns)
    return [named[plan.name] for plan in plans]


def _wide(config: PretrainedConfig) -> PretrainedConfig:
    """The config with one more group of heads."""
    wide, width = copy(config), head_dim(config)
    wide.num_attention_heads += config.num_attention_heads // config.num_key_value_heads
    wide.num_key_value_heads += 1
    wide.head_dim = width
    return wide


def _reading(
    tensor: Tensor, blocks: Sequence[int], added: Sequence[int], place: int, context: Callable[[], Context] | None
) -> Tensor:
    """A projection with more rows behind each of its blocks, of which the first is number `place` of queries, keys and
    values: what the context head reads, else zero."""
    parts = []
    for number, (block, rows) in enumerate(zip(tensor.split(list(blocks)), added, strict=True), place):
        more = torch.zeros(rows, *tensor.shape[1:], dtype=tensor.dtype)
        if context is not None:
            read = context().evidence if number == 2 else context().asking
            more[: len(read)] = read.to(tensor.dtype)
        parts += [block, more]
    return torch.cat(parts)


def _writing(tensor: Tensor, added: int, context: Callable[[], Context] | None) -> Tensor:
    """The output projection with columns of zero; in the first layer the lane is written by the evidence alone."""
    more = torch.zeros(len(tensor), added, dtype=tensor.dtype)
    if context is None:
        return torch.cat([tensor, more], dim=1)
    written = context().written
    more[:, : written.shape[1]] = written.to(tensor.dtype)
    return torch.cat([context().without_lane(tensor), more], dim=1)


def without_context(trunk: Checkpoint, family: Family, config: PretrainedConfig) -> Callable[[str], Tensor]:
    """What gives a trunk's tensors by name, as they would be without a context head.

    Args:
        trunk: holds all tensors that an expert's trunk has; shapes may be wrong, and stay so.
        config: of the experts.

    Raises:
        IncompatibleExpertError: when a tensor is given: heads that the experts lack attend by more than distance.
    """
    layers, wide = range(config.num_hidden_layers), _wide(config)
    own = {name: rows for layer in layers for name, rows in family.input_blocks(config, layer).items()}
    wider = {name: rows for layer in layers for name, rows in family.input_blocks(wide, layer).items()}
    if any(trunk.shapes[f"{name}.weight"][:1] != (sum(rows),) for name, rows in wider.items()):
        return trunk.tensor
    outputs = {family.attention.output.format(layer=layer) + ".weight" for layer in layers}
    asking = {name.format(layer=layer): layer for layer in layers for name in family.attention.inputs[:2]}
    columns = config.num_attention_heads * head_dim(config)

    def tensor(name: str) -> Tensor:
        found, module = trunk.tensor(name), name.rpartition(".")[0]
        if name in outputs and found.dim() == 2:
            return found[:, :columns]
        if module not in own or len(found) != sum(wider[module]):
            return found
        parts = found.split(wider[module])
        if module in asking:
            added = torch.cat([part[rows:] for part, rows in list(zip(parts, own[module], strict=True))[:2]])
            if not _by_distance_alone(added, trunk, family, asking[module], config.rms_norm_eps):
                odd = "the trunk has heads that your expert lacks, and they attend by more than distance"
                raise IncompatibleExpertError(odd, where=name, todo="ask the operator how the trunk was merged")
        return torch.cat([part[:rows] for part, rows in zip(parts, own[module], strict=True)])

    return tensor


def _by_distance_alone(rows: Tensor, trunk: Checkpoint, family: Family, layer: int, epsilon: float) -> bool:
    """Whether queries or keys are the same for all tokens: in the first layer, where they read embeddings; in others
    they must be zero, and biases too."""
    if layer > 0 or rows.dim() != 2 or not bool(rows.any()):
        return not bool(rows.any())
    gain = trunk.tensor(str(family.attention.gain).format(layer=0)).double()
    expected = None
    for part in trunk.tensor(EMBEDDING).split(_ROWS):
        read = _normed(part.double()[part.any(dim=1)], epsilon) * gain @ rows.double().T
        expected = read.mean(dim=0) if expected is None else expected
        if not bool(((read - expected).abs() <= _ALIKE * expected.abs() + _SAME).all()):
            return False
    return True
