"""`moerge version …`: what is done with versions after they are solved."""

import colorsys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.color import Color
from rich.console import Console
from rich.filesize import decimal
from rich.style import Style
from rich.text import Text

from moerge.cli.common import Coordinator, Secret, show
from moerge.client.client import Client
from moerge.errors import CoordinatorError, MoergeError
from moerge_proto.problems import ProblemType
from moerge_proto.routing import MAX_CHARACTERS, RoutedText
from moerge_proto.versions import VersionChange

Number = Annotated[int, typer.Argument(help="The version's number.")]
AliasName = Annotated[str, typer.Option("--alias", help="Which alias.")]
Note = Annotated[str, typer.Option(help="Why, for the history.")]


def add_to(app: typer.Typer) -> None:
    """Adds these commands to the group `version`."""
    for name, command in (
        ("promote", promote),
        ("rollback", roll_back),
        ("history", history),
        ("note", note),
        ("compare", compare),
        ("table", table),
        ("route", route),
        ("retire", retire),
    ):
        app.command(name)(command)


def resolve(client: Client, name: str) -> int:
    """The number of a version given as a number or an alias.

    Raises:
        MoergeError: there is no such alias.
    """
    if name.isdecimal():
        return int(name)
    try:
        return client.alias(name).version
    except CoordinatorError as error:
        if error.type != ProblemType.NOT_FOUND.urn:
            raise
        known = ", ".join(alias.name for alias in client.aliases()) or "none yet"
        raise MoergeError(f"no alias {name!r}", where="version", todo=f"the aliases are: {known}") from error


def promote(
    number: Number, coordinator: Coordinator, secret: Secret, alias: AliasName = "champion", note: Note = ""
) -> None:
    """Points an alias to a version; consumers who follow it get it with their next pull.

    Example: moerge version promote 2 --note "better on law"
    """
    with Client(coordinator, secret) as client:
        client.promote(alias, number, note)
    typer.echo(f"{alias} is version {number}")


def roll_back(coordinator: Coordinator, secret: Secret, alias: AliasName = "champion", note: Note = "") -> None:
    """Points an alias back to the version before its last promotion.

    Example: moerge version rollback
    """
    with Client(coordinator, secret) as client:
        moved = client.roll_back(alias, client.alias(alias).version, note)
    typer.echo(f"{alias} is version {moved.version}")


def history(coordinator: Coordinator, secret: Secret, alias: AliasName = "champion") -> None:
    """Shows who moved an alias, when and why.

    Example: moerge version history
    """
    with Client(coordinator, secret) as client:
        rows = [
            [f"{m.created:%Y-%m-%d %H:%M}", m.kind, str(m.previous or ""), str(m.version or ""), m.who, m.note]
            for m in client.alias_history(alias)
        ]
    show(f"{alias}, times in UTC", ["when", "", "from", "to", "who", "note"], rows)


