"""The checks of a body before work under it: identity with the seed's; of a merged one, budget and bounds."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch

from moerge.documents.shards import enough
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import atomic_file, file_sha256
from moerge.memory.machine import is_out_of_memory
from moerge.models.dense import DenseWeights, domain_weights, expert_weights
from moerge.models.dense_files import DenseBody
from moerge.scoring.perplexity import Score, Window, windows
from moerge.scoring.streamed import streamed_model
from moerge.statistics.contribution import Computing, body_contribution
from moerge.trunk.merge import DENSE_BODY_FILE
from moerge.trunk.stray import require_near
from moerge_proto.bodies import Body
from moerge_proto.progress import Obstacle, Stage
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.contributing import seed, twins
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.seed import OtherBodyError
from moerge_workers.policy import Policy, body_kind

TOKENS = 4096
"""Tokens of the scored sample, at most `DOCUMENT_TOKENS` of each document."""
DOCUMENT_TOKENS = 512
_MOST_GRAM_TOKENS = 2**16


def checked_body(
    context: Context, body: Body, own_grams: Path | None, outdated: Callable[[], bool]
) -> DenseBody | None:
    """The tensors of a body under which data may leave.

    A seed's are those of the owner's own copy: nothing is downloaded, and no text is read. A merged body's are
    downloaded; it is within the owner's budget and no twin, or the owner agreed; it is near the expert, and harmless.
    A comparison uses up the budget,
    whatever its result, because a refusal reveals one bit about the text.

    Args:
        own_grams: file of the expert's own body contribution; default: grams of a sample.
        outdated: whether the question to the owner is outdated.

    Returns:
        None: the owner must agree.

    Raises:
        IncompatibleExpertError: the policy forbids bodies of its kind, or it isn't the own seed's; a merged one strays
            too far, its loss is too high, or another file had its name before.
        MoergeError: `seed` isn't set, or not enough memory to score the sample.
    """
    require_allowed(context, body)
    if body_kind(body.method) == "seed":
        return _own_body(context, body)
    most = context.settings.policy.max_stray
    try:
        weights = _downloaded(context, body)
        path = weights.checkpoint.path
        _require_same_file(context, body, file_sha256(path))
        twins.look(context, body, weights)
        if not context.outbox.may_compare(context.outbox.body_use(body.digest, path), outdated):
            return None
        stray = require_near(context.expert, weights, most, own_grams or sampled_grams(context))
        context.events.say(f"{stray}; max_stray is {most:g}")
        _require_harmless(context, body.digest, weights)
    except IncompatibleExpertError:
        context.events.hindered(Obstacle.BODY_REFUSED)  # one word for all refusals
        raise
    return weights


def present_body(context: Context, body: Body) -> DenseBody | None:
    """The tensors of a body on this machine: the own seed's, or a merged body that was downloaded before; None: none.

    Raises:
        IncompatibleExpertError: it isn't the own seed's, or another file had its name before.
    """
    if body_kind(body.method) == "seed":
        return None if context.settings.seed is None else _own_body(context, body)
    path = context.settings.home / "bodies" / body.digest / DENSE_BODY_FILE
    if not path.is_file():
        return None
    _require_same_file(context, body, file_sha256(path))
    return DenseBody(path, context.expert.config)


def require_allowed(context: Context, body: Body) -> None:
    """As `require_kind`, and records a refusal."""
    try:
        require_kind(context.settings.policy, body)
    except OtherBodyError:
        context.events.hindered(Obstacle.BODY_REFUSED)
        raise


def require_kind(policy: Policy, body: Body) -> None:
    """Require a policy that allows bodies of this kind; OtherBodyError: it doesn't."""
    kind, allowed = body_kind(body.method), policy.bodies
    if kind not in allowed:
        what = "merged from experts" if kind == "merged" else "a seed's own"
        problem = f"body {body.digest[:12]} is {what}; the policy allows bodies = {json.dumps(allowed)}"
        others = "" if kind == "seed" else "ask the operator for the seed's body (moerge coordinator seed); or "
        todo = f'{others}add "{kind}" to bodies in worker.toml\'s [policy]'
        raise OtherBodyError(problem, where="policy.bodies", todo=todo)


