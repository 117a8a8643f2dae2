"""`moerge usage`"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moerge.cli.common import show, token_given
from moerge.client.client import Client
from moerge.client.signatures import read_signature
from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.progress import progress
from moerge.terminal import AsJson, echo, show_json
from moerge_proto.records import RECORD_FILE, TunedModel, read_record
from moerge_proto.usage import ExpertShares, NewUsage
from moerge_proto.versions import Lineage

if TYPE_CHECKING:
    from moerge.documents.text import Text
    from moerge.models.dense_files import DenseFiles
    from moerge.scoring.usage import Estimate, ExpertUsage, Usage

_LONGEST_CONTEXT = 2048


def measure(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of moerge pull or moerge merge.")],
    text_files: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="FILE", help="Requests as texts: a file, pattern, folder or URL; repeat."),
    ] = None,
    chat_files: Annotated[
        list[str] | None,
        typer.Option("--chat", metavar="FILE", help="Requests as messages, through the version's chat template."),
    ] = None,
    text_field: Annotated[str, typer.Option(help="Field with a text.")] = "text",
    chat: Annotated[str, typer.Option("--chat-field", help="Field with messages.")] = "messages",
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that are read together. Default: 2048, or the version's context if shorter."),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the pass.")] = "cpu",
    svg: Annotated[Path | None, typer.Option(help="Also draw experts x layers to this SVG file.")] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also send the shares, rounded to 0.1 %, to the coordinator.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator, for --report.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option("--token", envvar="MOERGE_TOKEN", callback=token_given, help="Bearer token, for --report."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how much your own requests use each expert of a version.

    Tokens: the share of the tokens with the expert as first choice. Weight: its share of the routers' weights. Both are
    means over the layers, with standard errors over documents. The table also has the smallest and largest share of a
    layer; --json and --svg have every layer. One layer at a time is in memory. With fewer than 20 documents, pieces of
    a context's size count as documents. Nothing leaves this machine without --report, and then no text and no counts.

    Exit status: 0 shown; 1 folder, text or report is unsuitable; 2 wrong usage; 130 interrupted.

    Example: moerge usage my-model --text requests.jsonl
    """
    domains = _domains(folder)
    signed = read_signature(folder)
    name = None if signed is None else signed.name
    if report and name is None:
        todo = "name the folder of moerge pull, or omit `report`"
        raise MoergeError("only signed versions have a name to report for", where=str(folder), todo=todo)
    if report and (coordinator is None or secret is None):
        missing = " and ".join(
            name for name, value in (("MOERGE_COORDINATOR", coordinator), ("MOERGE_TOKEN", secret)) if value is None
        )
        raise MoergeError(f"no {missing}", where="`report`", todo="set it, or omit `report`")
    requests = _Requests(text_files or (), chat_files or (), text_field, chat)
    used = _measured(folder, domains, name, requests, context, device)
    if svg is not None:
        _draw(used, folder, svg)
    if as_json:
        show_json(used)
    else:
        _show(used)
    if report and name is not None and coordinator is not None and secret is not None:
        with Client(coordinator, secret) as client:
            client.report_usage(name, reported(used))
        echo(f"Sent to {coordinator}: the shares of version {name}'s experts.", err=True)


def _domains(folder: Path) -> list[str]:
    record = read_record(folder)
    if not isinstance(record, Lineage | TunedModel):
        what = "no record of a version's experts"
        raise MoergeError(what, where=str(folder / RECORD_FILE), todo="name the folder of moerge pull or moerge merge")
    return list(record.domains)


