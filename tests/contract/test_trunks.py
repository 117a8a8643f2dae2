"""Trunk methods over REST, trunk contributions, and what a version may choose at solve time."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.cli.common import wait
from moerge.errors import CoordinatorError, IncompatibleExpertError
from moerge.statistics.accumulate import ShardSums
from moerge.trunk.methods.registry import METHODS
from moerge.trunk.stray import require_near
from moerge_proto.options import SolveOptions
from moerge_proto.statistics_file import TrunkManifest
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion, Version
from support.fleet import Member, honest, honest_trunk, joined, merge, send, send_trunk, trunk_path
from support.models import expert
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written

TIED = {"tie_word_embeddings": True}
JSON = {"Content-Type": "application/json"}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass
class Fleet:
    server: Coordinator
    members: list[Member]
    folder: Path

    def experts(self) -> dict[str, str]:
        with self.server.client() as operator:
            return {row.domain: row.digest for row in operator.experts()}

    def send_all(self, trunk: Trunk, split: str = "statistics", first: int = 0) -> None:
        for member in self.members:
            parts = honest(self.server, member, trunk, first=first, split=split)
            send(member, written(self.folder / "contribution", *parts))

    def solve(self, **new: Any) -> Version:
        with self.server.client() as operator:
            return operator.version(int(wait(operator, operator.solve_version(NewVersion(**new)))))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three tied experts: base, law and art. Only law has sent a trunk contribution."""
    folder = tmp_path_factory.mktemp("fleet")
    with coordinator(folder / "home") as server:
        members = [joined(server, domain, folder, seed, **TIED) for seed, domain in enumerate(("base", "law", "art"))]
        send_trunk(members[1], written(folder / "trunk-contribution", *honest_trunk(members[1])))
        yield Fleet(server, members, folder)
        for member in members:
            member.client.close()


def tensors(fleet: Fleet, trunk: Trunk) -> dict[str, torch.Tensor]:
    return load_file(trunk_path(fleet.server, trunk))


def own(fleet: Fleet, place: int) -> dict[str, torch.Tensor]:
    return load_file(fleet.members[place].folder / "model.safetensors")


def test_each_method_merges_what_it_says(fleet: Fleet) -> None:
    digests = fleet.experts()
    base, law, art = (own(fleet, place)[EMBEDDING].double() for place in range(3))
    two = [digests["law"], digests["art"]]
    whole = {"base": digests["base"], "retain": 1.0, "scale": 0.25}
    expected: list[tuple[dict[str, object], torch.Tensor]] = [
        ({"experts": two}, (law + art) / 2),
        ({"experts": two, "method": "weighted", "options": {"weights": {"art": 3}}}, (law + 3 * art) / 4),
        ({"method": "base", "options": {"base": digests["art"]}}, art),
        ({"method": "dare", "options": whole}, base + 0.25 * (law - base + art - base)),
    ]
    for how, tensor in expected:
        trunk = merge(fleet.server, how.pop("experts", None), **how)  # type: ignore[arg-type]  # a list or None
        torch.testing.assert_close(tensors(fleet, trunk)[EMBEDDING], tensor.float())
    assert trunk.experts == two  # by default all but the base
    assert trunk.contains == [digests["base"], *two]
    ties = merge(fleet.server, method="ties", options={"base": digests["base"]})
    assert not torch.equal(tensors(fleet, ties)[EMBEDDING], tensors(fleet, trunk)[EMBEDDING])
    assert merge(fleet.server, method="ties", options={"base": digests["base"]}) == ties


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"options": {"retain": 0.5}}, "options.retain: no method is named"),
        ({"method": "regmean", "options": {"retain": 0.5}}, "options.retain"),
        ({"method": "ties"}, "options.base"),
        ({"method": "weighted"}, "options.weights"),
        ({"method": "weighted", "options": {"weights": {"law": -1}}}, "weights.law"),
    ],
)
def test_options_that_don_t_belong_to_the_method_are_refused_by_name(
    fleet: Fleet, how: dict[str, object], said: str
) -> None:
    with fleet.server.client() as operator, pytest.raises(CoordinatorError) as caught:
        operator.http.send("POST", "/v1/trunks", content=json.dumps(how).encode(), headers=JSON)
    assert said in str(caught.value)


