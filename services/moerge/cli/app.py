"""The command line. Commands of other components are imported only when they are called."""

import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape

from moerge import __version__
from moerge.cli import (
    audit,
    contributions,
    experts,
    owners,
    progress,
    pull,
    rounds,
    tokens,
    trunks,
    versions,
    workflows,
)
from moerge.cli.common import Coordinator, Secret, digest_of_domain, numbers, show, wait
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge_proto.contributions import ContributionSignature
from moerge_proto.experts import ExpertState
from moerge_proto.options import PAPER, RECOMMENDED, LambdaScale, Routers, SolveOptions
from moerge_proto.owners import Role
from moerge_proto.signatures import fingerprint, in_groups
from moerge_proto.trunks import NewTrunk, Trunk, TrunkMethod
from moerge_proto.versions import NewVersion, SolveReport, Version

COMPONENTS = {
    "coordinator": ("moerge_coordinator.commands", "Run a coordinator."),
    "worker": ("moerge_workers.commands", "Run a domain owner's worker."),
    "demo": ("moerge.demo.commands", "Run the main job on real text: four owners, one coordinator, two versions."),
    "table": ("moerge.table.commands", "Measure ways to join experts without training: the papers' table."),
}
FLOAT32_LIMIT = 2.0**24
REPORT_FILE = "moerge-report.json"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Turn dense expert LLMs of different owners into one Mixture-of-Experts checkpoint, without training.",
)
trunk = typer.Typer(no_args_is_help=True, help="Trunks (operator).")
version = typer.Typer(no_args_is_help=True, help="Router versions.")
trunks.add_to(trunk)
versions.add_to(version)
for name, group in (
    ("owner", owners.app),
    ("token", tokens.app),
    ("audit", audit.app),
    ("expert", experts.app),
    ("contribution", contributions.app),
    ("round", rounds.app),
    ("workflow", workflows.app),
    ("trunk", trunk),
    ("version", version),
):
    app.add_typer(group, name=name)
app.command()(pull.pull)
app.command("progress")(progress.show_progress)


