"""`python -m moerge_lab.trials NAME`: one command per trial."""

import typer

from moerge_lab.trials.answers import answers
from moerge_lab.trials.influence import influence
from moerge_lab.trials.membership import membership
from moerge_lab.trials.noise import noise
from moerge_lab.trials.recommended import constants, prompts
from moerge_lab.trials.sentences import sentences

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Repeat the measurements on which defaults, bounds and warnings rest. Missing experts are trained first.",
)
for trial in (constants, prompts, sentences, membership, influence, noise, answers):
    app.command()(trial)

if __name__ == "__main__":
    app()
