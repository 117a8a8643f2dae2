"""The sums of a pass over some rows: streamed, and with the whole model in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.documents.shards import Shard
from moerge.models.batches import Batch, batches
from moerge.models.dense import place
from moerge.models.families.family import Family, mlp_layers
from moerge.models.families.registry import family_of
from moerge.models.tokens import Tokens
from moerge.statistics.accumulate import ShardSums, Sum
from moerge.statistics.features import Ready, Visit, counted_rows, placed, ready, run
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.passes import BodyPass, HeadPass, Pass, RouterPass
from moerge.statistics.streamed import Leaving, Streamed
from moerge.statistics.transfers import transfers_of
from moerge_proto.statistics_file import Int64
from support.models import on_body


def sums_of(
    work: Pass, rows: Iterable[Tokens | Sequence[int]], batch_tokens: int = 512, documents: int | None = None
) -> ShardSums:
    """The sums of rows as one shard, of all layers; by default each is a document."""
    given = [row if isinstance(row, Tokens) else Tokens(row) for row in rows]
    shard = Shard("one", given, len(given) if documents is None else documents)
    streamed, arrays = Streamed(work, batch_tokens), dict[str, Int64]()
    for _ in range(streamed.begin([shard]), streamed.layers):
        result = streamed.sums([shard.name])
        assert result is not None
        arrays |= result.arrays
    return ShardSums(arrays, shard.tokens, shard.documents)


def own_pass(folder: Path, layers: int) -> RouterPass:
    """A router pass of the expert in a folder under its own body."""
    return RouterPass(*on_body(folder, folder / "model.safetensors"), [16] * layers)


def visit_features(model: PreTrainedModel, batch: Batch, visit: Visit) -> None:
    """Calls visit(layer, x), x [n, H], with the features of every layer, from one call of the decoder."""
    pattern = family_of(model.config).mlp_module
    modules = {n: model.get_submodule(pattern.format(layer=at)) for n, at in enumerate(mlp_layers(model.config))}
    read = ready(model, batch, model.device)
    run(model, read, _ids(model, read), modules, visit, modules[len(modules) - 1])


def visit_body_inputs(model: PreTrainedModel, family: Family, batch: Batch, visit: Visit) -> None:
    """Calls visit(i, x), x [n, H or A], with the vectors of the i-th gram of a body contribution."""
    layers = [(item.inputs[0], item.output) for item in family.attentions(model.config)]
    names = [name for layer in layers for name in layer if name is not None]
    modules = {number: model.get_submodule(name) for number, name in enumerate(names[1:])}
    read = ready(model, batch, model.device)
    run(model, read, _ids(model, read), modules, visit, modules[len(modules) - 1])


def visit_head_inputs(model: PreTrainedModel, batch: Batch, visit: Visit) -> None:
    """Calls visit(0, x), x [n, H], with the inputs of the head."""
    read = ready(model, batch, model.device)
    visit(0, counted_rows(run(model, read, _ids(model, read), {}, visit), read))


def _ids(model: PreTrainedModel, batch: Ready) -> dict[str, Any]:
    return {"input_ids": placed(batch.ids, model.device)}


def whole_model(work: Pass) -> PreTrainedModel:
    """The pass's model, on its device."""
    model = work.weights().model(getattr(torch, work.precision))
    place(model, work.device)
    packs = work.expert.family.packs(work.expert.config)
    if work.device == "cuda" and work.precision == "bfloat16" and packs:
        model.set_attn_implementation(PACKED)
    return model


def whole_sums(work: Pass, rows: Sequence[Tokens], batch_tokens: int = 512) -> ShardSums:
    """The same sums by one call of transformers per micro-batch, with the whole model in memory."""
    return sums_by(whole_model(work), work, rows, batch_tokens)


def sums_by(model: PreTrainedModel, work: Pass, rows: Sequence[Tokens], batch_tokens: int) -> ShardSums:
    """Those of a pass's model in memory."""
    inputs = [item for layer in work.inputs() for item in layer]
    sums = [Sum() for _ in inputs]
    tokens = torch.zeros(0, dtype=torch.int64)

    def visit(number: int, x: Tensor) -> None:
        sums[number].add(x)

    for batch in batches(rows, batch_tokens, chunk=work.expert.family.chunk(work.expert.config)):
        match work:
            case RouterPass():
                visit_features(model, batch, visit)
            case BodyPass():
                visit_body_inputs(model, family_of(model.config), batch, visit)
                tokens = torch.cat([tokens, batch.input_ids[batch.counted]])
            case HeadPass():
                visit_head_inputs(model, batch, visit)
    arrays = Leaving(inputs, sums, transfers_of(torch.device(work.device))).arrays()
    if isinstance(work, BodyPass):
        arrays = {"token_counts": torch.bincount(tokens, minlength=model.config.vocab_size).numpy(), **arrays}
    return ShardSums(arrays, sum(row.count for row in rows), len(rows))
