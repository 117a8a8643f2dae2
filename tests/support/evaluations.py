"""Scores of versions: sums on held-out documents, and results on tasks."""

from datetime import UTC, datetime
from typing import Any

from moerge_proto.evaluations import Evaluation, NewEvaluation, Perplexity, TaskResult


def result(task: str = "arc_easy", value: float = 0.5, error: float | None = 0.02, **change: Any) -> TaskResult:
    """A result on 400 questions."""
    sent = {
        "task": task, "metric": "acc", "value": value, "standard_error": error, "questions": 400,
        "task_version": "1.0", "limit": 400, "seed": 0, "data": "a" * 64, "harness": "lm_eval 0.4.13",
    }  # fmt: skip
    return TaskResult.model_validate(sent | change)


def sums(expert: str = "1" * 64, nll: float = 25.0, domain: str = "law", **change: Any) -> Perplexity:
    """Sums over ten tokens, in two layers and over two experts; the dense expert has 20 nats."""
    sent = {
        "domain": domain, "expert": expert, "documents": 2, "context": 8, "stride": 4,
        "dense": {"nll": 20.0, "tokens": 10}, "version": {"nll": nll, "tokens": 10},
        "oracle": {"nll": 22.0, "tokens": 10}, "routed": [[9, 1], [5, 5]],
    }  # fmt: skip
    return Perplexity.model_validate(sent | change)


def evaluation(number: int, *scores: Perplexity | TaskResult) -> NewEvaluation:
    """A report on a version, by default of one result."""
    return NewEvaluation(number=number, scores=[*scores] or [result()])


def reported(score: Perplexity | TaskResult, owner: str | None = None, number: int = 1) -> Evaluation:
    """A reported score; without `owner`, by the operator."""
    when = datetime(2026, 11, 25, tzinfo=UTC)
    return Evaluation(
        number=number, digest="0" * 64, version=1, owner=owner, active=True, created=when, score=score
    )  # fmt: skip
