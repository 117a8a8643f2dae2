"""`moerge version …`"""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.filesize import decimal

from moerge.bodies.head_kinds import HEADS
from moerge.cli.common import Coordinator, Secret, Yes, confirm, points, show, show_list, wait
from moerge.cli.version_keys import list_keys, revoke_key, rotate_key, sign
from moerge.cli.version_page import (
    show_comparison,
    show_engines,
    show_files,
    show_influence,
    show_routers,
    show_signatures,
    show_tasks,
    show_warnings,
    unsigned_state,
)
from moerge.cli.version_rebuild import rebuild
from moerge.cli.waiting import wait_for_contributions
from moerge.client.client import Client
from moerge.client.http import optional
from moerge.errors import MoergeError
from moerge.merging.recipe import KEYS, OF_SOLVE, Recipe
from moerge.merging.recipe_file import recipe_of
from moerge.settings import named_numbers, valid
from moerge.terminal import AsJson, echo, show_json
from moerge.versions.compare import average_name, lost_domains, score_changes
from moerge.versions.compare import compare as compare_versions
from moerge.versions.evaluations import on_tasks, results_in
from moerge_proto.bodies import HeadMethod
from moerge_proto.evaluations import NewEvaluation, VersionTable
from moerge_proto.grants import VersionPart
from moerge_proto.owners import Role
from moerge_proto.recipes import FEDERATED, PAPER, RecipeName
from moerge_proto.version_names import PART_NAME
from moerge_proto.versions import CHAMPION, AliasMove, Lineage, NewVersion, Version, VersionChange

_HEADS = f"Last norm and language model head: {'; '.join(f'{kind.name}, {kind.about}' for kind in HEADS.values())}."
_HEAD_RULE = (
    f"the seed's if every expert keeps it, {FEDERATED.head} if every other one has a head contribution, otherwise "
    f"{PAPER.head}"
)
_KEYS = ", ".join(KEYS[field] for field in OF_SOLVE)
REPORT_FILE = "moerge-report.json"
Which = Annotated[str, typer.Argument(metavar="VERSION", help="The version's number, or an alias such as champion.")]
WhichPart = Annotated[
    str, typer.Argument(metavar="VERSION", help="The number or alias of a version, or a part's name.")
]
AliasName = Annotated[str, typer.Option("--alias", help="The alias.")]
Note = Annotated[str, typer.Option(help="The reason, for the history.")]
app = typer.Typer(no_args_is_help=True, help="Router versions.")


def resolve(client: Client, name: str) -> int:
    """The number of a version, or of an alias' one."""
    if name.isdecimal():
        return int(name)
    if "+" in name:
        todo = f"name the version: {name.partition('+')[0]}"
        raise MoergeError(f"{name} is a part of a version", where="version", todo=todo)
    alias = optional(client.alias, name)
    if alias is None:
        known = ", ".join(alias.name for alias in client.aliases()) or "none yet"
        raise MoergeError(f"no alias {name!r}", where="version", todo=f"use one of: {known}")
    return alias.version


def resolve_any(client: Client, name: str) -> int | str:
    """The number of a version or of an alias' one, or the name of a part."""
    return name if re.fullmatch(PART_NAME, name) else resolve(client, name)


