"""A context head: one more group of attention heads, by which routers see what the text so far is about.

A router reads one token's vector, and in the first layer that has seen little else of the text. The added heads have
no queries, so they attend to all tokens so far alike, in the first layer to what is linear in an embedding of the
logarithm of how much likelier its token is in each domain (the evidence of naive Bayes), and write its mean into a few
directions of the residual that embeddings hardly use. In the layers behind they are zero. All of it follows from the
merged embedding and from how often each token stood in each domain, and the model's class stays what it is.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.architectures.families import EMBEDDING, Family, head_dim
from moerge.checkpoint.reader import Checkpoint
from moerge.checkpoint.writer import TensorPlan
from moerge.errors import IncompatibleExpertError
from moerge.routers.ridge import one_thread

SIZE = 0.2
"""How large what is written is where one domain differs from the others, by the size of an embedding."""
_ROWS = 4096
_RIDGE = 1e-4
_SAME = 1e-6


class Context(NamedTuple):
    """What the heads read and write, in n directions; float64.

    Attributes:
        lane: [H, n] orthonormal, the directions of the residual that are written to; embeddings have nothing there.
        evidence: [n, H], applied to what the first layer's attention reads.
        written: [H, n], what a unit of evidence adds to the residual.
    """

    lane: Tensor
    evidence: Tensor
    written: Tensor

    def without_lane(self, tensor: Tensor) -> Tensor:
        """[H, any], with nothing in the lane."""
        return (tensor.double() - self.lane @ (self.lane.T @ tensor.double())).to(tensor.dtype)


def context_of(embedding: Tensor, gain: Tensor, counts: Tensor, most: int, epsilon: float) -> Context:
    """Solves for what the context heads do.

    Args:
        embedding: [V, H], the trunk's.
        gain: [H], of the norm that the first layer's attention reads through.
        counts: [D, V] float64, how often each token stood in each domain's text.
        most: how many directions there may be; D - 1 tell all.
        epsilon: of that norm.
    """
    domains, hidden = len(counts), embedding.shape[1]
    directions = min(domains - 1, most)
    chances = (counts + 1) / (counts + 1).sum(dim=1, keepdim=True)
    frequency = chances.mean(dim=0)
    square, cross = torch.zeros(hidden, hidden).double(), torch.zeros(hidden, domains).double()
    means, power = torch.zeros(domains, hidden).double(), 0.0
    for start in range(0, len(embedding), _ROWS):
        rows, part = slice(start, start + _ROWS), embedding[start : start + _ROWS].double()
        sizes = (part.pow(2).mean(dim=1, keepdim=True) + epsilon).sqrt()
        read, weights, logs = part / sizes, frequency[rows, None], chances[:, rows].log()
        square += read.T @ (weights * read)
        cross += read.T @ (weights * (logs - logs.mean(dim=0)).T)
        means += chances[:, rows] @ read
        power += float((weights * part.pow(2)).sum())
    lane = torch.linalg.eigh(square).eigenvectors[:, :directions]
    rest = torch.eye(hidden).double() - lane @ lane.T
    square = rest @ square @ rest
    readout = torch.linalg.solve(square + _RIDGE * square.diagonal().mean() * torch.eye(hidden), rest @ cross)
    apart = means @ readout
    _, spread, axes = torch.linalg.svd(apart - apart.mean(dim=0))
    spread, axes = spread[:directions, None] / domains**0.5, axes[:directions]
    told = (spread > _SAME) & (gain != 0)  # domains may have the same tokens
    evidence = torch.where(told, axes @ readout.T / spread / gain.double(), 0.0)
    return Context(lane, evidence, lane * SIZE * (power / directions) ** 0.5)


def require_contextual(family: Family) -> None:
    """Requires that heads can be added to the family's attention.

    Raises:
        IncompatibleExpertError: they can't.
    """
    if family.attention.gain is None:
        found = f"{family.model_type} normalises the queries of all heads together, so that none can be added"
        raise IncompatibleExpertError(found, where="method", todo="merge the trunk by regmean")


def with_context(
    plans: Sequence[TensorPlan], counts: Sequence[Tensor], family: Family, config: PretrainedConfig
) -> list[TensorPlan]:
    """The same trunk with context heads; of one domain it stays as it is.

    Args:
        plans: the trunk's tensors, in the dense family's names.
        counts: one domain's tokens each, [V_d] float64; vocabularies may end sooner than the trunk's.
        config: of the experts.

    Raises:
        IncompatibleExpertError: heads can't be added to the family's attention.
    """
    require_contextual(family)
    if len(counts) < 2:
        return list(plans)
    named = {plan.name: plan for plan in plans}
    embedding, gain = named[EMBEDDING], named[str(family.attention.gain).format(layer=0)]

    @cache
    def context() -> Context:
        padded = torch.zeros(len(counts), embedding.shape[0], dtype=torch.float64)
        for row, own in zip(padded, counts, strict=True):
            row[: len(own)] = own
        rows, norm = embedding.compute(), gain.compute()
        with one_thread():
            return context_of(rows, norm, padded, head_dim(config), config.rms_norm_eps)

    def change(name: str, by: Callable[[Tensor], Tensor], rows: int = 0, columns: int = 0) -> None:
        plan = named[name]
        shape = (plan.shape[0] + rows, *(size + columns for size in plan.shape[1:]))
        named[name] = replace(plan, shape=shape, compute=lambda: by(plan.compute()))

    change(EMBEDDING, lambda tensor: context().without_lane(tensor.T).T.contiguous())
    wide = _wide(config)
    columns = (wide.num_attention_heads - config.num_attention_heads) * head_dim(config)
    for layer in range(config.num_hidden_layers):
        asked = context if layer == 0 else None
        own, wider = family.input_blocks(config, layer), family.input_blocks(wide, layer)
        for module, blocks in own.items():
            added = [more - rows for rows, more in zip(blocks, wider[module], strict=True)]
            values = asked if module == list(own)[-1] else None
            change(f"{module}.weight", partial(_reading, blocks=blocks, added=added, context=values), sum(added))
            if f"{module}.bias" in named:
                change(f"{module}.bias", partial(_reading, blocks=blocks, added=added, context=None), sum(added))
        output = family.attention.output.format(layer=layer) + ".weight"
        change(output, partial(_writing, added=columns, context=asked), columns=columns)
    return [named[plan.name] for plan in plans]


def _wide(config: PretrainedConfig) -> PretrainedConfig:
    """The config with one more group of heads."""
    wide, width = copy(config), head_dim(config)
    wide.num_attention_heads += config.num_attention_heads // config.num_key_value_heads
    wide.num_key_value_heads += 1
    wide.head_dim = width
    return wide


def without_context(trunk: Checkpoint, family: Family, config: PretrainedConfig) -> Callable[[str], Tensor]:
    """What gives a trunk's tensors by name, as they would be without context heads.

    Args:
        trunk: holds all tensors that an expert's trunk has; shapes may be wrong, and stay so.
        config: of the experts.

    Raises:
        IncompatibleExpertError: when a tensor is given: heads that the experts lack attend to some tokens more.
    """
    layers, wide = range(config.num_hidden_layers), _wide(config)
    own = {name: rows for layer in layers for name, rows in family.input_blocks(config, layer).items()}
    wider = {name: rows for layer in layers for name, rows in family.input_blocks(wide, layer).items()}
    if any(trunk.shapes[f"{name}.weight"][:1] != (sum(rows),) for name, rows in wider.items()):
        return trunk.tensor
    queries = {family.attention.inputs[0].format(layer=layer) for layer in layers}
    outputs = {family.attention.output.format(layer=layer) + ".weight" for layer in layers}
    columns = config.num_attention_heads * head_dim(config)

    def tensor(name: str) -> Tensor:
        found, module = trunk.tensor(name), name.rpartition(".")[0]
        if name in outputs and found.dim() == 2:
            return found[:, :columns]
        if module not in own or len(found) != sum(wider[module]):
            return found
        parts = found.split(wider[module])
        if module in queries and bool(parts[0][own[module][0] :].any()):
            odd = "the trunk has heads that your expert lacks, and they don't attend to all tokens alike"
            raise IncompatibleExpertError(odd, where=name, todo="ask the operator how the trunk was merged")
        return torch.cat([part[:rows] for part, rows in zip(parts, own[module], strict=True)])

    return tensor


def _reading(
    tensor: Tensor, blocks: Sequence[int], added: Sequence[int], context: Callable[[], Context] | None
) -> Tensor:
    """A projection with rows of zero behind each of its blocks; behind the last one, that of values, the evidence."""
    parts = []
    for block, rows in zip(tensor.split(list(blocks)), added, strict=True):
        parts += [block, torch.zeros(rows, *tensor.shape[1:], dtype=tensor.dtype)]
    if context is not None:
        evidence = context().evidence
        parts[-1][: len(evidence)] = evidence.to(tensor.dtype)
    return torch.cat(parts)


def _writing(tensor: Tensor, added: int, context: Callable[[], Context] | None) -> Tensor:
    """The output projection with columns of zero; in the first layer the lane is written by the evidence alone."""
    more = torch.zeros(len(tensor), added, dtype=tensor.dtype)
    if context is None:
        return torch.cat([tensor, more], dim=1)
    written = context().written
    more[:, : written.shape[1]] = written.to(tensor.dtype)
    return torch.cat([context().without_lane(tensor), more], dim=1)
