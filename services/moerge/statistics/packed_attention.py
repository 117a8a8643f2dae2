"""Documents end to end without padding, for a GPU: variable-length attention keeps them apart."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from moerge.models.batches import Batch

PACKED = "moerge_packed"  # the name in transformers


def packed_positions(batch: Batch) -> dict[str, Any]:
    """The decoder's arguments for a batch as one row of n tokens: positions [1, n], and documents' starts [B + 1]."""
    ends = batch.lengths.cumsum(dim=0)
    positions = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends - batch.lengths, batch.lengths)
    return {
        "position_ids": positions[None],
        "cu_seq_lens_q": torch.cat([torch.zeros(1, dtype=torch.int32), ends.to(torch.int32)]),
        "max_length_q": int(batch.lengths.max()),
    }


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor,
    max_length_q: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Causal attention within each document. query [1, heads, n, d], key and value [1, key heads, n, d]."""
    if not query.is_cpu:
        q, k, v = (item[0].transpose(0, 1).contiguous() for item in (query, key, value))
        starts, longest = cu_seq_lens_q, max_length_q
        window = (sliding_window - 1 if sliding_window else -1, 0)
        k, v = (item.repeat_interleave(q.shape[1] // item.shape[1], dim=1) for item in (k, v))
        attended = varlen_attn(q, k, v, starts, starts, longest, longest, scale=scaling, window_size=window)
        return (attended if isinstance(attended, Tensor) else attended[0])[None], None
    documents = []
    for start, stop in pairwise(cu_seq_lens_q.tolist()):
        q, k, v = (item[:, :, start:stop] for item in (query, key, value))
        far = torch.arange(stop - start)[:, None] - torch.arange(stop - start)
        near = (far >= 0) & (far < (sliding_window or stop))
        documents.append(scaled_dot_product_attention(q, k, v, attn_mask=near, scale=scaling, enable_gqa=True))
    return torch.cat(documents, dim=2).transpose(1, 2), None


AttentionInterface.register(PACKED, _attend)
