"""Bodies over REST: methods, body contributions, options of a solve, vocabularies."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.errors import CoordinatorError
from moerge_proto.bodies import Body
from moerge_proto.options import SolveOptions
from moerge_proto.workflows import WorkflowState
from support.federation import Federation, body_path, eventually, federation_of, honest_body, send
from support.statistics import written

TIED: dict[str, Any] = {"tie_word_embeddings": True}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three tied experts: base, law and art. Only law has sent a body contribution."""
    with federation_of(tmp_path_factory.mktemp("bodies"), "base", "law", "art", **TIED) as federation:
        law = federation.members["law"]
        send(law, written(federation.folder / "body-contribution", *honest_body(law)))
        yield federation


def tensors(federation: Federation, body: Body) -> dict[str, torch.Tensor]:
    return load_file(body_path(federation.server, body))


def weights(federation: Federation, domain: str) -> dict[str, torch.Tensor]:
    return load_file(federation.members[domain].folder / "model.safetensors")


@pytest.mark.parametrize(
    ("how", "status", "field"),
    [
        ({"method": "weighted", "options": {"weights": {"law": -1}}}, 422, "options.weights.law"),
        ({"method": "regmean"}, 409, "method"),
    ],
)
def test_an_impossible_body_is_refused_by_its_field(
    federation: Federation, how: object, status: int, field: str
) -> None:
    answer = federation.request("POST", "/bodies", json=how)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


def test_the_command_explains_the_default_method(federation: Federation) -> None:
    command = ["body", "merge", "--expert", "law"]
    first = CliRunner().invoke(app, command, env=federation.server.environment())
    assert "Method: regmean" in first.stderr
    second = CliRunner().invoke(app, [*command, "--expert", "art"], env=federation.server.environment())
    assert "Method: average, because these domains have no body contribution: art." in second.stderr
    assert "`moerge worker run --body-contribution`" in second.stderr
    assert federation.operator.body(second.stdout.strip()).method == "average"


def test_solve_options_change_routers_only(federation: Federation) -> None:
    federation.contribute(federation.merge())
    choices = SolveOptions(), SolveOptions(domain_weights={"law": 5.0}), SolveOptions(lambda_scale="relative")
    versions = [federation.solve(options=options) for options in choices]
    assert versions[0].lineage.contributions == versions[1].lineage.contributions == versions[2].lineage.contributions
    assert len({next(f.sha256 for f in row.files if f.name == "model-router.safetensors") for row in versions}) == 3


def test_lambda_auto_needs_every_tuning_split(federation: Federation) -> None:
    body, auto = federation.merge(), SolveOptions(lambda_scale="auto")
    federation.contribute(body)
    plain = federation.solve()
    with pytest.raises(CoordinatorError, match="needs every domain's tuning split; missing: art, base, law"):
        federation.solve(options=auto)
    federation.contribute(body, split="tuning", first=9)
    chosen = federation.solve(options=auto)
    assert len(chosen.lineage.contributions) == 6
    assert federation.solve().number == plain.number, "a version without it is the same"
    report = federation.operator.version_report(chosen.number)
    assert [layer.ridge_lambda > 0 and layer.condition >= 1 for layer in report.layers] == [True] * 3


def test_a_version_is_tied_unless_its_head_is_solved(federation: Federation) -> None:
    federation.contribute(federation.merge())
    folder = federation.version(federation.solve(tied=True).number)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
    federation.contribute_heads("law")
    with pytest.raises(CoordinatorError, match="the head isn't the embedding"):
        federation.solve(experts=federation.digests("law"), head="regmean", tied=True)


def test_the_commands_show_a_body_and_a_version(federation: Federation) -> None:
    digest = federation.moerge(
        "body", "merge", "--expert", "law", "--expert", "art", "--method", "weighted", "--weight", "art=2"
    )
    shown = federation.moerge("body", "show", COLUMNS="200")
    assert digest in shown
    assert "weighted, weights = {'art': 2.0}" in shown
    assert "law, art" in shown
    federation.contribute(federation.operator.body(digest))
    number = federation.moerge("version", "solve", "--domain-weight", "balanced")
    shown = federation.moerge("version", "show", number, COLUMNS="200")
    for text in ("domain weights balanced", "tensors", "condition", "highest", "norm: law"):
        assert text in shown


LONGER: dict[str, Any] = {"tokens": ["<law>", "<brief>"], "vocab_size": 304}


def test_a_longer_vocabulary_is_refused_by_default(federation: Federation) -> None:
    with pytest.raises(CoordinatorError, match="is 304, not 300") as caught:
        federation.add("long", **TIED, **LONGER)
    assert 'vocabulary = "pad"' in caught.value.todo


def test_vocabularies_are_padded_if_the_settings_say_so(tmp_path: Path) -> None:
    settings = 'vocabulary = "pad"\nexpert_max_distance = 2\n'  # a random seed model of another size is another one
    with federation_of(tmp_path, "art", settings=settings) as padded:
        law = padded.add("law", 2, **LONGER)
        with pytest.raises(CoordinatorError, match="tokenizer"):
            padded.add("code", 3, tokens=["<code>"])
        body = padded.merge()
        merged = tensors(padded, body)
        assert merged[EMBEDDING].shape == (304, 32)
        assert HEAD not in merged
        assert torch.equal(merged[EMBEDDING][300:], weights(padded, "law")[EMBEDDING][300:])
        padded.contribute(body)
        folder = padded.version(padded.solve().number)
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.vocab_size == model(torch.tensor([[303]])).logits.shape[-1] == 304
        assert (folder / "tokenizer.json").read_bytes() == (law.folder / "tokenizer.json").read_bytes()


def test_a_body_of_an_earlier_revision_is_merged_anew(federation: Federation) -> None:
    new = federation.merge("law", method="regmean")
    federation.server.stop()
    with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite")) as database, database:
        change = "UPDATE bodies SET revision = 1, digest = ? WHERE digest = ?"
        assert database.execute(change, ["1" * 64, new.digest]).rowcount == 1
        database.execute("DROP TRIGGER public_log_no_delete")
        assert database.execute("DELETE FROM public_log WHERE name = ?", [new.digest]).rowcount == 1
    federation.server.start()
    assert federation.body().digest == "1" * 64
    again = federation.merge("law", method="regmean")
    assert (again.digest, again.current) == (new.digest, True)


def test_workflows_of_an_earlier_build_start_anew(federation: Federation) -> None:
    body = federation.merge()
    ran = next(workflow for workflow in federation.operator.workflows() if workflow.result == body.digest)
    federation.server.stop()
    with closing(sqlite3.connect(federation.server.home / "workflows.sqlite")) as database, database:
        cut = "status = 'PENDING', output = NULL, application_version = '0'"
        update = f"UPDATE workflow_status SET {cut} WHERE workflow_uuid = ?"  # noqa: S608  # written here
        assert database.execute(update, [ran.id]).rowcount == 1
    federation.server.start()
    name, _, number = ran.id.rpartition("-")
    eventually(lambda: federation.operator.workflow(ran.id).state is WorkflowState.FAILED)
    eventually(lambda: federation.operator.workflow(f"{name}-{int(number) + 1}").result == body.digest)
