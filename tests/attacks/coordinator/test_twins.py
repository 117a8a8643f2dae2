"""A coordinator serves two bodies that are nearly equal: the difference of the sums is the text behind one token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.models.families.family import EMBEDDING
from moerge.statistics.integers import square_of
from moerge.trunk.merge import DENSE_BODY_FILE
from moerge_proto.contributions import Contribution
from moerge_proto.progress import Obstacle
from moerge_proto.statistics_file import StatisticsFile
from support.models import seed_model, texts, tokenizer
from support.stages import MemoryClient, body, context_of, contribute, own_body

RARE, TAIL = "~", "abcde"
POLICY: dict[str, Any] = {"min_documents": 5, "min_tokens": 1}
ATTENTION = "model.layers.{}.self_attn.{}_proj.weight"


class Owner:
    """An owner with 60 documents, of which one has the rare token and a tail behind it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home, self.client = folder, home, MemoryClient(home / "served.safetensors")
        texts(home / "texts.jsonl", 1, 59)
        with (home / "texts.jsonl").open("a") as out:
            out.write(json.dumps({"text": f"begin {RARE}{TAIL}"}) + "\n")
        self.own = load_file(folder / DENSE_BODY_FILE)
        self.honest = self.other(1)

    def other(self, seed: int, *, apart: float = 0.01) -> dict[str, torch.Tensor]:
        """The owner's body with noise, as a share of each tensor's norm: another expert is merged into it."""
        generator = torch.Generator().manual_seed(seed)
        noise = {name: torch.randn(item.shape, generator=generator) for name, item in self.own.items()}
        return {name: item + apart * item.norm() / noise[name].norm() * noise[name] for name, item in self.own.items()}

    def under(
        self, number: int, tensors: dict[str, torch.Tensor], **given: Any
    ) -> tuple[list[Contribution], Obstacle | None]:
        """The router contributions of a run under a body of these tensors, and the obstacle."""
        save_file(tensors, self.client.weights)
        self.client.current = body(str(number) * 64)
        with context_of(self.folder, self.home, self.client, **{"policy": POLICY, **given}) as context:
            rows = contribute(context, self.client.current)
            return rows, context.events.status.state.obstacle

    def twin(self, **noise: float) -> dict[str, torch.Tensor]:
        """The honest body with one embedding row changed by its own norm: P6. `apart`: and with noise."""
        result = {name: item.clone() for name, item in self.honest.items()}
        [token] = tokenizer()(RARE)["input_ids"]
        result[EMBEDDING][token] += result[EMBEDDING][token].norm() / result[EMBEDDING].shape[1] ** 0.5
        if noise:
            further = self.other(2, **noise)
            result = {name: item + further[name] - self.own[name] for name, item in result.items()}
        return result

    def difference(self) -> torch.Tensor:
        """[H, H] float64: of the first layer's grams of the last two contributions."""
        grams = []
        for path in self.client.uploaded[-2:]:
            with StatisticsFile(path) as file:
                grams.append(square_of(file.gram(0), file.manifest.exponents[0]))
        return grams[1] - grams[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_body(tmp_path_factory.mktemp("owner"))


@pytest.fixture
def owner(folder: Path, tmp_path: Path) -> Owner:
    return Owner(folder, tmp_path)


def rank(square: torch.Tensor) -> int:
    size = torch.linalg.eigvalsh(square).abs()
    return int((size > 1e-3 * size.max()).sum())


@pytest.mark.parametrize(("share", "shows"), [(1, True), (0.5, False)])
def test_sums_under_twins_differ_by_many_secret_documents(owner: Owner, share: float, shows: bool) -> None:
    """With noise, so that no tensor is equal. If all documents count, only the tail's vectors are left: P6."""
    policy = {**POLICY, "merged_share": share}
    counted = [
        owner.under(number, tensors, policy=policy)[0][0].documents
        for number, tensors in enumerate((owner.honest, owner.twin(apart=1e-6)), 1)
    ]
    assert counted == [60, 60] if shows else all(15 < number < 45 for number in counted)
    assert (rank(owner.difference()) <= 1 + len(TAIL)) == shows


def test_share_counts_the_same_documents_under_one_body_and_others_under_each(owner: Owner) -> None:
    policy = {**POLICY, "merged_share": 0.5, "bodies_per_month": 9}
    shards, documents = list[list[str]](), list[int]()
    for number in (1, 2, 1):
        [row], _ = owner.under(number, owner.other(number), policy=policy)
        documents.append(row.documents)
        with StatisticsFile(owner.client.uploaded[-1]) as file:
            shards.append(file.manifest.shards)
    assert len(owner.client.uploaded) == 2  # again under the first body: nothing is sent
    assert shards[0] != shards[1]
    more = texts(owner.home / "more.jsonl", 2, 60).read_text()
    (owner.home / "texts.jsonl").write_text((owner.home / "texts.jsonl").read_text() + more)
    rows, _ = owner.under(2, owner.other(2), policy=policy)
    assert rows[0].documents == documents[1]
    assert 5 <= rows[1].documents < 60


@pytest.mark.parametrize("one", [True, False], ids=["one matrix", "all but a row"])
def test_twin_waits_for_the_owner(owner: Owner, one: bool, capsys: pytest.CaptureFixture[str]) -> None:
    name = ATTENTION.format(1, "k")
    twin = {**owner.other(3), name: owner.honest[name]} if one else owner.twin()
    assert owner.under(1, owner.honest)[0]
    for _ in range(2):
        assert owner.under(2, twin) == ([], Obstacle.ASKS_OWNER)
    assert len(owner.client.uploaded) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "is bit by bit that of body 111111111111" in said
    with context_of(owner.folder, owner.home, owner.client) as context:
        [asked] = context.outbox.history.asked()
        assert list(context.outbox.history.compared()) == ["1" * 64]
        context.outbox.history.note(asked, "approved")
    assert owner.under(2, twin)[0]


def test_honest_bodies_are_no_twins(owner: Owner, tmp_path: Path) -> None:
    """Other merges; norms that nobody trained; matrices that are the own expert's, or the own seed's; the same file."""
    seed = load_file(seed_model(tmp_path / "seed") / "model.safetensors")
    norm = "model.layers.0.input_layernorm.weight"
    names = [ATTENTION.format(0, part) for part in "kv"]
    frozen = {norm: owner.honest[norm], names[0]: owner.own[names[0]], names[1]: seed[names[1]]}
    policy = {**POLICY, "bodies_per_month": 9, "max_stray": 9, "max_perplexity_ratio": 99}
    for number in range(1, 4):
        rows, _ = owner.under(number, {**owner.other(number), **frozen}, policy=policy, seed=tmp_path / "seed")
        assert rows, number
    assert owner.under(4, {**owner.other(3), **frozen}, policy=policy, seed=tmp_path / "seed")[0]
