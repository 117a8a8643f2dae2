"""Trunk methods over REST, trunk contributions, and what a version may choose at solve time."""

import json
import sqlite3
from collections.abc import Callable, Iterator
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
from moerge.statistics.accumulate import ShardSums
from moerge.trunk.methods.registry import METHODS
from moerge_proto.options import SolveOptions
from moerge_proto.statistics_file import TrunkManifest
from moerge_proto.trunks import Trunk
from moerge_proto.workflows import WorkflowState
from support.federation import Federation, eventually, federation_of, honest_trunk, send_trunk, trunk_path
from support.statistics import written

TIED: dict[str, Any] = {"tie_word_embeddings": True}
JSON = {"Content-Type": "application/json"}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three tied experts: base, law and art. Only law has sent a trunk contribution."""
    with federation_of(tmp_path_factory.mktemp("trunks"), "base", "law", "art", **TIED) as made:
        law = made.members["law"]
        send_trunk(law, written(made.folder / "trunk-contribution", *honest_trunk(law)))
        yield made


def tensors(federation: Federation, trunk: Trunk) -> dict[str, torch.Tensor]:
    return load_file(trunk_path(federation.server, trunk))


def own(federation: Federation, domain: str) -> dict[str, torch.Tensor]:
    return load_file(federation.members[domain].folder / "model.safetensors")


def test_each_method_merges_what_it_says(federation: Federation) -> None:
    base_digest, *two = federation.digests("base", "law", "art")
    base, law, art = (own(federation, domain)[EMBEDDING].double() for domain in ("base", "law", "art"))
    whole = {"base": base_digest, "retain": 1.0, "scale": 0.25}
    expected: list[tuple[dict[str, object], torch.Tensor]] = [
        ({"experts": two}, (law + art) / 2),
        ({"experts": two, "method": "weighted", "options": {"weights": {"art": 3}}}, (law + 3 * art) / 4),
        ({"method": "base", "options": {"base": two[1]}}, art),
        ({"method": "dare", "options": whole}, base + 0.25 * (law - base + art - base)),
    ]
    for how, tensor in expected:
        trunk = federation.merge(**how)
        torch.testing.assert_close(tensors(federation, trunk)[EMBEDDING], tensor.float())
    assert trunk.experts == two  # by default all but the base
    assert trunk.contains == [base_digest, *two]
    ties = federation.merge(method="ties", options={"base": base_digest})
    assert not torch.equal(tensors(federation, ties)[EMBEDDING], tensors(federation, trunk)[EMBEDDING])
    assert federation.merge(method="ties", options={"base": base_digest}) == ties


def test_what_can_not_be_merged_is_refused_by_name(federation: Federation) -> None:
    asked: list[tuple[dict[str, object], str]] = [
        ({"options": {"retain": 0.5}}, "options.retain: expected a method too"),
        ({"method": "regmean", "options": {"retain": 0.5}}, "options.retain"),
        ({"method": "ties"}, "options.base"),
        ({"method": "weighted"}, "options.weights"),
        ({"method": "weighted", "options": {"weights": {"law": -1}}}, "weights.law"),
        ({"method": "regmean"}, "no trunk contribution of base, art"),
        ({"method": "regmean", "round": "first"}, "no round 'first'"),
    ]
    for how, said in asked:
        with pytest.raises(CoordinatorError) as caught:
            federation.operator.http.send("POST", "/v1/trunks", content=json.dumps(how).encode(), headers=JSON)
        assert said in str(caught.value), how


def test_without_a_method_the_trunk_contributions_decide(federation: Federation) -> None:
    command = ["trunk", "merge", "--expert", "law"]
    first = CliRunner().invoke(app, command, env=federation.server.environment())
    assert "Method: regmean" in first.stderr
    second = CliRunner().invoke(app, [*command, "--expert", "art"], env=federation.server.environment())
    assert "Method: average, because these domains have no trunk contribution: art." in second.stderr
    assert "worker run --trunk-contribution" in second.stderr
    assert federation.operator.trunk(second.stdout.strip()).method == "average"


@pytest.mark.parametrize("method", [method.name for method in METHODS.values() if method.solved])
def test_of_one_expert_a_solved_trunk_is_its_own_with_a_head(federation: Federation, method: str) -> None:
    trunk = federation.merge("law", method=method)
    assert len(trunk.contributions) == 1
    merged = tensors(federation, trunk)
    for name, tensor in own(federation, "law").items():
        if ".mlp." not in name:
            torch.testing.assert_close(merged[name], tensor, rtol=0, atol=1e-4)
    torch.testing.assert_close(merged[HEAD], merged[EMBEDDING], rtol=0, atol=1e-4)


def too_much(manifest: TrunkManifest, sums: ShardSums) -> TrunkManifest:
    sums.arrays["layers.1.attention_output"][:] *= 10**6
    return manifest


def negative_counts(manifest: TrunkManifest, sums: ShardSums) -> TrunkManifest:
    sums.arrays["token_counts"][3] = -1
    return manifest


def other_exponents(manifest: TrunkManifest, sums: ShardSums) -> TrunkManifest:
    return manifest.model_copy(update={"exponents": [1] * len(manifest.exponents)})


def other_expert(manifest: TrunkManifest, sums: ShardSums) -> TrunkManifest:
    return manifest.model_copy(update={"expert": "0" * 64})


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (too_much, "layers.1.attention_output"),
        (negative_counts, "token_counts"),
        (other_exponents, "manifest.exponents"),
        (other_expert, "manifest.expert"),
    ],
)
def test_a_trunk_contribution_that_can_t_be_is_refused_and_leaves_nothing(
    federation: Federation, change: Callable[[TrunkManifest, ShardSums], TrunkManifest], where: str
) -> None:
    member = federation.members["art"]
    manifest, sums = honest_trunk(member)
    path = written(federation.folder / "wrong", change(manifest, sums), sums)
    with pytest.raises(CoordinatorError) as caught:
        send_trunk(member, path)
    assert caught.value.where == where
    assert not list(member.client.contributions("trunk"))


def test_what_is_chosen_at_solve_time_touches_no_contribution(federation: Federation) -> None:
    trunk = federation.merge()
    federation.contribute(trunk)
    plain = federation.solve()
    balanced = federation.solve(options=SolveOptions(domain_weights="balanced"))
    assert balanced.lineage.contributions == plain.lineage.contributions
    weighed = federation.solve(options=SolveOptions(domain_weights={"law": 5.0}))
    relative = federation.solve(options=SolveOptions(lambda_scale="relative"))
    files = [{f.name: f.sha256 for f in row.files}["model-router.safetensors"] for row in (plain, weighed, relative)]
    assert len(set(files)) == 3
    with pytest.raises(CoordinatorError, match="code; the version's domains are base, law, art"):
        federation.solve(options=SolveOptions(domain_weights={"code": 5.0}))
    with pytest.raises(CoordinatorError, match="needs every domain's tuning split; missing: art, base, law"):
        federation.solve(options=SolveOptions(lambda_scale="auto"))
    federation.contribute(trunk, split="tuning", first=9)
    chosen = federation.solve(options=SolveOptions(lambda_scale="auto"))
    assert len(chosen.lineage.contributions) == 6
    assert federation.solve().number == plain.number  # the tuning split is no part of a version that doesn't use it
    report = federation.operator.version_report(chosen.number)
    assert len(report.layers) == 3
    assert all(layer.ridge_lambda > 0 and layer.condition >= 1 for layer in report.layers)
    assert all(layer.cosines[i][i] == pytest.approx(1) for layer in report.layers for i in range(3))


def test_a_tied_version_has_no_head_and_computes_the_same(federation: Federation) -> None:
    federation.merge()
    versions = [federation.solve(tied=tied) for tied in (False, True)]
    folders = [federation.version(version.number) for version in versions]
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in folders]
    assert [model.config.tie_word_embeddings for model in models] == [False, True]
    ids = torch.arange(40)[None]
    torch.testing.assert_close(models[0](ids).logits, models[1](ids).logits)
    assert versions[1].bytes_total < versions[0].bytes_total - 300 * 32 * 4 + 5000


def test_a_trunk_with_a_head_of_its_own_can_t_be_tied(federation: Federation) -> None:
    trunk = federation.merge("law", method="regmean")
    federation.contribute(trunk, "law")
    with pytest.raises(CoordinatorError, match="isn't its embedding"):
        federation.solve(tied=True)


def test_the_commands_show_a_trunk_and_a_version(federation: Federation) -> None:
    digest = federation.moerge(
        "trunk", "merge", "--expert", "law", "--expert", "art", "--method", "weighted", "--weight", "art=2"
    )
    shown = federation.moerge("trunk", "show", COLUMNS="200")
    assert digest in shown
    assert "weighted, weights = {'art': 2.0}" in shown
    assert "law, art" in shown
    federation.contribute(federation.operator.trunk(digest))
    number = federation.moerge("version", "solve", "--domain-weight", "balanced")
    shown = federation.moerge("version", "show", number, COLUMNS="200")
    for text in ("domain weights balanced", "tensors", "condition", "highest", "norm: law"):
        assert text in shown


def test_vocabularies_of_other_length_are_padded_only_where_the_operator_says_so(tmp_path: Path) -> None:
    longer = {"tokens": ["<law>", "<brief>"], "vocab_size": 304}
    with federation_of(tmp_path / "same", "art") as same:
        with pytest.raises(CoordinatorError, match="vocab_size is 304, not 300") as caught:
            same.add("law", 2, **longer)
        assert 'vocabulary = "pad"' in caught.value.todo
    settings = 'vocabulary = "pad"\nexpert_max_distance = 2\n'  # a random seed model of another size is another one
    with federation_of(tmp_path / "pad", "art", settings=settings) as padded:
        law = padded.add("law", 2, **longer)
        with pytest.raises(CoordinatorError, match="tokenizer"):
            padded.add("code", 3, tokens=["<code>"])
        trunk = padded.merge()
        merged = tensors(padded, trunk)
        assert merged[EMBEDDING].shape == merged[HEAD].shape == (304, 32)
        assert torch.equal(merged[EMBEDDING][300:], own(padded, "law")[EMBEDDING][300:])
        padded.contribute(trunk)
        folder = padded.version(padded.solve().number)
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.vocab_size == model(torch.tensor([[303]])).logits.shape[-1] == 304
        assert (folder / "tokenizer.json").read_bytes() == (law.folder / "tokenizer.json").read_bytes()


def test_a_trunk_of_an_earlier_revision_is_merged_anew(federation: Federation) -> None:
    new = federation.merge("law", method="regmean")
    federation.server.stop()
    with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite")) as database, database:
        change = "UPDATE trunks SET revision = 1, digest = ? WHERE digest = ?"
        assert database.execute(change, ["1" * 64, new.digest]).rowcount == 1
    federation.server.start()
    assert federation.trunk().digest == "1" * 64
    again = federation.merge("law", method="regmean")
    assert (again.digest, again.current) == (new.digest, True)


def test_interrupted_workflows_of_an_earlier_build_start_anew(federation: Federation) -> None:
    trunk = federation.merge()
    ran = next(each for each in federation.operator.workflows() if each.result == trunk.digest)
    federation.server.stop()
    with closing(sqlite3.connect(federation.server.home / "workflows.sqlite")) as database, database:
        cut = "status = 'PENDING', output = NULL, application_version = '0'"
        update = f"UPDATE workflow_status SET {cut} WHERE workflow_uuid = ?"  # noqa: S608  # written here
        assert database.execute(update, [ran.id]).rowcount == 1
    federation.server.start()
    name, _, number = ran.id.rpartition("-")
    eventually(lambda: federation.operator.workflow(ran.id).state is WorkflowState.FAILED)
    eventually(lambda: federation.operator.workflow(f"{name}-{int(number) + 1}").result == trunk.digest)
