"""The console script: what it makes of errors."""

import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moerge.cli.app import app, main
from support.statistics import honest_sums, manifest_of, written


def test_an_error_names_a_path_with_brackets_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "[law] sums[/old].safetensors"
    monkeypatch.setattr(sys, "argv", ["moerge", "inspect", str(path)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, str(path) in capsys.readouterr().err) == (1, True)


def test_inspect_tells_what_a_contribution_reveals(tmp_path: Path) -> None:
    sums = honest_sums(8, 500, 1, 2, 0)
    path = written(tmp_path / "file", manifest_of(sums, 1, domain="law"), sums)
    shown = CliRunner().invoke(app, ["inspect", str(path)], env={"COLUMNS": "200"})
    assert (shown.exit_code, "router contribution of 'law'" in shown.output) == (0, True)
