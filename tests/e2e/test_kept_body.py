"""Owners whose experts keep the seed's body: only MLPs and router sums leave, and a version has the seed's head."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from moerge.cli.versions import new_version
from moerge.documents.corpus import Corpus
from moerge.files import file_sha256
from moerge.fits.parts import write_parts
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.merging.recipe import Recipe
from moerge.models.dense import expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.scoring.routers import forced
from moerge_proto.experts import ExpertState, Parts
from moerge_proto.recipes import PAPER
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE
from moerge_proto.versions import Version
from moerge_workers.outgoing.history import History
from support.federation import Federation, federation_of
from support.models import adapter, expert, keeping_expert
from support.versions import loaded, logits
from support.worker import Worker, worker_of

SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("kept"), **SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def workers(federation: Federation) -> Iterator[dict[str, Worker]]:
    """Of law and art, whose experts keep the seed's body, and of code, whose expert doesn't."""
    with ExitStack() as stack:
        made = {}
        for number, domain in enumerate(("law", "art", "code")):
            folder = federation.folder / domain
            if domain == "code":
                expert(folder / "expert", number, **SMALL)
            else:
                keeping_expert(folder / "expert", federation.seed, number)
            member = federation.join(domain, folder / "expert")
            made[domain] = stack.enter_context(worker_of(federation.server, member, folder, federation.seed))
            made[domain].write("a.jsonl", 1000 * number, 200)
        yield made


def sent(worker: Worker) -> list[str]:
    """The kinds of what has left."""
    with closing(History(worker.home)) as history:
        return sorted({sending.item.kind for sending in history.sendings()})


def run(worker: Worker, **settings: Any) -> None:
    assert worker.run(domain=worker.member.domain, **settings) == "ran"


def weights(federation: Federation, domain: str) -> dict[str, torch.Tensor]:
    """The registered tensors of a domain's expert."""
    [row] = [item for item in federation.operator.experts() if item.domain == domain and item.withdrawn is None]
    [file] = [file for file in row.files if file.name == "model.safetensors"]
    return load_file(federation.server.home / "blobs" / file.sha256[:2] / file.sha256)


def test_only_mlps_and_router_sums_leave_and_members_come_and_go(
    federation: Federation, workers: dict[str, Worker]
) -> None:
    run(workers["law"], dry_run=True)
    for domain in ("law", "art"):
        run(workers[domain])
        assert sent(workers[domain]) == ["expert", "router"]
        assert [row.parts and row.parts.own_head for row in federation.operator.experts() if row.domain == domain] == [
            False
        ]
        assert all(".mlp." in name for name in weights(federation, domain))
    first = federation.solve()
    assert (first.lineage.head.method, first.lineage.head.contributions, first.lineage.tied) == ("seed", [], True)
    version = loaded(federation.version(first.number))
    assert version.config.tie_word_embeddings
    card = (federation.version(first.number) / "README.md").read_text()
    assert "the experts' own, unchanged; law, art keep the seed's body and head" in card
    for slot, domain in enumerate(first.lineage.domains):
        with forced(version, slot):
            own = expert_model(DenseFiles(workers[domain].member.folder))
            torch.testing.assert_close(logits(version), logits(own), atol=1e-5, rtol=0)

    run(workers["code"])
    assert sent(workers["code"]) == ["expert", "head", "router"]
    mixed = federation.solve()
    assert (mixed.lineage.domains, mixed.lineage.head.method) == (["law", "art", "code"], "regmean")
    assert len(mixed.lineage.head.contributions) == 1
    assert loaded(federation.version(mixed.number)).lm_head.weight.isfinite().all()
    [code] = [row for row in federation.operator.experts() if row.domain == "code"]
    assert code.parts is not None
    assert (code.parts.fitted, code.parts.own_head) == (True, True)

    workers["code"].member.client.withdraw_expert(code.digest)
    left = federation.solve()
    assert same(left) == same(first), "as of a fresh coordinator"


def same(version: Version) -> dict[str, str]:
    return {file.name: file.sha256 for file in version.files}


LINEAGE = {"moerge.json", "README.md"}
"""The files that name body, experts and contributions: those of a service are parts and sums of its owners."""


def unequal(federation: Federation, workers: dict[str, Worker], version: Version, settings: MergeSettings) -> set[str]:
    """The names of files that differ between a version and a merge of law and art on one machine."""
    experts = [DenseExpert(domain, workers[domain].member.folder) for domain in ("law", "art")]
    sources = [Source(own, Corpus([str(workers[own.domain].folder / "data")], own)) for own in experts]
    out = federation.folder / f"merged-{version.number}"
    merge(sources, out, replace(settings, held_out_share=0, scored_tokens=0))
    made, published = {path.name: file_sha256(path) for path in out.iterdir()}, same(version)
    assert made.keys() == published.keys() - {SIGNATURE_FILE, PROVENANCE_FILE}
    return {name for name in made if made[name] != published[name]}


