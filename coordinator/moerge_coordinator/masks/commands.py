"""The commands `moerge coordinator cohort` and `unmask`."""

from pathlib import Path
from typing import Annotated

import typer

from moerge.terminal import echo

Home = Annotated[Path, typer.Argument(help="Folder of the database, the blobs and the versions.")]


def cohort(
    home: Home,
    out: Annotated[Path, typer.Option(help="File of the request, for `moerge keeper answer`.")],
    domain: Annotated[list[str] | None, typer.Option(help="Only this domain; repeat. Default: all masked.")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="First dissolve the cohort that waits.")] = False,
) -> None:
    """Make the masked contributions into a cohort, and write the request to its keepers. The coordinator may serve.

    From now on they stay as they are. A cohort that waits has the same request again. Carry the file to every keeper,
    and its answers to `moerge coordinator unmask`.

    Example: moerge coordinator cohort /srv/moerge --out request.json
    """
    from contextlib import closing

    from moerge.files import atomic_file
    from moerge_coordinator.masks import cohorts
    from moerge_coordinator.settings import read_settings
    from moerge_coordinator.storage.database import open_database
    from moerge_coordinator.storage.stores import stores

    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        if anew:
            cohorts.dissolve(database)
        request = cohorts.ask(database, stores(settings)[0], domain or ())
    with atomic_file(out) as file:
        file.write(request.model_dump_json().encode())
    echo(f"{out}: asks for the masks of {', '.join(request.domains)}")
    for keeper in sorted(request.keepers):
        echo(f"keeper {keeper}")


def unmask(home: Home, answers: Annotated[list[Path], typer.Argument(help="An answer of each keeper.")]) -> None:
    """Make a cohort's sum known, from the answers of all its keepers. The coordinator may serve meanwhile.

    Example: moerge coordinator unmask /srv/moerge auditor.answer university.answer
    """
    from contextlib import closing

    from moerge_coordinator.masks import cohorts
    from moerge_coordinator.settings import read_settings
    from moerge_coordinator.storage.database import open_database
    from moerge_coordinator.storage.stores import stores

    settings = read_settings(home)
    with closing(open_database(settings.database)) as database:
        number = cohorts.unmask(database, stores(settings)[0], answers)
    echo(f"The sum of cohort {number} is known; next: moerge version solve --domain-weight none", err=True)
