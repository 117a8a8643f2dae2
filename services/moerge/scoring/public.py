"""The loss on the pool, short public texts that come with the library, which everybody can compute."""

from collections.abc import Sequence

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from moerge.documents.pool import encoded_pool
from moerge.memory.machine import free_for
from moerge.memory.needs import Need
from moerge.memory.room import states_for
from moerge.models.weights import Weights
from moerge.progress import Tracker
from moerge.scoring.perplexity import Window, windows
from moerge.scoring.routers import RouterHook
from moerge.scoring.streamed import need_of as need_of_scoring
from moerge.scoring.streamed import streamed_model

_TOKENS = 64
"""Most tokens of a text."""
_PRECISION, _DEVICE = "float32", "cpu"


def public_windows(tokenizer: PreTrainedTokenizerBase) -> list[Window]:
    """One window for the beginning of each text of the pool."""
    return windows(encoded_pool(tokenizer, _TOKENS), _TOKENS, _TOKENS - 1)


def need_of(config: PretrainedConfig) -> Need:
    """The memory of `public_loss`, by the config of the version."""
    return need_of_scoring(config, _PRECISION, _TOKENS, _DEVICE)


def require_memory(config: PretrainedConfig) -> None:
    """Requires memory for `public_loss`; MoergeError: too little, says by how much."""
    states_for(need_of(config), free_for(_DEVICE))


def public_loss(weights: Weights, cut: Sequence[Window], tracker: Tracker, hook: RouterHook | None = None) -> float:
    """The mean negative log-likelihood of the windows' tokens, in nats; `hook`: see `StreamedModel`."""
    model = streamed_model(weights, _PRECISION, _DEVICE, _TOKENS, hook=hook)
    score = model.score(cut, tracker)
    return score.nll / score.tokens