def test_without_a_method_the_trunk_contributions_decide(fleet: Fleet) -> None:
    law = [fleet.experts()["law"]]
    assert (merge(fleet.server, law).method, merge(fleet.server).method) == ("regmean", "average")
    command = ["trunk", "merge", "--expert", "law"]
    first = CliRunner().invoke(app, command, env=fleet.server.environment())
    assert "Method: regmean" in first.stderr
    second = CliRunner().invoke(app, [*command, "--expert", "art"], env=fleet.server.environment())
    assert "Method: average, because these domains have no trunk contribution: art." in second.stderr
    assert "worker run --trunk-contribution" in second.stderr
    with fleet.server.client() as operator:
        assert operator.trunk(second.stdout.strip()).method == "average"


def test_a_changed_formula_gives_a_trunk_of_its_own(fleet: Fleet) -> None:
    trunk = merge(fleet.server, [fleet.experts()["law"]], method="moerge")
    assert trunk.revision == 2
    assert merge(fleet.server).revision == 1


def test_a_round_is_for_solved_methods(fleet: Fleet) -> None:
    with pytest.raises(CoordinatorError, match="the method 'average' takes no round") as caught:
        merge(fleet.server, method="average", round="first")
    assert "regmean, moerge" in caught.value.todo


def test_weights_name_domains_of_the_trunk(fleet: Fleet) -> None:
    with pytest.raises(CoordinatorError, match="code; the trunk's domains are base, law, art"):
        merge(fleet.server, method="weighted", options={"weights": {"code": 2}})
    with pytest.raises(CoordinatorError, match="every weight is zero"):
        merge(fleet.server, [fleet.experts()["law"]], method="weighted", options={"weights": {"law": 0}})


def test_regmean_needs_everyone_s_trunk_contribution_and_names_who_lacks(fleet: Fleet) -> None:
    with pytest.raises(CoordinatorError, match="no trunk contribution of base, art") as caught:
        merge(fleet.server, method="regmean")
    assert "--trunk-contribution" in caught.value.todo


@pytest.mark.parametrize("method", [method.name for method in METHODS.values() if method.solved])
def test_of_one_expert_a_solved_trunk_is_its_own_with_a_head(fleet: Fleet, method: str) -> None:
    trunk = merge(fleet.server, [fleet.experts()["law"]], method=method)
    assert len(trunk.contributions) == 1
    merged = tensors(fleet, trunk)
    for name, tensor in own(fleet, 1).items():
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
    fleet: Fleet, change: Callable[[TrunkManifest, ShardSums], TrunkManifest], where: str
) -> None:
    member = fleet.members[2]
    manifest, sums = honest_trunk(member)
    path = written(fleet.folder / "wrong", change(manifest, sums), sums)
    with pytest.raises(CoordinatorError) as caught:
        send_trunk(member, path)
    assert caught.value.where == where
    assert not list(member.client.trunk_contributions())


def test_what_is_chosen_at_solve_time_touches_no_contribution(fleet: Fleet) -> None:
    trunk = merge(fleet.server)
    fleet.send_all(trunk)
    plain = fleet.solve()
    balanced = fleet.solve(options=SolveOptions(domain_weights="balanced"))
    assert balanced.lineage.contributions == plain.lineage.contributions
    weighed = fleet.solve(options=SolveOptions(domain_weights={"law": 5.0}))
    relative = fleet.solve(options=SolveOptions(lambda_scale="relative"))
    files = [{f.name: f.sha256 for f in row.files}["model-router.safetensors"] for row in (plain, weighed, relative)]
    assert len(set(files)) == 3
    with pytest.raises(CoordinatorError, match="code; the version's domains are base, law, art"):
        fleet.solve(options=SolveOptions(domain_weights={"code": 5.0}))
    with pytest.raises(CoordinatorError, match="needs every domain's tuning split; missing: art, base, law"):
        fleet.solve(options=SolveOptions(lambda_scale="auto"))
    fleet.send_all(trunk, split="tuning", first=9)
    chosen = fleet.solve(options=SolveOptions(lambda_scale="auto"))
    assert len(chosen.lineage.contributions) == 6
    assert fleet.solve().number == plain.number  # the tuning split is no part of a version that doesn't use it
    with fleet.server.client() as operator:
        report = operator.version_report(chosen.number)
    assert len(report.layers) == 3
    assert all(layer.ridge_lambda > 0 and layer.condition >= 1 for layer in report.layers)
    assert all(layer.cosines[i][i] == pytest.approx(1) for layer in report.layers for i in range(3))


