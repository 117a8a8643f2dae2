"""Names and messages of others that a terminal would obey: they clear it, rename it, or look like moerge's own."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from io import StringIO
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from rich.markup import escape
from rich.table import Table
from safetensors.torch import save_file
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.client.client import Client
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_expert
from moerge.progress import LogProgress, Progress, TerminalProgress
from moerge.terminal import Screen
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.workflows import WorkflowEntry, WorkflowState
from support.http_server import serving
from support.merging import SMALL
from support.models import expert

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\rdone\x7f\u202egnp.\u2066"
SHOWN = "\ufffd]0;owned\ufffd\ufffd[2J\ufffd31m\ufffddone\ufffd\ufffdgnp.\ufffd"
WHEN = "2030-01-01T00:00:00Z"


def problem(kind: ProblemType = ProblemType.INVALID_REQUEST) -> Problem:
    return Problem.of(kind, HOSTILE, field=HOSTILE, todo=HOSTILE)


def entry() -> WorkflowEntry:
    """The workflow of an owner, which failed at a tensor of this name."""
    given = {"id": "expert-1", "state": WorkflowState.FAILED, "problem": problem(), "kind": "expert"}
    return WorkflowEntry.model_validate({**given, "created": WHEN, "updated": WHEN})


class Answering(BaseHTTPRequestHandler):
    """A coordinator with one workflow, whose other answers are problems."""

    kind: ClassVar[ProblemType] = ProblemType.INVALID_REQUEST

    def do_GET(self) -> None:
        listed = self.path.startswith("/v1/workflows")
        refused = problem(self.kind)
        text = f'{{"items": [{entry().model_dump_json()}], "next": null}}' if listed else refused.model_dump_json()
        self.send_response(200 if listed else refused.status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


def ran(url: str, *command: str) -> str:
    """A command's output and error."""
    done = CliRunner().invoke(app, [*command, "--coordinator", url, "--token", "x"], env={"COLUMNS": "500"})
    return f"{done.output}{done.exception or ''}"


def plain(text: str) -> str:
    """The text, which has no control characters but newlines."""
    assert not [character for character in text if ord(character) in {*range(10), *range(11, 32), *range(127, 160)}]
    return text


def test_output_of_commands_has_no_controls_of_others(tmp_path: Path) -> None:
    with serving(Answering) as url:
        assert "\ufffd]0;owned" in plain(ran(url, "workflow", "list"))
        assert "owned" in plain(ran(url, "workflow", "list", "--json"))
        assert SHOWN in plain(ran(url, "pull", "1", str(tmp_path / "version")))


def test_message_of_a_retry_has_no_controls_of_others() -> None:
    said: list[str] = []
    kind = type("Unavailable", (Answering,), {"kind": ProblemType.UNAVAILABLE})
    with (
        serving(kind) as url,
        Client(url, "token", patience=0.1, say=said.append) as client,
        pytest.raises(MoergeError) as caught,
    ):
        client.identity()
    assert SHOWN in plain(said[0])
    assert SHOWN in plain(str(caught.value))


def test_error_about_a_tensor_has_no_controls_of_its_name(tmp_path: Path) -> None:
    model = DenseFiles(expert(tmp_path / "law", 1, **SMALL))
    tensors = {name: model.checkpoint.tensor(name).clone() for name in model.checkpoint.specs}
    save_file(tensors | {HOSTILE: torch.zeros(1)}, tmp_path / "law" / "model.safetensors")
    with pytest.raises(MoergeError) as caught:
        check_expert(DenseFiles(tmp_path / "law"), None, "law")
    assert SHOWN in plain(str(caught.value))


def table(screen: Screen) -> None:
    rows = Table(HOSTILE, title=HOSTILE)
    rows.add_row(escape(HOSTILE))
    screen.print(rows, HOSTILE, style="bold")


def bars(screen: Screen) -> None:
    with TerminalProgress(screen).track(HOSTILE, 1, "B") as tracker:
        tracker.advance(1)


@pytest.mark.parametrize("shown", [table, bars])
def test_terminal_gets_only_moerge_s_own_controls(shown: Callable[[Screen], None]) -> None:
    out = StringIO()
    shown(Screen(file=out, width=500, force_terminal=True, color_system="standard", legacy_windows=False))
    assert "owned" in out.getvalue()
    assert "\x1b[" in out.getvalue()  # of colours
    assert not [code for code in ("\x1b]0", "\x07", "\x1b[2J", "\x9b", "\rdone", "\x7f") if code in out.getvalue()]


def test_line_of_progress_has_no_controls_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    progress: Progress = LogProgress()
    with progress.track(HOSTILE, 1, "B"):
        pass
    assert SHOWN in plain(capsys.readouterr().err)
