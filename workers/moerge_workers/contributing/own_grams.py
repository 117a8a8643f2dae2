"""Grams of the owner's own expert, to compare trunks with. They never leave."""

from pathlib import Path

from moerge.documents.shards import enough
from moerge.statistics.contribution import Computing, trunk_contribution
from moerge_proto.progress import Stage
from moerge_workers.computing.sample import sample_of
from moerge_workers.contributing.context import Context

_MOST_TOKENS = 2**16


def sampled_grams(context: Context) -> Path:
    """The file of the grams, computed once per expert from a sample of the statistics' documents: 64 H tokens, at most
    65,536."""
    settings, expert, events = context.settings, context.expert, context.events
    path = settings.home / "own-grams" / f"{expert.digest}.safetensors"
    if path.is_file():
        return path
    path.parent.mkdir(exist_ok=True)
    tokens = min(enough(expert.config.hidden_size), _MOST_TOKENS)
    title = "choosing documents to compare trunks with"
    sample = sample_of(context.data, events, settings.statistics, tokens, 1, title)
    events.enter(Stage.COMPUTING)
    computing = Computing(settings.device, settings.slots, settings.host_memory, progress=events)
    rows = [row for document in sample for row in document]
    return trunk_contribution(expert, rows, path, settings.statistics, computing, rare_below=0)
