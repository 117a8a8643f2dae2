"""`moerge worker …`"""

import inspect
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.filesize import decimal

from moerge.cli.common import Coordinator, Secret, token_given
from moerge.cli.versions import Which as Version
from moerge.cli.versions import resolve
from moerge.client.client import Client
from moerge.documents.chat_templates import DATE
from moerge.errors import MoergeError, TerminatedError
from moerge.terminal import AsJson, echo, show_json
from moerge.versions.evaluations import results_in
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.signatures import fingerprint, in_groups
from moerge_proto.version_signatures import fingerprint as version_fingerprint
from moerge_workers.outgoing import owner_key, version_limit
from moerge_workers.outgoing.history import History
from moerge_workers.outgoing.public_log import PublicLog, all_served
from moerge_workers.settings import Settings, home_of, read_settings
from moerge_workers.watching.status import State, is_running, read_state

app = typer.Typer(no_args_is_help=True, help="Run a domain owner's worker.")


@app.callback()
def _group() -> None:
    """Run a domain owner's worker."""
    os.umask(0o077)


KeyHome = Annotated[Path | None, typer.Option("--home", help="Folder of the owner's key; default ~/.moerge.")]


@app.command()
def init(
    owner: Annotated[str, typer.Option(help="Your name as an owner: a-z, 0-9, - and _.")],
    domain: Annotated[list[str], typer.Option(help="Your domain; repeatable.")],
    home: KeyHome = None,
) -> None:
    """Make your key, which never leaves this machine, and print a join request for the operator.

    Uses an existing key. Makes no network connection.

    Example: moerge worker init --owner hospital --domain medicine
    """
    path = (home or owner_key.default_home()) / f"{owner}.pem"
    request = owner_key.join_request(path, owner, domain)
    echo(request.line())
    echo(
        f"Your key is {path}; keep a private copy.\n"
        f"Its fingerprint: {in_groups(fingerprint(request.public_key))}\n"
        "Send the line above to the operator, and tell the fingerprint another way, such as a call.\n"
        "The operator approves the request and sends you a token; then start: moerge worker run",
        err=True,
    )


@app.command()
def rotate(
    coordinator: Coordinator,
    secret: Secret,
    home: KeyHome = None,
) -> None:
    """Replace your key, here and at the coordinator. If the command is killed, run it again.

    Earlier signatures stay valid. Running workers use the new key automatically.

    Example: moerge worker rotate
    """
    with Client(coordinator, secret) as client:
        owner = client.identity().owner
        if owner is None:
            raise MoergeError("the token is not an owner's", where="--token", todo="use your worker's token")
        new = owner_key.rotate(client, owner, owner_key.key_file(home or owner_key.default_home(), owner))
    echo(f"Your key's fingerprint is now: {in_groups(new)}")


Config = Annotated[Path | None, typer.Option(help="Settings file; default worker.toml in the home.")]
Address = Annotated[str | None, typer.Option(envvar="MOERGE_COORDINATOR", help="Address of the coordinator.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="MOERGE_TOKEN", callback=token_given, help="The owner's token; prefer the environment or a file."
    ),
]


