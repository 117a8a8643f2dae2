"""Outgoing data, a closed list (law 1): what the owner reads about each kind before it leaves."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.console import RenderableType
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from moerge.statistics.describe import describe
from moerge.versions.evaluations import figure
from moerge_proto.evaluations import NewEvaluation, Perplexity, Scored

PARTS_REVEAL = (
    "What this reveals:\n"
    "  - MLPs, last norm and head: with the seed's body anyone can run them, and probe them for text\n"
    "  - every consumer of a version gets the MLPs, and its head, which is merged from all experts'\n"
    "  - of a tied model the head is the embedding, which thereby leaves\n"
    "  - not: the expert's attention"
)

EVALUATION_REVEALS = (
    "What this reveals:\n"
    "  - how well your expert and the version predict your held-out text, and its amount\n"
    "  - the version's choices of experts for it, layer by layer\n"
    "  - anyone who has the expert and guesses all held-out documents can check the guess\n"
    "  - together with an evaluation of nearly the same documents: how well the differing ones are predicted\n"
    "  - not: the text, its tokens, the prediction of a single token"
)

TASKS_REVEAL = (
    "What this reveals:\n"
    "  - the version's results on these tasks, and their names; on a task of your own text, how well it answers that\n"
    "  - the digest of a file of questions: someone who has the file, or guesses it, can recognise it\n"
    "  - to operators, readers and whoever gets the model card from them; not to other owners\n"
    "  - not: the questions, the answers"
)
_SHOWN = {"task", "metric", "value", "standard_error"}


def _expert(folder: Path) -> Iterator[RenderableType]:
    from moerge.models.dense_files import DenseFiles
    from moerge.models.expert_folder import expert_files

    expert = DenseFiles(folder)
    files = Table("file", "size", title="Parts of the expert")
    for name, path in expert_files(expert).items():
        files.add_row(escape(name), decimal(path.stat().st_size))
    yield files
    yield PARTS_REVEAL


def _evaluation(path: Path) -> Iterator[RenderableType]:
    sent = NewEvaluation.model_validate_json(path.read_bytes())
    fields = Table(title=f"Evaluation of version {sent.number}", show_header=False)
    reveals = TASKS_REVEAL
    for score in sent.scores:
        if isinstance(score, Perplexity):
            reveals = EVALUATION_REVEALS
            for name, value in score:
                is_sum = isinstance(value, Scored)
                shown = f"{value.nll:,.3f} nats, perplexity {value.perplexity:,.3f}" if is_sum else value
                fields.add_row(name, escape(str(shown)))
        else:
            more = ", ".join(f"{name} {value}" for name, value in score.model_dump(exclude=_SHOWN).items())
            fields.add_row(score.name, figure(score.value, score.standard_error), more)
    yield fields
    yield reveals


OUTGOING: Mapping[str, Callable[[Path], Iterator[RenderableType]]] = {
    "expert": _expert,
    "head": describe,
    "router": describe,
    "evaluation": _evaluation,
    "task": _evaluation,
}
"""Kind -> description of its file, or of an expert's folder. `Policy.allows` has the owner's switch for each."""