def test_moerge_merge_makes_the_service_s_version_of_them(federation: Federation, workers: dict[str, Worker]) -> None:
    base = DenseExpert("seed", federation.seed, hub_id=federation.body().source)
    settings = MergeSettings(base=base, automatic=True, automatic_head=True)
    assert unequal(federation, workers, federation.solve(), settings) == LINEAGE


def test_moerge_merge_by_the_paper_s_recipe_makes_the_service_s_version_by_it(
    federation: Federation, workers: dict[str, Worker]
) -> None:
    """The average of equal bodies is that body."""
    new = new_version(Recipe(recipe="dume"))
    version = federation.solve(options=new.options, head=new.head)
    assert unequal(federation, workers, version, MergeSettings(recipe=PAPER)) == LINEAGE


def test_an_expert_with_another_bit_is_not_taken_for_one_that_keeps_the_body(
    federation: Federation, workers: dict[str, Worker]
) -> None:
    folder = federation.folder / "geo"
    keeping_expert(folder / "expert", federation.seed, 7, layers__0__self_attn__v_proj__weight=2.0**-20)
    member = federation.join("geo", folder / "expert")
    with worker_of(federation.server, member, folder, federation.seed) as worker:
        worker.write("a.jsonl", 9000, 200)
        run(worker)
        assert sent(worker) == ["expert", "head", "router"]
    [row] = [item for item in federation.operator.experts() if item.domain == "geo"]
    assert row.parts is not None
    assert (row.parts.fitted, row.parts.own_head) == (True, True)


def test_of_an_adapter_on_the_seed_s_mlps_its_factors_alone_leave(federation: Federation) -> None:
    folder = federation.folder / "lora"
    lora = adapter(folder / "expert", federation.seed, 5, "up_proj", "down_proj")
    member = federation.join("lora", lora)
    with worker_of(federation.server, member, folder, federation.seed) as worker:
        worker.write("a.jsonl", 5000, 200)
        run(worker)
        with closing(History(worker.home)) as history:
            left = [sending.item.bytes for sending in history.sendings() if sending.item.kind == "expert"]
        small = sum(path.stat().st_size for path in federation.seed.iterdir() if path.suffix != ".safetensors")
        assert sorted(left) == sorted([small, (lora / "adapter_model.safetensors").stat().st_size])
        assert sent(worker) == ["expert", "router"]
    [row] = [item for item in federation.operator.experts() if item.domain == "lora"]
    assert row.adapter is not None
    body, digest = federation.body().digest, DenseExpert("lora", lora).digest
    assert row.parts == Parts(expert=digest, body=body, fitted=False, own_head=False)
    [file] = [file for file in row.files if file.name == "model.safetensors"]
    parts = write_parts(DenseFiles(lora), federation.folder / "lora" / "parts", own_head=False)
    assert file.sha256 == file_sha256(parts / "model.safetensors")


def test_mlps_of_another_body_that_pass_for_kept_harm_their_own_domain_alone(
    federation: Federation, workers: dict[str, Worker]
) -> None:
    for domain in ("law", "art"):
        run(workers[domain])
    before = federation.solve()
    folder = keeping_expert(
        federation.folder / "eve" / "expert", federation.seed, 9, o_proj__weight=3, v_proj__weight=3
    )
    parts = write_parts(DenseFiles(folder), federation.folder / "eve" / "parts", own_head=False)
    claimed = Parts(
        expert=DenseExpert("eve", folder).digest, body=federation.body().digest, fitted=False, own_head=False
    )
    eve = replace(federation.join("eve", folder), parts=claimed, at=parts)
    assert eve.register().state is ExpertState.READY
    federation.members["eve"] = replace(eve, at=folder)
    federation.contribute(federation.body(), "eve")
    after = federation.solve()
    assert after.lineage.domains == [*before.lineage.domains, "eve"]
    clean, harmed = (loaded(federation.version(version.number)) for version in (before, after))
    for slot, domain in enumerate(before.lineage.domains):
        with forced(harmed, slot), forced(clean, slot):
            assert torch.equal(logits(harmed), logits(clean)), domain
    with forced(harmed, len(before.lineage.domains)):
        assert (logits(harmed) - logits(expert_model(DenseFiles(folder)))).abs().max() > 0.1, "not its own expert"
