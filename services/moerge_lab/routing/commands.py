"""`moerge route`"""

from pathlib import Path
from typing import Annotated

import typer

from moerge.errors import MoergeError
from moerge.files import atomic_file, user_path
from moerge.terminal import output

app = typer.Typer(subcommand_metavar="")


@app.callback(invoke_without_command=True, context_settings={"allow_interspersed_args": True})
def route(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a version, or of a mixture of moerge tune.")],
    text: Annotated[str, typer.Option(help="The text, or @FILE with UTF-8 text.")],
    out: Annotated[Path, typer.Option(help="New file: .html has the text and the curves, .svg the curves.")],
    layer: Annotated[
        int | None,
        typer.Option(min=0, help="Draw this layer alone. Default: the mean of all; of bts, the last stitch layer."),
    ] = None,
) -> None:
    """Draw the weights of a model's experts along a text.

    The weights are the softmax of a version's routers, the routers of bam's attention and MLPs, the gates of a bts
    stitch layer, averaged over the hidden dimensions, or the only router of mergeme-heterogeneous. Nothing leaves this
    machine.

    Exit status: 0 drawn; 1 folder, text or layer is unsuitable; 2 wrong usage; 130 interrupted.

    Example: moerge route stitched --text @story.txt --out story.html
    """
    from transformers.utils import logging

    from moerge_lab.routing.drawing import curves, page, shares
    from moerge_lab.routing.weights import along

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    draw = {".html": page, ".svg": curves}.get(out.suffix)
    if draw is None:
        raise MoergeError(f"expected .html or .svg, found {out.name}", where="--out", todo="name such a file")
    result = along(folder, _content(text), layer)
    with atomic_file(out) as file:
        file.write(draw(result, f"Experts along a text: {folder.resolve().name}").encode())
    weights = ", ".join(shares(result.members, result.mean.mean(0).tolist()))
    output().print(f"{out}: {len(result.pieces):,} tokens; {weights}", highlight=False, markup=False)


def _content(text: str) -> str:
    if not text.startswith("@"):
        return text
    path = user_path(text[1:])
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise MoergeError(f"can't be read: {error}", where=str(path), todo="name a file of UTF-8 text") from error
