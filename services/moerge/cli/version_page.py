"""The tables of `moerge version show` and `moerge version compare`."""

from collections.abc import Mapping, Sequence

import typer
from rich.filesize import decimal

from moerge.cli.common import show
from moerge.terminal import output
from moerge.versions.compare import ScoreChange
from moerge_proto.contributions import ContributionSignature
from moerge_proto.influence import VersionInfluence
from moerge_proto.signatures import fingerprint, in_groups
from moerge_proto.versions import Comparison, EngineLimit, SolveReport, Version

FLOAT32_LIMIT = 2.0**24


def show_files(row: Version) -> None:
    made, options = row.lineage, row.lineage.options
    for line in _notices(row):
        output().print(line, highlight=False, markup=False)
    chosen = options.model_dump(exclude_defaults=True, exclude={"top_k", "ridge_lambda"})
    more = "".join(f", {name.replace('_', ' ')} {value}" for name, value in chosen.items())
    output().print(
        f"Version {row.number}: {', '.join(made.domains)}; trunk {made.trunk[:12]}, "
        f"lambda {options.ridge_lambda:g}, top-k {options.top_k}{more}, "
        f"{len(made.contributions)} contributions, {row.created:%Y-%m-%d %H:%M} UTC"
    )
    show(
        f"{sum(f.tensors for f in row.files)} tensors; {decimal(row.bytes_total)}, "
        f"{decimal(row.bytes_written)} of it new",
        ["file", "tensors", "size", "", "sha256"],
        [
            [f.name, str(f.tensors or ""), decimal(f.size), "new" if f.new else "shared", f.sha256[:12]]
            for f in row.files
        ],
    )


def show_signatures(rows: Sequence[ContributionSignature]) -> None:
    title = "Contributions (compare each key's fingerprint with its owner)"
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
        withdrawn = [domains.get(item, f"{item[:12]}, in its trunk") for item in row.contains_withdrawn]
        lines.append(f"Contains withdrawn experts: {'; '.join(withdrawn)}")
    if row.retired or row.withheld:
        lines.append(f"{'Retired' if row.retired else 'Withheld'} {row.retired or row.withheld:%Y-%m-%d %H:%M} UTC")
    return lines


def show_engines(limits: Sequence[EngineLimit]) -> None:
    for limit in limits:
        typer.echo(f"{limit.engine} {limit.happens}. To avoid it: {limit.remedy}.")


def show_influence(found: VersionInfluence) -> None:
    rows = [
        [
            row.domain,
            row.owner,
            f"{row.tokens:,}",
            f"{row.documents:,}",
            f"{row.effective_rank:.1f}",
            f"{row.gram_distance:.2f}",
            f"{min(_others(row.mean_distances, slot), default=0):.2f}",
            *(f"{100 * max(_others(item, slot), default=0):.0f} %" for item in (row.drawn, row.moved)),
        ]
        for slot, row in enumerate(found.domains)
    ]
    if rows:
        columns = ["domain", "owner", "tokens", "documents", "rank", "gram apart", "nearest mean", "draws", "moves"]
        show(f"Influence on the routers, in layers {', '.join(map(str, found.layers))}", columns, rows)
        typer.echo(
            "Rank: the dimensions of its features. Draws: the largest expected share of another domain's tokens. "
            "Moves: this owner's largest change of another domain's scores, in percent of their spread."
        )
    show_warnings(found.warnings)


def _others(row: Sequence[float], slot: int) -> list[float]:
    return [*row[:slot], *row[slot + 1 :]]


def show_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        typer.echo(f"Warning: {warning}", err=True)


def show_routers(report: SolveReport) -> None:
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
            " To suppress them, raise lambda: --lambda-scale relative --lambda 1e-6, or --lambda-scale auto."
        )


def show_comparison(found: Comparison, domains: Mapping[str, str], scores: Sequence[ScoreChange]) -> None:
    """Prints two versions' differences; `domains` maps experts' digests to domains."""
    lines = [
        ["trunk", "same" if found.same_trunk else "different"],
        ["experts added", ", ".join(domains[item] for item in found.experts_added)],
        ["experts removed", ", ".join(domains[item] for item in found.experts_removed)],
        ["other MLPs", ", ".join(domains[item] for item in found.experts_replaced)],
        ["contributions added", str(len(found.contributions_added))],
        ["contributions removed", str(len(found.contributions_removed))],
        *([name, f"{old} -> {new}"] for name, (old, new) in found.options.items()),
        ["download", decimal(found.fetch)],
    ]
    show(f"Version {found.before} -> {found.after}", ["", ""], lines)
    if any(score.before is not None or score.after is not None for score in scores):
        columns = ["domain", f"version {found.before}", f"version {found.after}", "points"]
        rows = [[score.name, _score(score.before), _score(score.after), _score(score.points, "+")] for score in scores]
        show("Normalised scores", columns, rows)
    changed = [[file.name, file.change, decimal(file.size)] for file in found.files if file.change != "same"]
    show("Files that differ", ["file", "", "size"], changed)


def _score(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1f}"