def _options(
    config: Config = None,
    coordinator: Address = None,
    token: Token = None,
    domain: Annotated[str | None, typer.Option(help="The domain to contribute for.")] = None,
    expert: Annotated[
        str | None,
        typer.Option(help="The domain's dense checkpoint or PEFT adapter: a folder or hub id (name/model)."),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(help="Your own copy of the seed: a folder or hub id (name/model@revision)."),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="File, quoted glob, folder or fsspec URL of documents; repeatable.")
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(help="Field or column with a document's text.", show_default="text")
    ] = None,
    chat: Annotated[
        str | None,
        typer.Option(
            help=f"Read chat messages from this field instead, through the chat template, with {DATE} as the date."
        ),
    ] = None,
    chat_turns: Annotated[
        Literal["all", "assistant"] | None,
        typer.Option(help="Turns of a chat whose tokens count; the model reads all.", show_default="all"),
    ] = None,
    bad_share: Annotated[
        float | None,
        typer.Option(help="Largest share of unreadable documents to skip; above it, stop.", show_default="0.01"),
    ] = None,
    tuning_share: Annotated[
        float | None, typer.Option(help="Share of documents to choose lambda with; sent separately.", show_default="0")
    ] = None,
    held_out_share: Annotated[
        float | None, typer.Option(help="Share of documents for evaluation; never in contributions.", show_default="0")
    ] = None,
    fit: Annotated[
        bool | None,
        typer.Option(
            "--fit/--no-fit",
            help="Fit the expert's MLPs to the body. Default: unless it keeps the seed's body.",
        ),
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Folder of the worker; default ~/.moerge/worker-DOMAIN.")] = None,
    license: Annotated[
        str | None,
        typer.Option(help="SPDX identifier of the expert's licence, for the model card.", show_default="unknown"),
    ] = None,
    tokens_per_document: Annotated[
        int | None, typer.Option(help="Most tokens to count per document, within the policy's limit. Default: all.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Context length, in tokens.", show_default="512")] = None,
    precision: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Number format of the model.", show_default="float32"),
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens in a micro-batch; fewer need less memory.", show_default="2048")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Ray actors: one CPU thread each, or one GPU.", show_default="1")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="Device of the model.", show_default="cpu")
    ] = None,
    ray_address: Annotated[str | None, typer.Option(help="Your own Ray cluster; default a local one.")] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(help="Memory for hidden states, such as 16GB; default half of the free memory."),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None,
        typer.Option(help="Format on standard error: text, or a JSON object per line.", show_default="text"),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port for Prometheus metrics, without a token; default none.")
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="Address of that port, such as 0.0.0.0.", show_default="127.0.0.1")
    ] = None,
    rejoin: Annotated[
        bool | None, typer.Option("--rejoin", help="Register the expert again after its withdrawal.")
    ] = None,
    once: Annotated[bool | None, typer.Option("--once", help="Stop after one contribution.")] = None,
    dry_run: Annotated[
        bool | None, typer.Option("--dry-run", help="Compute and show the outgoing data, send nothing, stop.")
    ] = None,
) -> None:
    """The options of a worker; missing ones come from worker.toml or have a default."""


def _with_options(do: Callable[[Settings], None], *, alone: bool = False) -> None:
    """Add a command with a worker's options; with `alone` the coordinator is optional."""

    def command(**options: Any) -> None:
        config = options.pop("config")
        given = {name: value for name, value in options.items() if value not in (None, [], ())}
        if given.get("log_format") != "json":
            settings = read_settings(given, config, alone=alone)
            if settings.log_format == "text":
                do(settings)
                return
        from moerge_workers import loop  # noqa: F401  # it imports libraries that add log handlers
        from moerge_workers.watching import log

        log.configure(given.get("data", []))
        with log.logging_errors():
            settings = read_settings(given, config, alone=alone)
            log.configure(settings.data)
            do(settings)

    command.__signature__ = inspect.signature(_options)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = _options.__annotations__
    app.command(do.__name__, help=do.__doc__)(command)


def run(settings: Settings) -> None:
    """Register the expert, or under a seed's body its parts, and contribute to the routers and heads of versions.

    The coordinator's body must be the one of your own copy of the seed (--seed), byte for byte.
    If the worker is killed, start it again: it continues its work.
    While the coordinator is unreachable, the worker waits.
    It sends new documents as a further contribution.
    After a removal, one contribution replaces all earlier ones.
    Options override worker.toml, except its policy, which no option widens.

    SIGTERM ends it with exit status 0, unless work is cut that --once or --dry-run asked for.

    Example: moerge worker run --coordinator https://example.org --domain law --expert expert/ --data 'text/*.jsonl'
    """
    from moerge_workers import loop  # it imports torch and Ray, which the other commands don't need

    try:
        loop.run(settings)
    except TerminatedError:
        if settings.once or settings.dry_run:
            raise


def check(settings: Settings) -> None:
    """Check whether `moerge worker run` would work with the same options; exit with 1 if not.

    On this machine: expert, first part of the data, disk, memory, devices, Ray.
    At the coordinator: its clock, your token and key, the body, compared with your copy of the seed, and the expert.
    Without --coordinator it checks only this machine.
    It sends only the token and the expert's digest.

    Example: moerge worker check --domain law --expert expert/ --data 'text/*.jsonl'
    """
    from moerge_workers.check import checks

    failed = 0
    for line in checks(settings):
        echo(line)
        failed += line.problem is not None
    if failed:
        raise typer.Exit(1)


