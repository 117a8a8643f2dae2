"""`moerge chat`"""

import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from moerge.errors import MoergeError
from moerge.files import user_path
from moerge.terminal import AsJson

app = typer.Typer(subcommand_metavar="")


@app.callback(invoke_without_command=True, context_settings={"allow_interspersed_args": True})
def chat(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a version, or of another stock MoE.")],
    text: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Continue this UTF-8 text instead, and end; - reads standard input."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a reply at most.")] = 256,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="0 takes the likeliest tokens. Default: the model's own generation settings."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of random draws. Default: a new one each time.")] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the model.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Talk to a version on this machine: each token is in the colour of its expert.

    A token's expert is the one that the routers of most layers chose first to predict it. Without a chat template,
    each line is continued as a text. Ctrl-C ends a reply, Ctrl-D the conversation, with the share of each expert.
    NO_COLOR, pipes and files turn colours off. Legend and shares are on standard error. --json prints one object a
    line, for each token (text, expert, layers by expert) and each reply (reply, tokens by expert). Nothing leaves this
    machine.

    Exit status: 0 ended; 1 the folder or text is unsuitable; 2 wrong usage; 130 interrupted outside a reply.

    Example: moerge chat my-model --text story.txt
    """
    import torch
    from transformers.utils import logging

    from moerge.chat.replies import Piece, Speaker
    from moerge.chat.screen import Lines, Objects, asked

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    given = None if text is None else _content(text)
    if seed is not None:
        torch.manual_seed(seed)
    speaker = Speaker(folder, device, tokens, temperature)
    screen: Lines | Objects = Objects() if as_json else Lines(speaker.experts)
    total, messages = Counter[str](), list[dict[str, str]]()

    def reply(said: str | list[dict[str, str]]) -> str:
        pieces = list[Piece]()

        def show(piece: Piece) -> None:
            screen.show(piece)
            pieces.append(piece)

        with suppress(KeyboardInterrupt):  # it ends the reply
            speaker.reply(said, show)
        whole, counts = "".join(piece.text for piece in pieces), Counter(piece.expert for piece in pieces)
        screen.end(whole, counts)
        total.update(counts)
        return whole

    screen.legend()
    if given is not None:
        reply(given)
    while given is None and (said := asked()) is not None:
        if not said.strip():
            continue
        if speaker.converses:
            messages.append({"role": "user", "content": said})
            messages.append({"role": "assistant", "content": reply(messages)})
        else:
            reply(said)
    screen.shares(total)


def _content(text: str) -> str:
    try:
        return (sys.stdin.buffer.read() if text == "-" else user_path(text).read_bytes()).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise MoergeError(f"can't be read: {error}", where=text, todo="name a file of UTF-8 text") from error
