"""Twins: merged bodies with a matrix of an earlier one. Their sums may differ by the text behind a single token."""

import hashlib

import torch
from torch import Tensor

from moerge.models.dense_files import Dense, DenseFiles
from moerge_proto.bodies import Body
from moerge_workers.contributing.context import Context


def look(context: Context, body: Body, weights: Dense) -> None:
    """Record a new merged body's matrices, and whether it is a twin, about which the outbox then asks the owner.

    Earlier bodies are those under which something left.

    A merge from other experts changes every matrix, except one that nobody trained. That is the own expert's or the own
    seed's, and no sign of a twin.
    """
    history = context.outbox.history
    if body.digest in history.compared():
        return
    digests = _matrices(weights)
    for name, other in history.same_matrices(body.digest, digests):
        if not _is_untrained(context, weights, name):
            history.note_twin(body.digest, f"{name} is bit by bit that of body {other[:12]}")
            break
    history.note_matrices(body.digest, digests)


def _matrices(weights: Dense) -> dict[str, str]:
    """Name -> SHA-256 of each tensor with rows and columns."""
    file = weights.checkpoint
    return {name: _sha256(file.tensor(name)) for name, spec in file.specs.items() if len(spec.shape) > 1}


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().data).hexdigest()


def _is_untrained(context: Context, weights: Dense, name: str) -> bool:
    seed, merged = context.settings.seed, weights.checkpoint.tensor(name)
    own = [context.expert, *([] if seed is None else [DenseFiles(seed)])]
    tensors = [model.checkpoint.tensor(name) for model in own if name in model.checkpoint.specs]
    return any(torch.equal(tensor.to(merged.dtype), merged) for tensor in tensors if tensor.shape == merged.shape)
