"""The loss on the pool, short public texts that come with the library, which everybody can compute."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from moerge.documents.pool import encoded_pool
from moerge.memory.machine import free_for
from moerge.memory.room import states_for
from moerge.models.weights import Weights
from moerge.progress import Tracker
from moerge.scoring.perplexity import Window, windows
from moerge.scoring.routers import RouterHook
from moerge.scoring.streamed import StreamedModel, need_of, streamed_model

_TOKENS = 64
"""Most tokens of a text."""
_PRECISION, _DEVICE = "float32", "cpu"


def public_windows(tokenizer: PreTrainedTokenizerBase) -> list[Window]:
    """One window for the beginning of each text of the pool."""
    return windows(encoded_pool(tokenizer, _TOKENS), _TOKENS, _TOKENS - 1)


def require_memory(weights: Weights) -> None:
    """Requires memory for `public_loss`; MoergeError: too little, says by how much."""
    states_for(need_of(weights.config, _PRECISION, _TOKENS, _DEVICE), free_for(_DEVICE))


def public_loss(weights: Weights, cut: Sequence[Window], tracker: Tracker, hook: RouterHook | None = None) -> float:
    """The mean negative log-likelihood of the windows' tokens, in nats; `hook`: see `StreamedModel`."""
    model: StreamedModel = streamed_model(weights, _PRECISION, _DEVICE, _TOKENS, hook=hook)
    score = model.score(cut, tracker)
    return score.nll / score.tokens