def _own_body(context: Context, body: Body) -> DenseBody:
    """The body of the own copy of the seed, after the comparison with the coordinator's."""
    settings = context.settings
    own = seed.own_seed(settings.seed, body.source)
    try:
        seed.require_expert_of_seed(context.expert, own)
        context.events.say(f"comparing body {body.digest[:12]} with your own copy of the seed: {own.folder}")
        weights = seed.own_body(own, settings.home / "seed", context.events)
        _require_same_file(context, body, seed.require_same_body(weights, body))
    except IncompatibleExpertError:
        context.events.hindered(Obstacle.BODY_REFUSED)
        raise
    seed.remove_others(weights)
    context.events.say(f"body {body.digest[:12]} is your seed's, byte for byte; nothing is downloaded")
    return weights


def _require_same_file(context: Context, body: Body, sha256: str) -> None:
    """Require that no other file had the body's name before, so that a seed's name exempts only the seed's file."""
    if not context.outbox.history.bind(body.digest, sha256):
        problem = f"the coordinator served another file under the name of body {body.digest[:12]} before"
        raise OtherBodyError(problem, where=DENSE_BODY_FILE, todo="ask the operator why")


def _downloaded(context: Context, body: Body) -> DenseBody:
    folder = context.settings.home / "bodies" / body.digest
    context.events.enter(Stage.DOWNLOADING)
    place = f"/v1/bodies/{body.digest}/files"
    context.client.download(place, body.files, folder, context.events, title="downloading the body")
    return DenseBody(folder / DENSE_BODY_FILE, context.expert.config)


def sampled_grams(context: Context) -> Path:
    """The file of the expert's own grams, from a sample of the statistics documents: 64 H tokens, at most 65,536.

    Computed once per expert; it never leaves. As in contributions, counts of rare tokens are 0, so that refusals don't
    depend on them.
    """
    settings, expert, events = context.settings, context.expert, context.events
    path = settings.home / "own-grams" / f"{expert.digest}.safetensors"
    if path.is_file():
        return path
    path.parent.mkdir(exist_ok=True)
    tokens = min(enough(expert.config.hidden_size), _MOST_GRAM_TOKENS)
    sample = context.sample(settings.statistics, tokens, 1, "choosing documents to compare bodies with")
    events.enter(Stage.COMPUTING)
    computing = Computing(settings.device, settings.slots, settings.host_memory, progress=events)
    rows = [row for document in sample for row in document]
    return body_contribution(expert, rows, path, settings.statistics, computing, settings.rare_below)


def _require_harmless(context: Context, body: str, weights: DenseBody) -> None:
    """Require a perplexity under the body within the policy's limit.

    The scores are kept in the home, and computed once per body and expert.
    """
    path = context.settings.home / "losses" / f"{body}-{context.expert.digest[:12]}.json"
    if path.is_file():
        own, under = (Score(**load) for load in json.loads(path.read_bytes()))
    else:
        sample = _scored_sample(context)
        if not sample:
            context.events.say("the loss under the body can't be measured, because no document has two tokens")
            return
        own, under = _scores(context, weights, sample)
        with atomic_file(path) as out:
            out.write(json.dumps([vars(own), vars(under)]).encode())
    limit = context.settings.policy.max_perplexity_ratio
    scores = f"perplexity {_perplexity(under):.4g} with its own MLPs and head, {_perplexity(own):.4g} by the expert"
    if not (under.nll - own.nll) / own.tokens <= math.log(limit):
        raise IncompatibleExpertError(
            f"under body {body[:12]} a sample of the text has {scores}; the limit is {limit:g} times the expert's",
            where="max_perplexity_ratio",
            todo="ask the operator how the body was merged; or raise max_perplexity_ratio in worker.toml's [policy]",
        )
    context.events.say(f"under the body a sample of the text has {scores} (limit {limit:g} times)")


def _scored_sample(context: Context) -> list[Window]:
    """Windows of the statistics documents with the lowest MACs under the owner's key, which nobody else can predict."""
    longest = max(2, min(context.settings.statistics.context, DOCUMENT_TOKENS))
    settings = StatisticsSettings(context=longest, tokens_per_document=DOCUMENT_TOKENS)
    sample = context.sample(settings, TOKENS, 1, "choosing documents to score", by_key=True)
    rows = [row for document in sample for row in document]
    return [window for window in windows(rows, longest, longest - 1) if window.scored]


def _scores(context: Context, weights: DenseBody, sample: list[Window]) -> tuple[Score, Score]:
    """The sample's scores by the expert, and by body, own MLPs and own head."""
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
            scored(domain_weights(expert, weights), "scoring it by body, own MLPs and head"),
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        todo = "use a larger machine, or `precision` bfloat16"
        raise MoergeError("not enough memory to score a sample of the text", where="memory", todo=todo) from error


def _perplexity(score: Score) -> float:
    mean = score.nll / score.tokens
    return math.exp(mean) if mean < 700 else math.inf