@trunk.command("merge")
def merge_trunk(
    coordinator: Coordinator,
    secret: Secret,
    method: Annotated[
        TrunkMethod | None,
        typer.Option(
            help="How to merge. regmean and moerge (for --fit) need every owner's trunk contribution."
            f" Default: {RECOMMENDED.method} if there are all of them, else {PAPER.method}."
        ),
    ] = None,
    expert: Annotated[
        list[str] | None, typer.Option(help="A domain to merge; repeat. Default: all but the base.")
    ] = None,
    weight: Annotated[list[str] | None, typer.Option(help="DOMAIN=NUMBER for weighted; repeat.")] = None,
    base: Annotated[
        str | None, typer.Option(help="The domain whose expert is the base model (base, ties, dare).")
    ] = None,
    retain: Annotated[float | None, typer.Option(help="Share of a task vector that is kept (ties, dare).")] = None,
    scale: Annotated[float | None, typer.Option(help="Factor for the sum of task vectors (ties, dare).")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed for dropping elements (dare).")] = None,
    context_head: Annotated[bool, typer.Option("--context-head", help="Add a context head (regmean, moerge).")] = False,
    round: Annotated[str | None, typer.Option(help="Merge who contributed to this round (regmean, moerge).")] = None,
) -> None:
    """Merges a trunk from every ready expert; it becomes the one that owners contribute under.

    Example: moerge trunk merge --method regmean
    """
    with Client(coordinator, secret) as client:
        ready = [row for row in client.experts() if row.state is ExpertState.READY and row.fitted is None]
        digests = {row.domain: row.digest for row in ready}
        given = {
            "weights": numbers("--weight", weight) if weight else None,
            "base": digest_of_domain("--base", base, digests) if base else None,
            "retain": retain,
            "scale": scale,
            "seed": seed,
            "context_head": context_head or None,
        }
        options = {name: value for name, value in given.items() if value is not None}
        experts = [digest_of_domain("--expert", domain, digests) for domain in expert] if expert else None
        try:
            new = NewTrunk.model_validate({"method": method, "experts": experts, "options": options, "round": round})
        except ValidationError as error:
            raise MoergeError(error.errors()[0]["msg"], where="moerge trunk merge", todo="see --help") from error
        digest = wait(client, client.merge_trunk(new))
        typer.echo(digest)
        if method is None:
            typer.echo(_chosen(client, client.trunk(digest)), err=True)


def _chosen(client: Client, merged: Trunk) -> str:
    """The method that was chosen for a trunk, and the reason."""
    if merged.contributions:
        return f"Method: {merged.method}, because every merged expert has a trunk contribution."
    sent = {each.expert for each in client.trunk_contributions() if each.active}
    missing = sorted(each.domain for each in client.experts() if each.digest in set(merged.experts) - sent)
    return (
        f"Method: {merged.method}, because these domains have no trunk contribution: {', '.join(missing)}."
        " `moerge worker run --trunk-contribution` sends it."
    )


@trunk.command("list")
def list_trunks(coordinator: Coordinator, secret: Secret) -> None:
    """Lists trunks.

    Example: moerge trunk list
    """
    with Client(coordinator, secret) as client:
        rows = [
            [row.digest, row.method, str(len(row.experts)), "yes" if row.current else ""] for row in client.trunks()
        ]
    show("Trunks", ["digest", "method", "experts", "current"], rows)


@trunk.command("show")
def show_trunk(
    coordinator: Coordinator,
    secret: Secret,
    digest: Annotated[str, typer.Argument(help="The trunk's digest, or 'current'.")] = "current",
) -> None:
    """Shows what a trunk was merged from, and how; its files, and the versions on it.

    Example: moerge trunk show
    """
    with Client(coordinator, secret) as client:
        row = client.trunk(digest)
        domains = {expert.digest: expert.domain for expert in client.experts()}
        versions = [str(each.number) for each in client.versions() if each.lineage.trunk == row.digest]
    names = [domains.get(expert, expert[:12]) for expert in row.experts]
    options = row.options.model_dump(exclude_defaults=True)
    if row.options.base:
        options["base"] = domains.get(row.options.base, row.options.base[:12])
    lines = {
        "digest": row.digest,
        "method": ", ".join([row.method, *(f"{name} = {value}" for name, value in options.items())]),
        "merged from": ", ".join(names),
        "trunk contributions": ", ".join(each[:12] for each in row.contributions) or "none needed",
        "family": f"{row.family}, {row.layers} layers, hidden size {row.hidden_size}",
        "tensors": f"{row.tensors}, {decimal(sum(file.size for file in row.files))}",
        "fractional bits": f"{min(row.exponents)} to {max(row.exponents)}",
        "versions on it": ", ".join(versions) or "none",
        "made": f"{row.created:%Y-%m-%d %H:%M} UTC" + (", the current one" if row.current else ""),
    }
    show("Trunk", ["", ""], [list(line) for line in lines.items()])


@version.command("solve")
def solve_version(
    coordinator: Coordinator,
    secret: Secret,
    ridge_lambda: Annotated[float, typer.Option("--lambda", help="Ridge regulariser.")] = 0.01,
    lambda_scale: Annotated[
        LambdaScale, typer.Option(help="What lambda counts: absolute; relative, mean diagonals; auto, not given.")
    ] = "absolute",
    domain_weight: Annotated[
        list[str] | None, typer.Option(help="DOMAIN=NUMBER, what its statistics count; repeat. Or: balanced.")
    ] = None,
    routers: Annotated[
        Routers, typer.Option(help="discriminant; or ridge, the paper's, with columns of norm 1.")
    ] = "discriminant",
    top_k: Annotated[int, typer.Option(help="Experts per token.")] = 1,
    temperature: Annotated[float, typer.Option(help="Divides the routers' scores; matters for top-k > 1.")] = 1.0,
    tied: Annotated[bool, typer.Option("--tied", help="Leave the head out where it is the embedding.")] = False,
    round: Annotated[str | None, typer.Option(help="Take who contributed to this round.")] = None,
) -> None:
    """Sums all contributions under the current trunk, solves the routers, publishes; prints the version's number.

    Example: moerge version solve --lambda-scale auto
    """
    weights = "balanced" if domain_weight == ["balanced"] else numbers("--domain-weight", domain_weight or [])
    options = {"ridge_lambda": ridge_lambda, "lambda_scale": lambda_scale, "domain_weights": weights}
    options |= {"routers": routers, "top_k": top_k, "temperature": temperature}
    try:
        new = NewVersion(options=SolveOptions.model_validate(options), tied=tied, round=round)
    except ValidationError as error:
        first = error.errors()[0]
        raise MoergeError(first["msg"], where=".".join(map(str, first["loc"])), todo="see --help") from error
    with Client(coordinator, secret) as client:
        typer.echo(wait(client, client.solve_version(new)))


@version.command("list")
def list_versions(coordinator: Coordinator, secret: Secret) -> None:
    """Lists versions.

    Example: moerge version list
    """
    with Client(coordinator, secret) as client:
        rows = [
            [
                str(row.number),
                ", ".join(row.lineage.domains),
                decimal(row.bytes_total),
                decimal(row.bytes_written),
                f"{row.created:%Y-%m-%d %H:%M}",
                ", ".join([*row.aliases, *row.tags]),
                "retired" if row.retired else "withheld" if row.withheld else "",
            ]
            for row in client.versions()
        ]
    columns = ["number", "domains", "size", "written", "made, UTC", "aliases and tags", ""]
    show("Versions", columns, rows)


@version.command("show")
def show_version(
    number: Annotated[int, typer.Argument(help="The version's number.")], coordinator: Coordinator, secret: Secret
) -> None:
    """Shows a version's lineage, files and signatures, and how well each layer's router was determined.

    Example: moerge version show 1
    """
    with Client(coordinator, secret) as client:
        row = client.version(number)
        show_files(row)
        show_signatures(client.version_signatures(number))
        if client.identity().role is not Role.OWNER and any(file.name == REPORT_FILE for file in row.files):
            show_routers(client.version_report(number))


def show_files(row: Version) -> None:
    """Prints a version's lineage and files."""
    made, options = row.lineage, row.lineage.options
    for line in _notices(row):
        Console().print(line, highlight=False, markup=False)
    chosen = options.model_dump(exclude_defaults=True, exclude={"top_k", "ridge_lambda"})
    more = "".join(f", {name.replace('_', ' ')} {value}" for name, value in chosen.items())
    Console().print(
        f"Version {row.number}: {', '.join(made.domains)}; trunk {made.trunk[:12]}, "
        f"lambda {options.ridge_lambda:g}, top-k {options.top_k}{more}, "
        f"{len(made.contributions)} contributions, {row.created:%Y-%m-%d %H:%M} UTC"
    )
    show(
        f"{sum(f.tensors for f in row.files)} tensors; {decimal(row.bytes_total)}, "
        f"of which {decimal(row.bytes_written)} new",
        ["file", "tensors", "size", "", "sha256"],
        [
            [f.name, str(f.tensors or ""), decimal(f.size), "new" if f.new else "shared", f.sha256[:12]]
            for f in row.files
        ],
    )


def show_signatures(rows: Sequence[ContributionSignature]) -> None:
    """Prints who vouches for what a version was made of; each signature is checked here."""
    title = "Contributions; a key is the owner's if its fingerprint is the one that the owner tells"
    lines = [[row.kind, row.domain, row.owner, row.digest[:12], _signed(row)] for row in rows]
    show(title, ["", "domain", "owner", "digest", "signature"], lines)


def _signed(row: ContributionSignature) -> str:
    if row.public_key is None:
        return "unsigned"
    key = in_groups(fingerprint(row.public_key)[:16])
    return f"by key {key}" if row.is_genuine() else f"NOT by key {key}"


def _notices(row: Version) -> list[str]:
    lines = [f"Aliases: {', '.join(row.aliases)}"] if row.aliases else []
    lines += [f"Tags: {', '.join(row.tags)}"] if row.tags else []
    lines += [f"Note: {row.note}"] if row.note else []
    if row.contains_withdrawn:
        domains = dict(zip(row.lineage.experts, row.lineage.domains, strict=True))
        withdrawn = [domains.get(each, f"{each[:12]}, in its trunk") for each in row.contains_withdrawn]
        lines.append(f"Contains what is withdrawn: {'; '.join(withdrawn)}")
    if row.retired or row.withheld:
        lines.append(f"{'Retired' if row.retired else 'Withheld'} {row.retired or row.withheld:%Y-%m-%d %H:%M} UTC")
    return lines


def show_routers(report: SolveReport) -> None:
    """Prints what solving each layer's router showed."""
    rows = []
    for number, layer in enumerate(report.layers):
        apart = [value for i, row in enumerate(layer.cosines) for value in row[:i]]
        cosines = [f"{min(apart):.2f}", f"{max(apart):.2f}"] if apart else ["", ""]
        norms = [f"{norm:.3g}" for norm in layer.norms]
        rows.append([str(number), f"{layer.ridge_lambda:.3g}", f"{layer.condition:.1e}", *cosines, *norms])
    columns = ["layer", "lambda", "condition", "lowest cosine", "highest", *(f"norm: {d}" for d in report.domains)]
    title = "Routers: condition of A + lambda I, cosines between domains' columns, norms before normalisation"
    show(title, columns, rows)
    if any(layer.condition > FLOAT32_LIMIT for layer in report.layers):
        typer.echo(
            f"Above a condition of {FLOAT32_LIMIT:.0e}, float32 products leave the weakest directions undetermined."
            " To quiet them, raise lambda: --lambda-scale relative --lambda 1e-6, or --lambda-scale auto."
        )


@app.command("inspect")
def inspect_file(file: Annotated[Path, typer.Argument(help="A contribution, as a worker keeps or sends it.")]) -> None:
    """Shows what a contribution contains, and what it reveals.

    Example: moerge inspect ~/.moerge/worker-law/contributions/*.safetensors
    """
    describe = importlib.import_module("moerge.statistics.describe").describe
    for part in describe(file):
        Console().print(part)


@app.callback(invoke_without_command=True)
def _root(show: Annotated[bool, typer.Option("--version", help="Print moerge's version.")] = False) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


def _attach(called: str | None) -> None:
    """Adds the components' commands: the called one for real, the others as lines of the help."""
    for name, (module, text) in COMPONENTS.items():
        if name != called:
            app.command(name, help=text)(lambda: None)
            continue
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            extra = "all" if name == "table" else name
            todo = f"pip install 'moerge[{extra}]'"
            raise MoergeError(f"needs {error.name}", where=f"moerge {name}", todo=todo) from error
        app.add_typer(loaded.app, name=name)


def main() -> None:
    """The console script. Expected errors are told, not traced; Ctrl-C exits with 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as for Ctrl-C
    try:
        _attach(sys.argv[1] if len(sys.argv) > 1 else None)
        app()
    except MoergeError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