@app.command("solve")
def solve_version(
    coordinator: Coordinator,
    secret: Secret,
    config: Annotated[
        Path | None, typer.Option(help=f"YAML file with these and other keys: {_KEYS}. Options override it.")
    ] = None,
    recipe: Annotated[RecipeName | None, typer.Option(help="recommended: the default. dume: the paper's.")] = None,
    head: Annotated[HeadMethod | None, typer.Option(help=f"{_HEADS} Default: {_HEAD_RULE}.")] = None,
    domain_weights: Annotated[
        list[str] | None,
        typer.Option(
            "--domain-weight",
            help="DOMAIN=NUMBER, weight of its statistics; repeat. Or: balanced (equal), the default; none.",
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Experts per token. Default: 1.")] = None,
    wait_: Annotated[bool, typer.Option("--wait", help="Wait for missing domains.")] = False,
    hours: Annotated[float | None, typer.Option(min=0, help="End of the wait, in hours. Default: none.")] = None,
    minimum: Annotated[
        int | None, typer.Option(min=1, help="Domains to wait for, and enough at its end. Default: all that joined.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Solve without the missing domains.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Publish it, however high its loss on public texts is.")
    ] = False,
) -> None:
    """Solve routers and head from the contributions, publish a version of the current body and print its number.

    Needs router contributions of all ready experts, unless --partial is given. Prints the included and missing
    domains, the default head's reason, and warnings of owners' unusual influence on the routers.

    Example: moerge version solve --wait --minimum 3 --hours 48
    """
    if (hours is not None or minimum is not None) and not wait_:
        raise MoergeError("they are about a wait", where="`hours`, `minimum`", todo="add --wait, or leave them out")
    options = {"recipe": recipe, "head": head, "domain_weights": _weights(domain_weights), "top_k": top_k}
    with recipe_of(config, options, OF_SOLVE, "moerge version solve") as chosen:
        new = new_version(chosen).model_copy(update={"partial": partial, "accept_loss": accept_loss})
    with Client(coordinator, secret) as client:
        if wait_ and wait_for_contributions(client, minimum, hours):
            new = new.model_copy(update={"partial": True})
        number = wait(client, client.solve_version(new))
        lineage = client.version(int(number)).lineage
        influence = optional(client.version_influence, int(number))
        head_said = _chosen_head(client, lineage) if new.head is None else ""
    echo(number)
    missing = ", ".join(lineage.left_out) or "none"
    echo(f"In version {number}: {', '.join(lineage.domains)}. Missing: {missing}.{head_said}", err=True)
    show_warnings([] if influence is None else influence.warnings)


def _chosen_head(client: Client, lineage: Lineage) -> str:
    head = lineage.head.method
    if head == "seed":
        return " Head: the seed's, because every expert keeps it."
    if HEADS[head].solved:
        return f" Head: {head}, because all its experts have the seed's head or head contributions."
    sent = {item.domain for item in client.contributions("head") if item.active}
    missing = ", ".join(domain for domain in lineage.domains if domain not in sent)
    return f" Head: {head}, because these domains have no head contribution: {missing}."


def _weights(given: list[str] | None) -> dict[str, float] | Literal["balanced"] | None:
    if given == ["balanced"]:
        return "balanced"
    return {} if given == ["none"] else named_numbers("domain_weights", given) if given else None


def new_version(recipe: Recipe) -> NewVersion:
    """The message for a version by a recipe.

    By the recommended one, only given options are sent; the coordinator adds the others.
    """
    options, head = recipe.solve, recipe.head
    if recipe.recipe == "dume":
        options, head = PAPER.solve.model_dump() | options, head or PAPER.head
    given = {"head": head, "tied": recipe.tied, "chat_template": recipe.chat_template}
    return valid(NewVersion, {"options": options, **{name: item for name, item in given.items() if item is not None}})


@app.command("list")
def list_versions(coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """List versions.

    Example: moerge version list
    """
    columns = ["number", "domains", "size", "written", "made, UTC", "aliases and tags", ""]
    with Client(coordinator, secret) as client:
        show_list("Versions", columns, client.versions(), _line, as_json=as_json)


def _line(row: Version) -> list[str]:
    return [
        str(row.number),
        ", ".join(row.lineage.domains),
        decimal(row.bytes_total),
        decimal(row.bytes_written),
        f"{row.created:%Y-%m-%d %H:%M}",
        ", ".join([*row.aliases, *row.tags]),
        "retired" if row.retired else "withheld" if row.withheld else unsigned_state(row),
    ]


@app.command("show")
def show_version(version: WhichPart, coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Show a version's lineage, files, signatures, owners' influence and router diagnostics.

    Also names the engines that don't run it as transformers does.

    Example: moerge version show champion
    """
    with Client(coordinator, secret) as client:
        number = resolve_any(client, version)
        row, signatures, role = client.version(number), client.version_signatures(number), client.identity().role
        served = row.retired is None and row.withheld is None
        reported = served and role is not Role.OWNER and any(file.name == REPORT_FILE for file in row.files)
        report = client.version_report(number) if reported else None
        measured = role is Role.OPERATOR and row.part is None
        influence = optional(client.version_influence, row.number) if measured else None
        engines = client.engine_limits(number) if served else []
    if as_json:
        content = {"version": row, "signatures": signatures, "report": report, "influence": influence}
        show_json({**content, "engines": engines})
        return
    show_files(row)
    show_engines(engines)
    show_signatures(signatures)
    if report is not None:
        show_routers(report)
    if influence is not None:
        show_influence(influence)


@app.command()
def promote(
    version: Which,
    coordinator: Coordinator,
    secret: Secret,
    alias: AliasName = "champion",
    note: Note = "",
    override: Annotated[str, typer.Option(help="The reason for a promotion despite worse scores.")] = "",
    yes: Yes = False,
) -> None:
    """Point an alias to a version. Consumers of the alias get the version with their next pull.

    Asks for confirmation if the new version lacks domains of the old one.

    Example: moerge version promote 2 --note "better on law"
    """
    with Client(coordinator, secret) as client:
        number = resolve(client, version)
        if (before := optional(client.alias, alias)) is not None:
            lost = lost_domains(client.version(before.version), client.version(number))
            if lost:
                there = f"{alias}, now version {before.version}, has: {', '.join(lost)}"
                confirm(f"Version {number} lacks domains that {there}. Consumers lose them.", yes=yes)
        moved = client.promote(alias, number, note, override)
    echo(f"{alias} is version {number}")
    show_warnings(moved.warnings)


@app.command("rollback")
def roll_back(coordinator: Coordinator, secret: Secret, alias: AliasName = "champion", note: Note = "") -> None:
    """Point an alias back to the version before its last promotion.

    Example: moerge version rollback
    """
    with Client(coordinator, secret) as client:
        moved = client.roll_back(alias, client.alias(alias).version, note)
    echo(f"{alias} is version {moved.version}")


@app.command()
def history(coordinator: Coordinator, secret: Secret, alias: AliasName = "champion", as_json: AsJson = False) -> None:
    """Show an alias' moves, with their time, author and reason.

    Example: moerge version history
    """
    columns = ["when", "", "from", "to", "who", "note", "override"]
    with Client(coordinator, secret) as client:
        show_list(f"{alias}, times in UTC", columns, client.alias_history(alias), _move, as_json=as_json)


def _move(row: AliasMove) -> list[str]:
    numbers = [str(row.previous or ""), str(row.version or "")]
    return [f"{row.created:%Y-%m-%d %H:%M}", row.kind, *numbers, row.who, row.note, row.override or ""]


@app.command()
def note(
    version: Which,
    coordinator: Coordinator,
    secret: Secret,
    text: Annotated[str | None, typer.Option(help="The new note. Default: unchanged.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="The new tags, which replace the old; repeat. Default: unchanged.")
    ] = None,
) -> None:
    """Set a version's note, its tags, or both.

    Example: moerge version note 2 --text "for the audit" --tag audited
    """
    with Client(coordinator, secret) as client:
        number = resolve(client, version)
        row = client.change_version(number, VersionChange(note=text, tags=tag))
    echo(f"version {number}: tags {', '.join(row.tags) or 'none'}; note: {row.note or 'none'}")


@app.command()
def compare(
    before: Annotated[str, typer.Argument(help="A version's number or alias.")],
    after: Annotated[str, typer.Argument(help="Another version's number or alias.")],
    coordinator: Coordinator,
    secret: Secret,
    as_json: AsJson = False,
) -> None:
    """Show two versions' differences, their scores, and the download from one to the other.

    Averages over different domains are not compared, nor results on tasks under different conditions.

    Example: moerge version compare champion candidate
    """
    with Client(coordinator, secret) as client:
        old, new = (client.version(resolve(client, name)) for name in (before, after))
        result = compare_versions(old, new)
        if as_json:
            show_json(result)
            return
        domains: dict[str, str] = {}
        for lineage in (old.lineage, new.lineage):
            domains |= dict(zip(lineage.experts, lineage.domains, strict=True))
        scores = score_changes(client.version_table(result.before), client.version_table(result.after))
        show_comparison(result, domains, scores)
        show_tasks(new.number, client.evaluations(new.number), old.number, client.evaluations(old.number))


@app.command()
def table(version: WhichPart, coordinator: Coordinator, secret: Secret, as_json: AsJson = False) -> None:
    """Show a version's reported scores: on every domain, from its owner's held-out documents, and on tasks.

    Normalised: 100 x the dense expert's perplexity / the version's. The oracle is the normalised score with all tokens
    routed to their domain's own expert. The average is over all domains. Results on tasks are beside the champion's
    of the same reporter, if they were measured alike.

    Example: moerge version table champion
    """
    with Client(coordinator, secret) as client:
        which = resolve_any(client, version)
        result = client.version_table(which)
        reported, champion = list(client.evaluations(which)), optional(client.alias, CHAMPION)
        other = None if champion is None or champion.version == which else champion.version
        others = [] if other is None else list(client.evaluations(other))
    if as_json:
        show_json({**result.model_dump(mode="json"), "tasks": [row for row, *_ in on_tasks([], reported)]})
        return
    rows = []
    for score in result.scores:
        figures = [f"{score.dense:.3f}", f"{score.version:.3f}", points(score.normalised_oracle)]
        counts = [points(score.normalised), f"{score.tokens:,}", f"{score.documents:,}"]
        rows.append([score.domain, *figures, *counts, f"{score.owner}, {score.created:%Y-%m-%d %H:%M}"])
    rows += [[domain, "", "", "", "", "", "", "not evaluated"] for domain in result.missing]
    rows += [[average_name(result), "", "", "", points(result.average), "", "", ""]]
    columns = ["domain", "dense perplexity", "version's", "oracle", "normalised", "tokens", "documents", "reported"]
    show(f"Version {which}", columns, rows)
    if result.scores:
        shares = [[score.domain, *map(_percent, zip(*score.shares, strict=True))] for score in result.scores]
        names = ["text of", *(f"{domain} expert" for domain in result.domains)]
        show("Share of tokens per expert, over all layers", names, shares)
    show_tasks(which, reported, other, others)


def _percent(layers: tuple[float, ...]) -> str:
    return f"{100 * sum(layers) / len(layers):.0f} %"


@app.command()
def evaluate(
    version: WhichPart,
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A file of results, a JSON list.")],
    coordinator: Coordinator,
    secret: Secret,
) -> None:
    """Report a version's results on tasks. They replace the operators' earlier ones of the same task and metric.

    Owners report theirs with moerge worker evaluate, which applies their policy.

    Example: moerge version evaluate champion results.json
    """
    scores = results_in(results)
    with Client(coordinator, secret) as client:
        if client.identity().role is Role.OWNER:
            problem, todo = "it is an owner's, whose policy must allow this", "use: moerge worker evaluate"
            raise MoergeError(problem, where="--token", todo=todo)
        row = client.version(resolve_any(client, version))
        client.evaluate(NewEvaluation(number=row.number, part=row.part, scores=[*scores]))
    echo(f"version {row.name}: {len(scores)} result{'s' * (len(scores) > 1)} on tasks reported")


@app.command()
def retire(version: Which, coordinator: Coordinator, secret: Secret, yes: Yes = False) -> None:
    """Retire a version: its own files are removed, its number and lineage stay.

    Example: moerge version retire 1
    """
    with Client(coordinator, secret) as client:
        number = resolve(client, version)
        confirm(f"Version {number} can't be served again, and its own files are removed permanently.", yes=yes)
        client.retire_version(number)
    echo(f"version {number} is retired")


@app.command()
def parts(
    version: Which,
    coordinator: Coordinator,
    secret: Secret,
    make: Annotated[bool, typer.Option("--make", help="Make those that aren't made yet, before readers pull.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the parts of a version that readers may use: its experts that owners grant to them (operator).

    A part is made at the first pull of a reader who may use it. It has the version's MLP files, and routers of its own.

    Example: moerge version parts champion --make
    """
    with Client(coordinator, secret) as client:
        number = resolve(client, version)
        for workflow in client.make_parts(number) if make else []:
            wait(client, workflow)
        rows = client.version_parts(number)
        tables = {row.name: optional(client.version_table, row.name) for row in rows if row.made and not as_json}
    if as_json:
        show_json(rows)
        return
    columns = ["part", "domains", "without", "readers", "written", "average"]
    show(f"Parts of version {number}", columns, [_part(row, tables.get(row.name)) for row in rows])


def _part(row: VersionPart, table: VersionTable | None) -> list[str]:
    size = "not made" if row.bytes_written is None else decimal(row.bytes_written)
    average = "" if table is None else points(table.average)
    return [row.name, *(", ".join(x) for x in (row.domains, row.left_out, row.readers)), size, average]


app.command("rebuild")(rebuild)
app.command("sign")(sign)
app.command("keys")(list_keys)
app.command("rotate-key")(rotate_key)
app.command("revoke-key")(revoke_key)
