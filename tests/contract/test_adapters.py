"""Adapters of the seed over REST: merged by the coordinator, or sent as merged MLPs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moerge.client.register import register
from moerge.errors import CoordinatorError
from moerge.fits.parts import write_parts
from moerge.models.adapter_settings import AdapterSettings
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import expert_digest, file_digests
from moerge.progress import Tracker
from moerge_proto.experts import Expert, ExpertState, NewAdapter, NewExpert, Parts
from support.federation import SILENT, Federation, Member, eventually, federation_of
from support.models import adapter

WEIGHTS = {"uploading adapter_model.safetensors", "uploading model.safetensors"}


class Titles:
    """Progress that keeps the titles of uploaded weights."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[Tracker]:
        self.seen += WEIGHTS & {title}
        with SILENT.track(title, total, unit) as tracker:
            yield tracker


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("adapters")) as federation:
        yield federation


@dataclass
class Adapted:
    """An owner with an adapter of the seed's MLPs, and the parts that it makes, in a folder."""

    member: Member
    lora: Path
    folder: Path
    parts: Parts

    @property
    def new(self) -> NewExpert:
        return NewExpert(domain=self.member.domain, files=file_digests(DenseFiles(self.folder)), parts=self.parts)

    def register(self, titles: Titles) -> Expert:
        return register(self.member.client, DenseFiles(self.folder), self.new, titles, adapter=self.lora)


def adapted(federation: Federation, domain: str, folder: Path, scale: float = 1) -> Adapted:
    """`scale` multiplies the adapter's weights."""
    lora = adapter(folder / "lora", federation.seed, 100 + len(federation.members), "up_proj", "down_proj")
    path = lora / "adapter_model.safetensors"
    save_file({name: scale * tensor for name, tensor in load_file(path).items()}, path)
    made = write_parts(DenseFiles(lora), folder / "parts", own_head=False)
    digest, body = expert_digest(file_digests(DenseFiles(lora))), federation.body().digest
    parts = Parts(expert=digest, body=body, fitted=False, own_head=False)
    return Adapted(federation.join(domain, lora), lora, made, parts)


def test_only_the_adapter_is_sent(federation: Federation, tmp_path: Path) -> None:
    law, titles = adapted(federation, "law", tmp_path), Titles()
    row = law.register(titles)
    assert titles.seen == ["uploading adapter_model.safetensors"]
    assert row.state is ExpertState.READY
    assert row.adapter is not None
    assert row.adapter.base == federation.body().digest
    assert {file.name: file.sha256 for file in row.files} == file_digests(DenseFiles(law.folder))
    assert law.register(titles).digest == row.digest
    assert len(titles.seen) == 1
    assert "an adapter's, merged with the seed" in federation.moerge("expert", "show", "law")


def test_weights_of_a_refused_adapter_are_not_sent(federation: Federation, tmp_path: Path) -> None:
    titles = Titles()
    with pytest.raises(CoordinatorError, match="contains NaN or infinity"):
        adapted(federation, "huge", tmp_path, scale=1e25).register(titles)
    assert titles.seen == ["uploading adapter_model.safetensors"]


def test_if_the_coordinator_rounds_differently_the_merged_mlps_are_sent(federation: Federation, tmp_path: Path) -> None:
    history, titles = adapted(federation, "history", tmp_path), Titles()
    path = history.folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] += 1e-6  # as another processor may
    save_file(weights, path, {"format": "pt"})
    row = history.register(titles)
    assert titles.seen == ["uploading adapter_model.safetensors", "uploading model.safetensors"]
    assert (row.state, row.adapter) == (ExpertState.READY, None)
    assert {file.name: file.sha256 for file in row.files} == file_digests(DenseFiles(history.folder))


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"rank_pattern": {"(a+)+b": 2}}, "adapter_config.json: rank_pattern"),
        ({"peft_type": "IA3"}, "adapter_config.json: peft_type"),
        ({"r": 3}, "lora_A"),
    ],
)
def test_a_hostile_adapter_is_refused(
    federation: Federation, tmp_path: Path, settings: dict[str, Any], where: str
) -> None:
    owner = adapted(federation, f"hostile-{len(federation.members)}", tmp_path)
    client, lora = owner.member.client, owner.lora
    new = owner.new
    for name in new.files:
        if not name.endswith(".safetensors"):
            client.upload(owner.folder / name, SILENT, title=name)
    weights = client.upload(lora / "adapter_model.safetensors", SILENT, title="").sha256
    relevant = {**AdapterSettings.of(lora).relevant, **settings}
    sent = NewAdapter(base=new.parts.body, weights=weights, settings=relevant)
    digest = client.register_expert(new.model_copy(update={"adapter": sent})).digest
    eventually(lambda: client.expert(digest).state is not ExpertState.RECEIVED)
    row = client.expert(digest)
    assert row.state is ExpertState.REFUSED
    assert row.problem is not None
    assert where in row.problem.field