def test_a_tied_version_has_no_head_and_computes_the_same(fleet: Fleet) -> None:
    merge(fleet.server)
    versions = [fleet.solve(tied=tied) for tied in (False, True)]
    folders = [fleet.server.home / "versions" / str(version.number) for version in versions]
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in folders]
    assert [model.config.tie_word_embeddings for model in models] == [False, True]
    ids = torch.arange(40)[None]
    torch.testing.assert_close(models[0](ids).logits, models[1](ids).logits)
    assert versions[1].bytes_total < versions[0].bytes_total - 300 * 32 * 4 + 5000


def test_a_trunk_with_a_head_of_its_own_can_t_be_tied(fleet: Fleet) -> None:
    trunk = merge(fleet.server, [fleet.experts()["law"]], method="regmean")
    send(fleet.members[1], written(fleet.folder / "contribution", *honest(fleet.server, fleet.members[1], trunk)))
    with pytest.raises(CoordinatorError, match="isn't its embedding"):
        fleet.solve(tied=True)


def test_the_commands_show_a_trunk_and_a_version(fleet: Fleet) -> None:
    environment = fleet.server.environment()
    digest = moerge("trunk", "merge", "--expert", "law", "--expert", "art", "--method", "weighted", "--weight",
                    "art=2", **environment)  # fmt: skip
    shown = moerge("trunk", "show", **environment, COLUMNS="200")
    assert digest in shown
    assert "weighted, weights = {'art': 2.0}" in shown
    assert "law, art" in shown
    with fleet.server.client() as operator:
        trunk = operator.trunk(digest)
    fleet.send_all(trunk)
    number = moerge("version", "solve", "--domain-weight", "balanced", **environment)
    shown = moerge("version", "show", number, **environment, COLUMNS="200")
    for text in ("domain weights balanced", "tensors", "condition", "highest", "norm: law"):
        assert text in shown


def test_vocabularies_of_other_length_are_padded_only_where_the_operator_says_so(tmp_path: Path) -> None:
    longer = {"tokens": ["<law>", "<brief>"], "vocab_size": 304}
    with coordinator(tmp_path / "same") as server:
        joined(server, "art", tmp_path / "a", 1).client.close()
        with pytest.raises(CoordinatorError, match="vocab_size is 304, not 300") as caught:
            joined(server, "law", tmp_path / "a", 2, **longer)
        assert 'vocabulary = "pad"' in caught.value.todo
    server = Coordinator(tmp_path / "pad")
    with (server.home / "coordinator.toml").open("a") as settings:
        settings.write('\nvocabulary = "pad"\n')
    server.start()
    try:
        members = [joined(server, "art", tmp_path / "b", 1), joined(server, "law", tmp_path / "b", 2, **longer)]
        with pytest.raises(CoordinatorError, match="tokenizer"):
            joined(server, "code", tmp_path / "b", 3, tokens=["<code>"])
        padded = Fleet(server, members, tmp_path)
        trunk = merge(server)
        merged = load_file(trunk_path(server, trunk))
        assert merged[EMBEDDING].shape == merged[HEAD].shape == (304, 32)
        assert torch.equal(merged[EMBEDDING][300:], own(padded, 1)[EMBEDDING][300:])
        padded.send_all(trunk)
        folder = server.home / "versions" / str(padded.solve().number)
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.vocab_size == model(torch.tensor([[303]])).logits.shape[-1] == 304
        assert (folder / "tokenizer.json").read_bytes() == (members[1].folder / "tokenizer.json").read_bytes()
        for member in members:
            member.client.close()
    finally:
        server.stop()


def test_an_expert_whose_vocabulary_is_longer_than_the_trunk_s_is_told_so(tmp_path: Path) -> None:
    short = expert(tmp_path / "short", 1)
    long = expert(tmp_path / "long", 1, vocab_size=304)
    with pytest.raises(IncompatibleExpertError, match="another shape") as caught:
        require_near(long, short / "model.safetensors", 1.0)
    assert "merge a trunk that your expert is in" in caught.value.todo
    assert require_near(short, long / "model.safetensors", 10.0) >= 0
