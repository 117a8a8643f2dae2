"""The tables of `moerge version show` and `moerge version compare`."""

from collections.abc import Iterable, Mapping, Sequence

from rich.filesize import decimal

from moerge.cli.common import minute, points, show
from moerge.terminal import echo, output
from moerge.versions.compare import Comparison, ScoreChange
from moerge.versions.evaluations import figure, on_tasks
from moerge_proto.contributions import ContributionSignature
from moerge_proto.evaluations import Evaluation
from moerge_proto.influence import VersionInfluence
from moerge_proto.signatures import fingerprint, in_groups
from moerge_proto.versions import EngineLimit, PublicLoss, SolveReport, Version

FLOAT32_LIMIT = 2.0**24


def show_files(row: Version) -> None:
    lineage, options = row.lineage, row.lineage.options
    for line in _notices(row):
        output().print(line, highlight=False, markup=False)
    chosen = options.model_dump(exclude_defaults=True, exclude={"top_k", "ridge_lambda"})
    more = "".join(f", {name.replace('_', ' ')} {value}" for name, value in chosen.items())
    output().print(
        f"Version {row.name}: {', '.join(lineage.domains)}; body {lineage.body[:12]}, "
        f"head {lineage.head.method}, "
        f"lambda {options.ridge_lambda:g}, top-k {options.top_k}{more}, "
        f"{len(lineage.contributions)} contributions, {row.created:%Y-%m-%d %H:%M} UTC"
    )
    if row.key is not None:
        since = "" if row.key_revoked is None else f", revoked {row.key_revoked:%Y-%m-%d %H:%M} UTC"
        output().print(f"Signed by key {in_groups(row.key)}{since}", highlight=False)
    output().print(_public_loss(row.public_loss), highlight=False)
    size = f"{decimal(row.bytes_total)}, {decimal(row.bytes_written)} of it new"
    files = [
        [f.name, str(f.tensors or ""), decimal(f.size), "new" if f.new else "shared", f.sha256[:12]] for f in row.files
    ]
    columns = ["file", "tensors", "size", "", "sha256"]
    show(f"{sum(f.tensors for f in row.files)} tensors; {size}", columns, files)


def _public_loss(loss: PublicLoss | None) -> str:
    if loss is None:
        return "Loss on public texts: not measured"
    last = "" if loss.last is None else f", the last version's {loss.last:.3f}"
    accepted = ", accepted by the operator" if loss.accepted else ""
    return f"Loss on public texts: {loss.version:.3f} nats per token{accepted}; the seed's {loss.seed:.3f}{last}"


def unsigned_state(row: Version) -> str:
    """Why a version's signature doesn't count; empty if it does."""
    return "unsigned" if row.key is None else "key revoked" if row.key_revoked else ""


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
        withdrawn = [domains.get(item, f"{item[:12]}, in its body") for item in row.contains_withdrawn]
        lines.append(f"Contains withdrawn experts: {'; '.join(withdrawn)}")
    if row.key is None:
        lines.append(f"Unsigned; to sign it: moerge version sign {row.name} --key FILE")
    if row.retired or row.withheld:
        lines.append(f"{'Retired' if row.retired else 'Withheld'} {row.retired or row.withheld:%Y-%m-%d %H:%M} UTC")
    return lines


def show_engines(limits: Sequence[EngineLimit]) -> None:
    for limit in limits:
        echo(f"{limit.engine} {limit.happens}. To avoid it: {limit.remedy}.")


def show_influence(influence: VersionInfluence) -> None:
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
        for slot, row in enumerate(influence.domains)
    ]
    if rows:
        columns = ["domain", "owner", "tokens", "documents", "rank", "gram apart", "nearest mean", "draws", "moves"]
        show(f"Influence on the routers, in layers {', '.join(map(str, influence.layers))}", columns, rows)
        echo(
            "Rank: the dimensions of its features. Draws: the largest expected share of another domain's tokens. "
            "Moves: this owner's largest change of another domain's scores, in percent of their spread."
        )
    show_warnings(influence.warnings)


def _others(row: Sequence[float], slot: int) -> list[float]:
    return [*row[:slot], *row[slot + 1 :]]


def show_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        echo(f"Warning: {warning}", err=True)


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
        echo(
            f"Above a condition of {FLOAT32_LIMIT:.0e}, float32 products leave the weakest directions undetermined."
            " To suppress them, raise lambda in the file of --config: `lambda: 0.01`, or `lambda_scale: auto`."
        )


def show_comparison(comparison: Comparison, domains: Mapping[str, str], scores: Sequence[ScoreChange]) -> None:
    """Prints two versions' differences; `domains` maps experts' digests to domains."""
    lines = [
        ["body", "same" if comparison.same_body else "different"],
        ["experts added", ", ".join(domains[item] for item in comparison.experts_added)],
        ["experts removed", ", ".join(domains[item] for item in comparison.experts_removed)],
        ["other MLPs", ", ".join(domains[item] for item in comparison.experts_replaced)],
        ["contributions added", str(len(comparison.contributions_added))],
        ["contributions removed", str(len(comparison.contributions_removed))],
        *([name, f"{old} -> {new}"] for name, (old, new) in comparison.options.items()),
        ["download", decimal(comparison.fetch)],
    ]
    show(f"Version {comparison.before} -> {comparison.after}", ["", ""], lines)
    if any(score.before is not None or score.after is not None for score in scores):
        columns = ["domain", f"version {comparison.before}", f"version {comparison.after}", "points"]
        rows = [[score.name, points(score.before), points(score.after), points(score.points, "+")] for score in scores]
        show("Normalised scores", columns, rows)
    changed = [[file.name, file.change, decimal(file.size)] for file in comparison.files if file.change != "same"]
    show("Files that differ", ["file", "", "size"], changed)


def show_tasks(number: int | str, rows: Iterable[Evaluation], other: int | None, others: Iterable[Evaluation]) -> None:
    """Prints a version's results on tasks, beside those of the `other` version, or of none."""
    beside = [] if other is None else [f"version {other}", "difference"]
    lines = []
    for row, score, change in on_tasks(others, rows):
        old = [] if change is None else [figure(change.before.score.value, change.before.score.standard_error)]
        old += [] if change is None else [figure(change.difference, change.error)]
        value, reported = figure(score.value, score.standard_error), f"{row.reporter}, {minute(row.created)}"
        lines.append([score.name, value, *(old or [""] * len(beside)), f"{score.questions:,}", score.harness, reported])
    if lines:
        columns = ["task", f"version {number}", *beside, "questions", "harness", "reported"]
        show("Results on tasks, with standard errors; beside others that were measured alike", columns, lines)
