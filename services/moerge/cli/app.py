"""The command line. Commands of other components are imported only when they are called."""

import errno
import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import stamina
import typer
from rich.markup import escape
from typer.core import TyperGroup
from typer.main import get_command, get_group

from moerge.build import build
from moerge.cli import (
    audit,
    bodies,
    contributions,
    experts,
    inspect,
    owners,
    progress,
    pull,
    tokens,
    usage,
    verify,
    versions,
    workflows,
)
from moerge.cli.options import name_options
from moerge.errors import MoergeError, TerminatedError
from moerge.files import is_of_full_disk
from moerge.terminal import Screen, echo

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer has no public name of it
_FAULTS = {
    errno.EROFS: "name a folder that can be written",
    errno.EIO: "check the disk, or the connection to it, such as with dmesg; or name a folder on another disk",
    errno.ESTALE: "mount the file system again, then run the command again",
    errno.ENOTCONN: "mount the file system again, then run the command again",
    errno.ENOTDIR: "correct the path: one of its folders is a file",
    errno.EEXIST: "name another folder: this is a file",
    errno.EISDIR: "name a file: this is a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""Faults of the system at a file or folder -> remedy."""


@dataclass(frozen=True)
class Component:
    """Commands of another component: the module of its `app`, their line in the root's help, and the package extra."""

    module: str
    help: str
    extra: str

    def load(self) -> TyperGroup:
        return get_group(importlib.import_module(self.module).app)


PANELS: dict[str, dict[str, typer.Typer | Component | Callable[..., None]]] = {
    "Set up": {
        "coordinator": Component("moerge_coordinator.commands", "Run a coordinator.", "coordinator"),
        "worker": Component("moerge_workers.commands", "Run a domain owner's worker.", "worker"),
        "keeper": Component(
            "moerge.cli.keeper", "Keep owners' masks, so that a coordinator sees only sums of many owners.", "merge"
        ),
        "owner": owners.app,
        "token": tokens.app,
    },
    "Work": {
        "expert": experts.app,
        "contribution": contributions.app,
        "body": bodies.show_bodies,
        "version": versions.app,
        "workflow": workflows.app,
        "pull": pull.pull,
        "verify": verify.verify,
        "export": Component("moerge.export.commands", "Write a version as a GGUF, for llama.cpp.", "merge"),
    },
    "Look": {
        "chat": Component("moerge.chat.commands", "Talk to a version; tokens have the colours of experts.", "merge"),
        "usage": usage.measure,
        "progress": progress.show_progress,
        "inspect": inspect.inspect_file,
        "audit": audit.app,
        "route": Component("moerge_lab.routing.commands", "Draw the weights of a model's experts along a text.", "lab"),
    },
    "One machine": {
        "merge": Component("moerge.merging.commands", "Merge experts on this machine into one MoE model.", "merge"),
        "benchmark": Component(
            "moerge_lab.benchmarks.commands", "Compare versions with their seed and experts on public tasks.", "eval"
        ),
        "tune": Component("moerge_lab.tuning.commands", "Train a version, or a mixture, on pooled text.", "lab"),
        "demo": Component(
            "moerge_lab.demo.commands",
            "Run the main job on real text: four owners, one coordinator, two versions.",
            "demo",
        ),
        "table": Component(
            "moerge_lab.table.commands", "Measure ways to join experts without training: the papers' table.", "lab"
        ),
    },
}
"""Panel of the help -> its commands, in order of use."""


class _Root(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [name for commands in PANELS.values() for name in commands]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if (component := _component(name)) is not None:
            try:
                command = component.load()
            except ImportError as error:
                _raise_extra(error, name)
        name_options(command)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            _raise_extra(error, ctx.invoked_subcommand)
        except _UsageError as error:
            for example in _examples(error):
                echo(example, err=True)
            raise


def every_command() -> Iterator[tuple[str, Any]]:
    """Path and command of the whole command line, from the root down, in the order of its help."""
    waiting: list[tuple[str, Any]] = [("moerge", get_command(app))]
    while waiting:
        path, command = waiting.pop(0)
        yield path, command
        context = typer.Context(command, info_name=path)
        names = command.list_commands(context) if isinstance(command, TyperGroup) else []
        waiting[:0] = [(f"{path} {name}", command.resolve_command(context, [name])[1]) for name in names]


def _examples(error: Any) -> list[str]:
    """The examples in the help of a command that was used wrongly, each in one line."""
    help_ = "" if error.ctx is None else error.ctx.command.help or ""
    paragraphs = (" ".join(text.split()) for text in re.split(r"\n\s*\n", help_))
    return [text for text in paragraphs if text.startswith("Example:")]


def _component(name: str | None) -> Component | None:
    result = next((commands[name] for commands in PANELS.values() if name in commands), None)
    return result if isinstance(result, Component) else None


def _raise_extra(error: ImportError, name: str | None) -> NoReturn:
    """Names the extra of a package that isn't installed. A missing module of moerge itself is a fault."""
    # Ray raises an error of its own, with that of the missing package as cause.
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
    if not isinstance(missing, ModuleNotFoundError) or (missing.name or "").startswith("moerge"):
        raise error
    component = _component(name)
    todo = f"pip install 'moerge[{'merge' if component is None else component.extra}]'"
    raise MoergeError(f"needs {missing.name}", where=f"moerge {name}", todo=todo) from error


app = typer.Typer(
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Turn dense expert LLMs of different owners into one Mixture-of-Experts checkpoint, without training.",
)


def _add(panel: str, name: str, command: typer.Typer | Component | Callable[..., None]) -> None:
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, rich_help_panel=panel)
    elif isinstance(command, Component):
        app.command(name, help=command.help, rich_help_panel=panel)(lambda: None)
    else:
        app.command(name, rich_help_panel=panel)(command)


for _panel, _commands in PANELS.items():
    for _name, _command in _commands.items():
        _add(_panel, _name, _command)


@app.callback(invoke_without_command=True)
def _root(show: Annotated[bool, typer.Option("--version", help="Print moerge's version and commit.")] = False) -> None:
    if show:
        echo(build())
        raise typer.Exit


def main() -> None:
    """The console script. Prints expected errors without a traceback; Ctrl-C exits with 130, SIGTERM with 143."""
    stamina.instrumentation.set_on_retry_hooks([])  # the client reports its retries
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except MoergeError as error:
        _end(error)
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            todo = f"give it to this user (id {os.getuid()}), such as with chown or chmod"
            _end(MoergeError("permission denied", where=str(error.filename), todo=todo))
        if error.errno in _FAULTS and error.filename is not None:
            _end(MoergeError(str(error.strerror), where=str(error.filename), todo=_FAULTS[error.errno]))
        if not is_of_full_disk(error):
            raise
        todo = "free space, then run the command again, which continues where it can"
        _end(MoergeError("the disk is full, or the user's quota", where=str(error.filename or "disk"), todo=todo))
    except TerminatedError:
        sys.exit(143)
    except KeyboardInterrupt:
        sys.exit(130)


def _terminate(number: int, frame: object) -> NoReturn:
    raise TerminatedError


def _end(error: MoergeError) -> NoReturn:
    Screen(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
    sys.exit(1)