_with_options(run)
_with_options(check, alone=True)

Home = Annotated[
    Path | None, typer.Option(help="The worker's folder; default ~/.moerge/worker-DOMAIN, or the only one there.")
]
Domain = Annotated[str | None, typer.Option(help="The worker's domain; required with several workers.")]
Which = Annotated[
    str, typer.Argument(help="First digits of the digest; required if several items wait.", show_default=False)
]


def _home(given: Path | None, domain: str | None) -> Path:
    named = given or (home_of(domain) if domain else None)
    places = [named] if named else sorted(owner_key.default_home().glob("worker-*"))
    homes = [path for path in places if path.is_dir()]
    if len(homes) == 1:
        return homes[0]
    problem = f"expected exactly one worker folder; found {', '.join(map(str, homes)) or 'none'}"
    where, todo = str(named or owner_key.default_home()), "select the worker with --domain or --home"
    raise MoergeError(problem, where=where, todo=todo)


@app.command()
def approve(which: Which = "", domain: Domain = None, home: Home = None) -> None:
    """Approve an item that the worker is holding back. The running worker, or the next one, sends it.

    Also undoes a refusal.

    Example: moerge worker approve 3f9a0c21
    """
    _decide(_home(home, domain), which, "approved")


@app.command()
def refuse(which: Which = "", domain: Domain = None, home: Home = None) -> None:
    """Refuse an item that the worker is holding back. The worker doesn't ask about it again.

    Example: moerge worker refuse 3f9a0c21
    """
    _decide(_home(home, domain), which, "refused")


def _decide(home: Path, which: str, decision: Literal["approved", "refused"]) -> None:
    with closing(History(home)) as history:
        items = [item for item in history.asked() if item.digest.startswith(which)]
        if not items and which:
            items = [item for item in history.items() if item.digest.startswith(which) and history.decision(item)]
        if len(items) != 1:
            waiting = "; ".join(f"{item.digest[:12]} {item.about}" for item in history.asked())
            what = f"expected exactly one item{f' {which}…' if which else ''}; found {len(items)}"
            todo = f"give the digest's first digits; waiting: {waiting}" if waiting else "no item waits for your answer"
            raise MoergeError(what, where="digest", todo=todo)
        [item] = items
        if decision == "approved":
            from moerge_workers.outgoing.outbox import require_unchanged

            require_unchanged(item)
        history.note(item, decision)
    echo(f"{decision}: {item.about}, {decimal(item.bytes)}, {item.digest}")


@app.command()
def evaluate(
    version: Version,
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A file of results, a JSON list.")],
    config: Config = None,
    coordinator: Address = None,
    token: Token = None,
    domain: Domain = None,
    home: Home = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the outgoing data, send nothing.")] = False,
) -> None:
    """Report a version's results on tasks, if your policy has task_results = true.

    Uses the worker's settings, and its home for the copy and the history. Results replace your earlier ones of the same
    task and metric. Operators and readers see them.

    Example: moerge worker evaluate champion results.json --domain law
    """
    from moerge_workers.outgoing.task_results import report

    scores = results_in(results)
    settings = _of_home(config, coordinator, token, domain, home)
    settings = settings.model_copy(update={"once": True, "dry_run": dry_run})
    with Client(settings.coordinator, settings.token) as client:
        new = NewEvaluation(number=resolve(client, version), scores=[*scores])
        done = "" if report(settings, client, new) else "not "
    echo(f"version {new.number}: {len(scores)} result{'s' * (len(scores) > 1)} on tasks {done}reported")


def _of_home(
    config: Path | None, coordinator: str | None, token: str | None, domain: str | None, home: Path | None
) -> Settings:
    """The settings of the worker in a home, or of a settings file."""
    folder = None if config is not None and home is None and domain is None else _home(home, domain)
    given = {"coordinator": coordinator, "token": token, "domain": domain, "home": folder}
    return read_settings({name: value for name, value in given.items() if value is not None}, config)


