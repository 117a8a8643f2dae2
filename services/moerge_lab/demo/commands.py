"""`moerge demo`"""

from pathlib import Path
from typing import Annotated

import typer

from moerge.files import cache_folder
from moerge.progress import progress
from moerge.terminal import Screen
from moerge_lab.demo.stages import INTRODUCTION, Stages

app = typer.Typer()


@app.callback(invoke_without_command=True)
def demo(
    home: Annotated[Path, typer.Option(help="Folder of the demo's coordinator and workers.")] = Path("moerge-demo"),
    serve: Annotated[bool, typer.Option("--serve", help="Keep coordinator and dashboard open at the end.")] = False,
) -> None:
    """Run the main job on real text: train four small experts (once), start a coordinator and four workers, publish
    a version of three experts and then one of four. Print the owners' evaluations of both, a table of the second
    beside other ways to merge, and a text in the colours of its experts.

    After an interruption, run the same command to continue; training repeats at most a minute.

    Example: moerge demo --home /tmp/moerge-demo
    """
    console = Screen()
    console.print(INTRODUCTION)
    from transformers.utils import logging  # takes seconds

    from moerge_lab.demo.main_job import Demo, Domain
    from moerge_lab.experts import corpora
    from moerge_lab.experts.train import train

    logging.disable_progress_bar()
    home = home.resolve()
    texts, cache = corpora.write(cache_folder() / "texts"), cache_folder() / "experts"
    stages = Stages(console)
    try:
        stages.introduce()
        stages.begin(1)
        trained = train(texts, cache, progress())
        experts = trained.experts
        stages.tell(f"The experts are in {next(iter(experts.values())).parent}")
        domains = [Domain(name, experts[name], texts[name]) for name in corpora.DOMAINS]
        Demo(home, domains, trained.seed, stages).run(serve=serve)
    except KeyboardInterrupt:
        stages.interrupted()
        raise
