"""`moerge benchmark`"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from moerge.errors import MoergeError
from moerge.terminal import AsJson, Screen, echo, output, show_json

_RUN = "run"


class _Group(TyperGroup):
    """A group whose command `run` needs no name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] != "--help" and args[0] not in self.commands:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else [_RUN, *args])


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Compare versions with their seed and experts on public tasks. The word run may be left out.",
)


@app.command(_RUN)
def run(
    versions: Annotated[
        list[str],
        typer.Argument(metavar="VERSION…", help="DIR or NAME=DIR: a version, or another model to compare."),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            help="TASK or TASK=EXPERT, with commas between: tasks of `moerge benchmark fetch` and their own experts. "
            "paper: those of DUME's table 3 but HumanEval. Default expert: the best one of the row."
        ),
    ],
    expert: Annotated[
        list[str] | None, typer.Option(help="NAME=DIR or NAME=HUB/ID@REVISION: a dense expert or PEFT adapter; repeat.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="DIR or HUB/ID of the experts' seed model.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the tasks' data.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="First questions of each task. Default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put gsm8k and ifeval through the models' chat templates.")
    ] = False,
    answer_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer that a model writes, in tokens. Default: the task's.")
    ] = None,
    backend: Annotated[Literal["hf", "vllm"], typer.Option(help="Engine: transformers or vLLM.")] = "hf",
    precision: Annotated[
        Literal["float32", "bfloat16"] | None, typer.Option(help="Number format of the weights. Default: the files'.")
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the models.")] = "cpu",
    batch_size: Annotated[str, typer.Option(help="Texts at a time; auto: as many as fit.")] = "8",
    out: Annotated[
        Path, typer.Option(help="Folder of the table and of all answers; an interrupted run continues there.")
    ] = Path("benchmarks.out"),
    as_json: AsJson = False,
) -> None:
    """Run tasks on seed, experts and versions, with lm_eval in a process of its own, and print the comparison.

    Nothing is downloaded but models that are named by hub id. Everything is checked before a model is loaded.

    Exit status: 0 compared; 1 an input, an option or the machine is unsuitable; 2 wrong usage; 130 interrupted.

    Example: moerge benchmark merged --expert code=./code --expert law=./law --base seed --tasks arc-easy,piqa --data
    benchmarks --limit 400
    """
    from moerge.progress import progress
    from moerge.settings import single_values
    from moerge_lab.benchmarks import arguments
    from moerge_lab.benchmarks.models import require_models
    from moerge_lab.benchmarks.run import run as run_tasks
    from moerge_lab.benchmarks.settings import Settings, asked
    from moerge_lab.benchmarks.tasks import TASKS

    errors = Screen(stderr=True)

    def say(line: str) -> None:
        errors.print(line, highlight=False, markup=False)

    settings = Settings(
        data,
        limit,
        seed,
        chat,
        backend,
        precision,
        device,
        _batch_size(batch_size),
        answer_tokens,
    )
    chosen = arguments.tasks(tasks, list(single_values("expert", expert or ())))
    arguments.require_harness(settings)
    asked(list(chosen), settings)
    models = arguments.models(versions, expert or (), base, out)
    require_models(models, precision, device, chat=chat and any(TASKS[name].is_written for name in chosen))
    result = run_tasks(models, chosen, settings, out, progress(), say)
    if as_json:
        show_json(result.to_json())
        return
    for part in result.render():
        output().print(part, highlight=False, markup=False)


def _batch_size(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise MoergeError(f"expected a number or auto, found {text!r}", where="`batch_size`", todo="write it like 8")
    return int(text)


@app.command()
def fetch(as_json: AsJson = False) -> None:
    """Print where each task's public data comes from, its form and its SHA-256. Nothing is downloaded.

    Put the files into one folder, for --data. A task with several files has the digest of all, joined.

    Example: moerge benchmark fetch
    """
    from moerge_lab.benchmarks.tasks import FORMS, TASKS

    if as_json:
        show_json([{**vars(task), "form": FORMS[task.form]} for task in TASKS.values()])
        return
    for task in TASKS.values():
        echo(task.name)
        echo(f"  file: {', '.join(task.files)}")
        echo(f"  from: {task.source}")
        echo(f"  form: {FORMS[task.form]}")
        echo(f"  sha256: {task.digest or 'unknown'}")


@app.command()
def files() -> None:
    """Print the folder of moerge's task files, for lm_eval --include_path.

    Example: moerge benchmark files
    """
    from moerge_lab.benchmarks.tasks import TASK_FILES

    echo(TASK_FILES)
