"""The loss under a trunk: a sample of the owner's text, scored by trunk and own MLPs and by the expert alone."""

import json
import math

import torch

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.memory.machine import is_out_of_memory
from moerge.models.dense import DenseWeights, domain_weights, expert_weights
from moerge.models.dense_files import DenseTrunk
from moerge.scoring.perplexity import Score, Window, windows
from moerge.scoring.streamed import streamed_model
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.sample import sample_of
from moerge_workers.contributing.context import Context

TOKENS = 4096
"""Tokens of the sample, at most `DOCUMENT_TOKENS` of each document."""
DOCUMENT_TOKENS = 512


class HarmfulTrunkError(MoergeError):
    """Trunk and own MLPs predict the owner's text far worse than the owner's expert does."""


def require_harmless(context: Context, trunk: str, weights: DenseTrunk) -> None:
    """Require a perplexity under the trunk with these `weights` within the policy's limit.

    Keeps the scores in the home, to compute them once per trunk and expert.

    Raises:
        HarmfulTrunkError: it exceeds the limit, or isn't finite.
        MoergeError: not enough memory.
    """
    path = context.settings.home / "losses" / f"{trunk}-{context.expert.digest[:12]}.json"
    if path.is_file():
        own, under = (Score(**load) for load in json.loads(path.read_bytes()))
    else:
        sample = _sample(context)
        if not sample:
            context.events.say("the loss under the trunk can't be measured, because no document has two tokens")
            return
        own, under = _scores(context, weights, sample)
        with atomic_file(path) as out:
            out.write(json.dumps([vars(own), vars(under)]).encode())
    limit = context.settings.policy.max_perplexity_ratio
    told = f"perplexity {_perplexity(under):.4g} with its own MLPs, {_perplexity(own):.4g} by the expert"
    if not (under.nll - own.nll) / own.tokens <= math.log(limit):
        raise HarmfulTrunkError(
            f"under trunk {trunk[:12]} a sample of the text has {told}; the limit is {limit:g} times the expert's",
            where="max_perplexity_ratio",
            todo="ask the operator how the trunk was merged; or raise max_perplexity_ratio in worker.toml's [policy]",
        )
    context.events.say(f"under the trunk a sample of the text has {told} (limit {limit:g} times)")


def _sample(context: Context) -> list[Window]:
    """Windows of the statistics documents with the lowest MACs under the owner's key, which nobody else can predict."""
    longest = max(2, min(context.settings.statistics.context, DOCUMENT_TOKENS))
    settings = StatisticsSettings(context=longest, tokens_per_document=DOCUMENT_TOKENS)
    title = "choosing documents to score"
    sample = sample_of(context.data, context.events, settings, TOKENS, 1, title, by_key=True)
    rows = [row for document in sample for row in document]
    return [window for window in windows(rows, longest, longest - 1) if window.scored]


def _scores(context: Context, weights: DenseTrunk, sample: list[Window]) -> tuple[Score, Score]:
    """The sample's scores by the expert, and by trunk and own MLPs; one layer in memory at a time."""
    settings, expert = context.settings, context.expert
    device = settings.device if torch.cuda.is_available() else "cpu"
    longest = max(len(window.tokens) for window in sample)

    def scored(weights: DenseWeights, title: str) -> Score:
        with context.events.track(title, sum(window.scored for window in sample), "tokens") as tracker:
            model = streamed_model(weights, settings.statistics.precision, device, longest, settings.host_memory)
            result = model.score(sample, tracker)
        del model
        if device == "cuda":
            torch.cuda.empty_cache()  # for the slots
        return result

    context.events.enter(Stage.EVALUATING)
    torch.set_num_threads(settings.slots)
    try:
        return (
            scored(expert_weights(expert), "scoring a sample by the expert"),
            scored(domain_weights(expert, weights), "scoring it by trunk and own MLPs"),
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        todo = "use a larger machine, or `precision` bfloat16"
        raise MoergeError("not enough memory to score a sample of the text", where="memory", todo=todo) from error


def _perplexity(found: Score) -> float:
    mean = found.nll / found.tokens
    return math.exp(mean) if mean < 700 else math.inf
