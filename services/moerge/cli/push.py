"""`moerge push …`"""

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from moerge.cli.verify import Key
from moerge.progress import progress
from moerge.terminal import echo
from moerge.versions.hub_results import hub_results

app = typer.Typer(subcommand_metavar="")


@app.callback(invoke_without_command=True, context_settings={"allow_interspersed_args": True})
def push(
    folder: Annotated[Path, typer.Argument(help="A pulled version.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Repository of the hub; made if new.")],
    key: Key = None,
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody see the repository. Default: its members only.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check folder and card, list the files, and upload nothing.")
    ] = False,
) -> None:
    """Publish a pulled version on the hub, huggingface.co, as a private draft or with --public.

    Refuses a folder that `moerge verify` refuses. Uploads a version's files only: weights, config, tokenizer, card,
    signature, provenance, and .eval_results of `pull --hub-results`. The hub checks the card first. All files appear
    in one commit, which removes those of an earlier version. --public also makes an earlier draft public. The same
    command resumes an interrupted upload. The token is that of `hf auth login`, or HF_TOKEN.

    Exit status: 0 published; 1 refused; 2 wrong usage; 130 interrupted.

    Example: moerge push my-model org/name --key version-key.pub
    """
    from moerge.client.push import address
    from moerge.client.push import push as push_version

    results = hub_results(folder)
    done = push_version(folder, repository, results, progress(), key=key, public=public, dry_run=dry_run)
    for name, size in done.files.items() if dry_run else ():
        echo(f"{name}  {decimal(size)}")
    total, seen = decimal(sum(done.files.values())), "public" if public else "private"
    about = f"{repository}: version {done.version}, {len(done.files)} files, {total}, {seen}"
    if done.commit is None:
        echo(f"{about}; nothing was uploaded")
        if done.unchecked is not None:
            echo(f"The hub has not checked the card: {done.unchecked}", err=True)
        return
    echo(f"{about}, commit {done.commit[:12]}: {address(repository)}")
