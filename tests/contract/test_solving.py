"""Solves over REST: options, tied heads, workflows of an earlier build."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.errors import CoordinatorError
from moerge_proto.recipes import PAPER, SolveOptions
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import WorkflowState
from support.federation import Federation, eventually, federation_of


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art, of a tied seed; both have contributed."""
    with federation_of(tmp_path_factory.mktemp("solving"), "law", "art", tie_word_embeddings=True) as federation:
        federation.contribute(federation.body())
        yield federation


def test_lambda_auto_needs_every_tuning_split(federation: Federation) -> None:
    body, auto, plain = federation.body(), SolveOptions(lambda_scale="auto"), federation.solve()
    with pytest.raises(CoordinatorError, match="needs every domain's tuning split; missing: art, law"):
        federation.solve(options=auto)
    federation.contribute(body, split="tuning", first=9)
    chosen = federation.solve(options=auto)
    assert len(chosen.lineage.contributions) == 4
    assert federation.solve().number == plain.number, "a version without it is the same"
    report = federation.operator.version_report(chosen.number)
    assert [layer.ridge_lambda > 0 and layer.condition >= 1 for layer in report.layers] == [True] * 3


def test_a_version_is_tied_if_its_head_is_the_embedding(federation: Federation) -> None:
    folder = federation.version(federation.solve(head="seed", tied=True).number)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
    with pytest.raises(CoordinatorError, match="the head isn't the embedding"):
        federation.solve(head="average", tied=True)


def test_the_command_takes_rare_options_from_a_file(federation: Federation, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("recipe: dume\nlambda: 0.5\ntop_k: 1\n")
    number = federation.moerge("version", "solve", "--config", path, "--top-k", 2)
    lineage = federation.operator.version(int(number)).lineage
    assert lineage.options == PAPER.solve.model_copy(update={"ridge_lambda": 0.5, "top_k": 2})
    assert lineage.head.method == PAPER.head
    path.write_text("top_k: 1\nbase: law\n")
    given = ["version", "solve", "--config", str(path)]
    error = CliRunner().invoke(app, given, env=federation.server.environment()).exception
    assert str(error).startswith(f"{path}, line 2: base: base is not a key of moerge version solve"), error


def test_the_command_takes_options_and_shows_them(federation: Federation) -> None:
    number = federation.moerge("version", "solve", "--domain-weight", "balanced")
    shown = federation.moerge("version", "show", number, COLUMNS="200")
    for text in ("domain weights balanced", "tensors", "condition", "highest", "norm: law"):
        assert text in shown


def test_workflows_of_an_earlier_build_start_anew(federation: Federation) -> None:
    ran = federation.operator.solve_version(NewVersion())
    result = federation.operator.wait(ran)
    federation.server.stop()
    with closing(sqlite3.connect(federation.server.home / "workflows.sqlite")) as database, database:
        cut = "status = 'PENDING', output = NULL, application_version = '0'"
        update = f"UPDATE workflow_status SET {cut} WHERE workflow_uuid = ?"  # noqa: S608  # written here
        assert database.execute(update, [ran.id]).rowcount == 1
    federation.server.start()
    name, _, number = ran.id.rpartition("-")
    eventually(lambda: federation.operator.workflow(ran.id).state is WorkflowState.FAILED)
    eventually(lambda: federation.operator.workflow(f"{name}-{int(number) + 1}").result == result)
