"""An owner whose expert spoils other text: no version has it before the operator is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from moerge.documents.pool import encoded_pool
from moerge.errors import CoordinatorError
from moerge.models.dense_files import DenseFiles
from moerge.models.families.family import HEAD
from moerge.statistics.contribution import router_manifest
from moerge.statistics.passes import RouterPass
from moerge_proto.digests import sha256_hex
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import StatisticsSettings
from support.dashboard import signed_in
from support.federation import Federation, Member, body_path, join, parted, registered, send
from support.models import on_body, seed_model
from support.passes import sums_of
from support.processes import coordinator
from support.statistics import written

DOMAINS = ("law", "art", "eve", "mallory", "trent")
DOWN = "model.layers.{}.mlp.down_proj.weight"
SPOILED: dict[str, dict[str, float]] = {
    "eve": {DOWN.format(1): -2},
    "mallory": {DOWN.format(2): 1e38},
    "trent": {HEAD: -8},
}
STEPS, ROWS = 150, 16


def trained(folder: Path) -> Path:
    """A seed that has learned the pool."""
    tokenizer = DenseFiles(seed_model(folder)).tokenizer
    model = AutoModelForCausalLM.from_pretrained(folder)
    rows = [text.ids[:48] for text in encoded_pool(tokenizer) if len(text.ids) >= 48]
    ids, optimizer = torch.tensor(rows), torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        batch = ids[torch.randint(len(ids), (ROWS,), generator=generator)]
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def changed(seed: Path, folder: Path, slot: int) -> Path:
    """An expert that keeps the seed's body: its MLPs moved a little, and some of them or its head spoiled."""
    tensors, generator = load_file(seed / "model.safetensors"), torch.Generator().manual_seed(slot)
    for name in sorted(name for name in tensors if ".mlp." in name):
        tensors[name] += 0.05 * tensors[name].std() * torch.randn(tensors[name].shape, generator=generator)
    for name, factor in SPOILED.get(DOMAINS[slot], {}).items():
        tensors[name] *= factor
    folder.mkdir()
    for path in seed.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def contribute(federation: Federation, member: Member, slot: int) -> None:
    """Sums of every third text of the pool."""
    body, dense = federation.body(), DenseFiles(federation.seed)
    rows = [text.ids for text in encoded_pool(dense.tokenizer)][slot::3]
    sums = sums_of(RouterPass(*on_body(member.place, body_path(federation.server, body)), body.exponents), rows)
    name = registered(member).digest
    manifest = router_manifest(member.name, name, member.domain, body, StatisticsSettings(), "statistics")
    counts = {"tokens": sums.tokens, "documents": sums.documents, "shards": [sha256_hex(member.domain.encode())]}
    send(member, written(federation.folder / member.domain, manifest.model_copy(update=counts), sums))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art have contributed."""
    folder = tmp_path_factory.mktemp("publications")
    with coordinator(folder / "home", seed=trained(folder / "seed")) as server, server.client() as operator:
        made = Federation(server, operator, folder, folder / "seed")
        with made.clients:
            for slot in (0, 1):
                add(made, slot)
            yield made


def add(federation: Federation, slot: int) -> None:
    folder = changed(federation.seed, federation.folder / f"{DOMAINS[slot]}-expert", slot)
    member = join(federation.server, DOMAINS[slot], folder)
    federation.enter(parted(federation.server, member, federation.body(), fitted=False)).register()
    contribute(federation, federation.members[DOMAINS[slot]], slot)


def test_a_version_with_an_expert_that_spoils_public_text_needs_the_operator_s_word(federation: Federation) -> None:
    """Its MLPs were compared with nothing if its owner called them fitted."""
    first = federation.solve().public_loss
    assert first is not None
    assert first.last is None
    assert abs(first.version - first.seed) < 0.1 < 1 < first.seed, "the seed has learned these texts"
    add(federation, DOMAINS.index("eve"))
    with pytest.raises(CoordinatorError, match="Without the expert of eve") as caught:
        federation.solve()
    assert caught.value.type == ProblemType.NOT_PUBLISHABLE.urn
    assert "moerge expert withdraw eve" in caught.value.todo
    assert [row.number for row in federation.operator.versions()] == [1]
    with signed_in(federation.server) as page:
        assert "Without the expert of eve (owner eve-owner)" in page.get("/workflows").text
    accepted = federation.solve(accept_loss=True).public_loss
    assert accepted is not None
    assert accepted.accepted
    assert (accepted.seed, accepted.last) == (first.seed, first.version)
    assert accepted.version > first.seed + 0.3
    shown = federation.moerge("version", "show", 2)
    assert "accepted by the operator" in shown


def test_no_word_publishes_a_version_that_computes_no_numbers(federation: Federation) -> None:
    """Its weights are finite, what they compute isn't."""
    add(federation, DOMAINS.index("mallory"))
    with pytest.raises(CoordinatorError, match=r"is inf nats.*Without the expert of mallory") as caught:
        federation.solve(accept_loss=True)
    assert "accept" not in caught.value.todo


def test_nobody_is_named_for_a_spoiled_head(federation: Federation) -> None:
    """art's owner was named: without its MLPs the loss was 27.59 instead of 27.60."""
    add(federation, DOMAINS.index("trent"))
    experts, before = federation.digests("law", "art", "trent"), [*federation.operator.versions()]
    with pytest.raises(CoordinatorError, match="No single expert's MLPs explain it") as caught:
        federation.solve(experts=experts, head="average")
    assert "Without" not in str(caught.value)
    assert "moerge version solve --head seed; or ask the owners" in caught.value.todo
    assert [*federation.operator.versions()] == before
    published = federation.solve(experts=experts, head="seed").public_loss
    assert published is not None
    assert not published.accepted