def note(
    number: Number,
    coordinator: Coordinator,
    secret: Secret,
    text: Annotated[str | None, typer.Option(help="The new note.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="The new tags; repeat.")] = None,
) -> None:
    """Sets a version's note, its tags, or both.

    Example: moerge version note 2 --text "for the audit" --tag audited
    """
    with Client(coordinator, secret) as client:
        row = client.change_version(number, VersionChange(note=text, tags=tag))
    typer.echo(f"version {number}: tags {', '.join(row.tags) or 'none'}; note: {row.note or 'none'}")


def compare(
    before: Annotated[str, typer.Argument(help="A version's number or alias.")],
    after: Annotated[str, typer.Argument(help="Another one's.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Shows what differs from one version to another, and how much that is to fetch.

    Example: moerge version compare champion candidate
    """
    with Client(coordinator, secret) as client:
        found = client.compare_versions(resolve(client, before), resolve(client, after))
        domains: dict[str, str] = {}
        for number in (found.before, found.after):
            made = client.version(number).lineage
            domains |= dict(zip(made.experts, made.domains, strict=True))
    lines = [
        ["trunk", "the same" if found.same_trunk else "another"],
        ["experts added", ", ".join(domains[each] for each in found.experts_added)],
        ["experts removed", ", ".join(domains[each] for each in found.experts_removed)],
        ["contributions added", str(len(found.contributions_added))],
        ["contributions removed", str(len(found.contributions_removed))],
        *([name, f"{old} -> {new}"] for name, (old, new) in found.options.items()),
        ["to fetch", decimal(found.fetch)],
    ]
    show(f"Version {found.before} -> {found.after}", ["", ""], lines)
    changed = [[file.name, file.change, decimal(file.size)] for file in found.files if file.change != "same"]
    show("Files that differ", ["file", "", "size"], changed)


def table(
    which: Annotated[str, typer.Argument(metavar="VERSION", help="A version's number or alias.")],
    coordinator: Coordinator,
    secret: Secret,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead.")] = False,
) -> None:
    """Shows how a version does on every domain, by what owners reported of their held-out documents.

    Normalised is 100 x the dense expert's perplexity / the version's, and so is the oracle, where every token goes to
    its domain's own expert. The average is over all domains.

    Example: moerge version table champion
    """
    with Client(coordinator, secret) as client:
        found = client.version_table(resolve(client, which))
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
        return
    rows = [
        [
            each.domain,
            f"{each.dense:.3f}",
            f"{each.version:.3f}",
            f"{each.normalised_oracle:.1f}",
            f"{each.normalised:.1f}",
            f"{each.tokens:,}",
            f"{each.documents:,}",
            f"{each.owner}, {each.created:%Y-%m-%d %H:%M}",
        ]
        for each in found.scores
    ]
    average = "" if found.average is None else f"{found.average:.1f}"
    rows += [[domain, "", "", "", "", "", "", "not evaluated"] for domain in found.missing]
    columns = ["domain", "dense perplexity", "version's", "oracle", "normalised", "tokens", "documents", "by whom, UTC"]
    show(f"Version {found.version}", columns, [*rows, ["average", "", "", "", average, "", "", ""]])
    if found.scores:
        shares = [[each.domain, *map(_percent, zip(*each.shares, strict=True))] for each in found.scores]
        names = ["text of", *(f"{domain} expert" for domain in found.domains)]
        show("Share of tokens that each expert got, over all layers", names, shares)


def _percent(layers: tuple[float, ...]) -> str:
    return f"{100 * sum(layers) / len(layers):.0f} %"


def retire(number: Number, coordinator: Coordinator, secret: Secret) -> None:
    """Retires a version: its number and lineage stay, files that no other version has go.

    Example: moerge version retire 1
    """
    with Client(coordinator, secret) as client:
        client.retire_version(number)
    typer.echo(f"version {number} is retired")


def route(
    version: Annotated[str, typer.Argument(help="The version's number or alias.")],
    coordinator: Coordinator,
    secret: Secret,
    text: Annotated[Path, typer.Option(help=f"File of UTF-8 text, at most {MAX_CHARACTERS} characters.")],
    layer: Annotated[
        int | None, typer.Option(min=0, help="Show this layer's router. Default: the expert that most layers choose.")
    ] = None,
) -> None:
    """Shows a text, each token in the colour of the expert that it is routed to first.

    The coordinator must have route_bytes in its settings. It neither keeps nor logs the text.

    Example: moerge version route champion --text story.txt
    """
    content = _text(text)
    with Client(coordinator, secret) as client:
        routed = client.route_text(resolve(client, version), content)
    if layer is not None and layer >= len(routed.experts):
        found = f"no layer {layer}"
        raise MoergeError(found, where="--layer", todo=f"the layers are 0 to {len(routed.experts) - 1}")
    for line in coloured(routed, layer):
        Console().print(line, soft_wrap=True)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MoergeError(f"can't be read: {error}", where=str(path), todo="name a file of UTF-8 text") from error
    if not 1 <= len(text) <= MAX_CHARACTERS:
        found = f"{len(text)} characters; expected 1 to {MAX_CHARACTERS}"
        raise MoergeError(found, where=str(path), todo="name a file with a part of it")
    return text


def coloured(routed: RoutedText, layer: int | None = None) -> tuple[Text, Text]:
    """The text, and what its colours mean. Without a `layer`, a token has the expert that most layers choose first."""
    first = [[chosen[0] for chosen in each] for each in routed.experts]  # [L][n]
    if layer is None:
        slots = [Counter(column).most_common(1)[0][0] for column in zip(*first, strict=True)]
    else:
        slots = first[layer]
    count = len(routed.domains)
    styles = [_style(slot / count) for slot in range(count)]
    text = Text.assemble(*((token, styles[slot]) for token, slot in zip(routed.tokens, slots, strict=True)))
    shares = [100 * slots.count(slot) / len(slots) for slot in range(count)]
    legend = Text("\n")
    for domain, style, share in zip(routed.domains, styles, shares, strict=True):
        legend.append(f" {domain} ", style).append(f" {share:.0f} %  ")
    return text, legend


def _style(hue: float) -> Style:
    """Black on a light tone, readable on any terminal."""
    red, green, blue = (255 * each for each in colorsys.hls_to_rgb(hue, 0.75, 0.8))
    return Style(color=Color.from_rgb(0, 0, 0), bgcolor=Color.from_rgb(red, green, blue))