@app.command("history")
def show_history(
    domain: Domain = None,
    home: Home = None,
    log: Annotated[bool, typer.Option("--log", help="Compare what was served with the public log instead.")] = False,
    head: Annotated[str | None, typer.Option(help="With --log: another owner's head; the log must include it.")] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="With --log: trust the present log, as after a restored backup.")
    ] = False,
    config: Config = None,
    coordinator: Address = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print everything ever sent from a worker's home, oldest first, then what was served.

    With --log: follow the coordinator's public log of bodies, heads and versions, print its head, and compare. Exits
    with 1 if the log was changed since it was seen last, or lacks something that was served to this worker. Compare the
    head with other owners, another way than through the coordinator.

    Example: moerge worker history --domain law
    """
    if log:
        _show_log(_of_home(config, coordinator, token, domain, home), head, accept=accept, as_json=as_json)
        return
    if head is not None or accept:
        raise MoergeError("--head and --accept are for the public log", where="--log", todo="add --log")
    with closing(History(_home(home, domain))) as history:
        if as_json:
            show_json(history.sendings())
            return
        for sending in history.sendings():
            item = sending.item
            became = f"{sending.became} {sending.since:%Y-%m-%d %H:%M}" if sending.since else "not confirmed"
            echo(f"{sending.at:%Y-%m-%d %H:%M} UTC  {item.about}, {decimal(item.bytes)}")
            echo(f"  digest {item.digest}")
            under = f", under body {item.body}" if item.body else ""
            echo(f"  to {item.coordinator}{under}: {became}")
        for served in all_served(history):
            echo(f"{served.at:%Y-%m-%d %H:%M} UTC  served: {served}")
        echo(f"New in the last 30 days: {version_limit.summary(history)}")


def _show_log(settings: Settings, head: str | None, *, accept: bool, as_json: bool) -> None:
    with (
        closing(History(settings.home)) as history,
        Client(settings.coordinator, settings.token) as client,
    ):
        seen = PublicLog(history, settings.coordinator)
        now = seen.accept(client) if accept else seen.follow(client)
        served, problems = seen.served(), list(seen.problems())
        if head is not None:
            problems += seen.lacks(head)
    if as_json:
        show_json({"head": now, "served": served, "problems": problems})
    else:
        by = "not signed" if now.key is None else f"signed by the key {version_fingerprint(now.key)}"
        echo(f"public log of {settings.coordinator}: {now.size} entries, {by}")
        echo(f"head: {now.line}")
        for item in served:
            echo(f"{item.at:%Y-%m-%d %H:%M} UTC  served: {item}")
        for problem in problems:
            echo(f"differs: {problem}")
        echo(f"{len(served)} bodies, heads and versions were served; {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


@app.command()
def status(domain: Domain = None, home: Home = None, as_json: AsJson = False) -> None:
    """Show a worker's current or last state, and items that wait for your answer.

    Example: moerge worker status --domain law
    """
    folder = _home(home, domain)
    state = read_state(folder)
    with closing(History(folder)) as history:
        waiting, sent, used = history.asked(), history.sent(), version_limit.summary(history)
    running = is_running(folder)
    if as_json:
        show_json({"running": running, "state": state, "sent": sent, "waits": waiting})
        return
    lines = {"running": "yes" if running else "no"}
    if state is not None:
        rate, left = (state.tokens_per_second, state.seconds_left) if running else (0.0, None)
        lines |= {
            "domain": f"{state.domain}, at {state.coordinator}",
            "body": state.body or "none yet",
            "stage": state.stage.value if running else "ended",
            "shards": f"{state.shards_done} of {state.shards_total}",
            "slots": _devices(state) if running else "none now",
            "rate": f"{rate:,.0f} tokens/s" if rate else "none now",
            "time left": "unknown" if left is None else str(timedelta(seconds=left)),
            "said last": f"{state.said} ({state.at:%Y-%m-%d %H:%M:%S} UTC)",
            "obstacle": "none" if state.obstacle is None else state.obstacle.words,
            "error": state.error or "none",
        }
    lines["sent"] = ", ".join(f"{kind} {decimal(size)}" for kind, size in sorted(sent.items())) or "nothing"
    lines["new in the last 30 days"] = used
    lines["waits for your answer"] = "; ".join(f"{item.digest[:12]} {item.about}" for item in waiting) or "nothing"
    for name, text in lines.items():
        echo(f"{name}: {text}")


def _devices(state: State) -> str:
    counted = Counter(slot.device for slot in state.slots.values())
    return ", ".join(f"{number} on {device}" for device, number in sorted(counted.items())) or "none now"
