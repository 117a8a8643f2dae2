"""`moerge worker …`"""

from pathlib import Path
from typing import Annotated

import typer

from moerge.progress import progress
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers import contribute
from moerge_workers.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Run a domain owner's worker.")


@app.callback()
def _group() -> None:
    """Run a domain owner's worker."""


@app.command()
def run(
    coordinator: Annotated[str, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator.")],
    token: Annotated[str, typer.Option(envvar="MOERGE_TOKEN", help="The owner's token; better in the environment.")],
    domain: Annotated[str, typer.Option(help="The domain to contribute for.")],
    expert: Annotated[Path, typer.Option(help="Folder of the domain's dense checkpoint.")],
    data: Annotated[str, typer.Option(help="Quoted glob of JSON Lines files with the field 'text'.")],
    home: Annotated[Path | None, typer.Option(help="Key, journal, downloads; default ~/.moerge/worker-DOMAIN.")] = None,
    license: Annotated[str, typer.Option(help="SPDX identifier of the expert's licence, for the card.")] = "unknown",
    tokens_per_document: Annotated[int | None, typer.Option(help="Use each document's first tokens only.")] = None,
    context: Annotated[int, typer.Option(help="Tokens that the model sees at once.")] = 512,
    slots: Annotated[int, typer.Option(help="Ray actors, one CPU thread each.")] = 1,
    ray_address: Annotated[str | None, typer.Option(help="Your own Ray cluster; by default one starts.")] = None,
    max_stray: Annotated[float, typer.Option(help="Refuse a trunk further than this from your expert.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Stop after one contribution.")] = False,
) -> None:
    """Registers the expert, then contributes ridge statistics under every trunk that the operator merges.

    Killed at any moment and started again, it goes on where it was.

    Example: moerge worker run --coordinator https://example.org --domain law --expert expert/ --data 'text/*.jsonl'
    """
    settings = Settings(
        coordinator=coordinator,
        token=token,
        domain=domain,
        expert=expert,
        data=data,
        home=home or Path.home() / ".moerge" / f"worker-{domain}",
        license=license,
        slots=slots,
        ray_address=ray_address,
        max_stray=max_stray,
        once=once,
        statistics=StatisticsSettings(tokens_per_document=tokens_per_document, context=context),
    )
    contribute.run(settings, progress())