@dataclass(frozen=True)
class _Requests:
    """Files of requests as texts and as messages, and the fields that have them."""

    texts: Sequence[str]
    chats: Sequence[str]
    text_field: str
    chat_field: str

    def read(self, files: "DenseFiles", context: int) -> "Iterator[Text]":
        """Tokenises them into temporary files without names."""
        from moerge.documents.corpus import Corpus

        def say(line: str) -> None:
            echo(line, err=True)

        if not self.texts and not self.chats:
            todo = "name a file with `text_files` or `chat_files`"
            raise MoergeError("no requests", where="`text_files`, `chat_files`", todo=todo)
        if self.chats and not files.tokenizer.chat_template:
            todo = "give the requests as texts, with `text_files`"
            raise MoergeError("the version has no chat template", where="`chat_files`", todo=todo)
        corpora = list[Corpus]()
        if self.texts:
            where, settings = "`text_files`", ["text_field"]
            corpora += [Corpus(self.texts, files, text_field=self.text_field, settings=settings, say=say, where=where)]
        if self.chats:
            where, settings = "`chat_files`", ["chat"]
            corpora += [Corpus(self.chats, files, chat=self.chat_field, settings=settings, say=say, where=where)]
        for corpus in corpora:
            yield corpus.read("reading requests", progress(), context=context)


def _measured(
    folder: Path, domains: list[str], name: str | None, requests: _Requests, context: int | None, device: str
) -> "Usage":
    import torch
    from transformers.utils import logging

    from moerge.models.dense_files import DenseFiles
    from moerge.models.published import published_weights
    from moerge.scoring.streamed import streamed_model
    from moerge.scoring.usage import usage

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    files, weights = DenseFiles(folder), published_weights(folder)
    longest = int(files.config.max_position_embeddings)
    context = min(_LONGEST_CONTEXT, longest) if context is None else context
    if context > longest:
        raise MoergeError(f"the version's context is {longest:,} tokens", where="`context`", todo="give at most these")
    precision = str(files.config.dtype or torch.float32).removeprefix("torch.")
    try:
        model = streamed_model(weights, precision, device, context)
    except MoergeError as error:
        todo = "use a larger machine" + (", or `device` cpu" if device == "cuda" else "")
        raise MoergeError(error.what, where=error.where, todo=todo) from error
    if model.routed.shape[1] != len(domains):
        what = f"{len(domains)} domains, but the model has {model.routed.shape[1]} experts"
        raise MoergeError(what, where=str(folder / RECORD_FILE), todo="pull or merge the version again")
    texts = list(requests.read(files, context))
    tokens = sum(entry.tokens().count for text in texts for entry in text.documents())
    if not tokens:
        raise MoergeError("no request has text", where="`text_files`, `chat_files`", todo="name other files")
    with progress().track("measuring use", tokens, "tokens") as tracker:
        documents = (entry.tokens() for text in texts for entry in text.documents())
        return usage(model, domains, documents, context, tracker, name)


def _draw(used: "Usage", folder: Path, svg: Path) -> None:
    from moerge.scoring.usage_picture import picture

    name = folder.resolve().name if used.version is None else f"version {used.version}"
    with atomic_file(svg) as file:
        file.write(picture(used, f"Use of the experts of {name}").encode())


def _show(used: "Usage") -> None:
    def row(expert: "ExpertUsage") -> list[str]:
        tokens, weight = ([getattr(layer, kind) for layer in expert.layers] for kind in ("tokens", "weight"))
        return [expert.domain, expert.tokens.percent, _range(tokens), expert.weight.percent, _range(weight)]

    what = "Use" if used.version is None else f"Use of version {used.version}"
    title = f"{what}, in percent: {used.tokens:,} tokens in {used.documents:,} documents"
    show(title, ["expert", "tokens", "by layer", "weight", "by layer"], [row(expert) for expert in used.experts])


def _range(layers: "list[Estimate]") -> str:
    shares = [100 * layer.share for layer in layers]
    return f"{min(shares):.1f} to {max(shares):.1f}"


def reported(used: "Usage") -> NewUsage:
    """What leaves with a report: rounded shares of each domain."""
    return NewUsage(
        experts={
            expert.domain: ExpertShares(
                tokens=min(1.0, expert.tokens.share),
                tokens_error=_error(expert.tokens),
                weight=min(1.0, expert.weight.share),
                weight_error=_error(expert.weight),
            )
            for expert in used.experts
        }
    )


def _error(estimate: "Estimate") -> float | None:
    return None if estimate.error is None else min(1.0, estimate.error)
