"""Adapters over REST: merged by the coordinator with a registered base, or sent as merged models."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from moerge.client.register import register
from moerge.errors import CoordinatorError
from moerge.models.adapter_settings import AdapterSettings
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import dense_folder, file_digests
from moerge.progress import Tracker
from moerge_proto.experts import ExpertState, NewAdapter, NewExpert
from support.federation import SILENT, Federation, Member, eventually, federation_of
from support.models import adapter, expert
from support.processes import moerge

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
    with federation_of(tmp_path_factory.mktemp("adapters"), "base") as federation:
        federation.members["base"].allow()
        yield federation


def joined(federation: Federation, domain: str, folder: Path) -> tuple[Member, Path, Path]:
    """An owner with an adapter of the base's expert, and the merged model."""
    base, seed = federation.members["base"].folder, 100 + len(federation.members)
    member = federation.join(domain, adapter(folder / "adapter", base, seed))
    return member, member.folder, dense_folder(DenseFiles(member.folder), folder / "dense")


def test_only_an_adapter_of_a_registered_base_is_sent(federation: Federation, tmp_path: Path) -> None:
    member, lora, dense = joined(federation, "law", tmp_path)
    titles, new = Titles(), NewExpert(domain="law", files=file_digests(DenseFiles(dense)))
    row = register(member.client, DenseFiles(dense), new, titles, adapter=lora)
    assert titles.seen == ["uploading adapter_model.safetensors"]
    assert row.state is ExpertState.READY
    assert row.adapter is not None
    assert row.adapter.base == federation.expert("base").digest
    assert {file.name: file.sha256 for file in row.files} == file_digests(DenseFiles(dense))
    assert register(member.client, DenseFiles(dense), new, titles, adapter=lora).digest == row.digest
    assert len(titles.seen) == 1


def test_the_command_names_the_base(federation: Federation, tmp_path: Path) -> None:
    member, lora, _ = joined(federation, "medicine", tmp_path)
    environment = federation.server.environment(member.token)
    digest = moerge("expert", "add", lora, "--domain", "medicine", **environment)
    assert digest == federation.expert("medicine").digest
    base = federation.expert("base").digest[:12]
    assert f"merged with expert {base}" in moerge("expert", "show", "medicine", **environment)


def test_without_a_permitted_base_the_merged_model_is_sent(federation: Federation, tmp_path: Path) -> None:
    member, lora, dense = joined(federation, "art", tmp_path)
    new, titles = NewExpert(domain="art", files=file_digests(DenseFiles(dense))), Titles()
    federation.members["base"].allow(redistribute=False)
    try:
        row = register(member.client, DenseFiles(dense), new, titles, adapter=lora)
    finally:
        federation.members["base"].allow()
    assert titles.seen == ["uploading model.safetensors"]
    assert (row.state, row.adapter) == (ExpertState.READY, None)


def test_with_an_unknown_base_the_merged_model_is_sent(federation: Federation, tmp_path: Path) -> None:
    lora = adapter(tmp_path / "other", expert(tmp_path / "unknown", 9), 3)
    member, dense = federation.join("maths", lora), dense_folder(DenseFiles(lora), tmp_path / "others")
    new, titles = NewExpert(domain="maths", files=file_digests(DenseFiles(dense))), Titles()
    assert register(member.client, DenseFiles(dense), new, titles, adapter=lora).state is ExpertState.READY
    assert titles.seen == ["uploading model.safetensors"]


def test_if_the_coordinator_rounds_differently_all_is_sent(federation: Federation, tmp_path: Path) -> None:
    member, lora, dense = joined(federation, "history", tmp_path)
    weights = load_file(dense / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] += 1e-6  # as another processor may
    save_file(weights, dense / "model.safetensors", {"format": "pt"})
    titles, new = Titles(), NewExpert(domain="history", files=file_digests(DenseFiles(dense)))
    row = register(member.client, DenseFiles(dense), new, titles, adapter=lora)
    assert titles.seen == ["uploading adapter_model.safetensors", "uploading model.safetensors"]
    assert (row.state, row.adapter) == (ExpertState.READY, None)
    assert {file.name: file.sha256 for file in row.files} == file_digests(DenseFiles(dense))


def test_weights_of_a_refused_adapter_are_not_sent(federation: Federation, tmp_path: Path) -> None:
    member, lora, _ = joined(federation, "far", tmp_path)
    path = lora / "adapter_model.safetensors"
    save_file({name: 100 * tensor for name, tensor in load_file(path).items()}, path)
    dense, titles = dense_folder(DenseFiles(lora), tmp_path / "dense"), Titles()
    new = NewExpert(domain="far", files=file_digests(DenseFiles(dense)))
    with pytest.raises(CoordinatorError, match="times the tensor's norm"):
        register(member.client, DenseFiles(dense), new, titles, adapter=lora)
    assert titles.seen == ["uploading adapter_model.safetensors"]


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
    domain = f"hostile-{len(federation.members)}"
    member, lora, dense = joined(federation, domain, tmp_path)
    files = file_digests(DenseFiles(dense))
    for name in files:
        if not name.endswith(".safetensors"):
            member.client.upload(dense / name, SILENT, title=name)
    weights = member.client.upload(lora / "adapter_model.safetensors", SILENT, title="").sha256
    sent = NewAdapter(
        base=federation.expert("base").digest,
        weights=weights,
        settings={**AdapterSettings.of(lora).relevant, **settings},
    )
    row = member.client.register_expert(NewExpert(domain=domain, files=files, adapter=sent))
    eventually(lambda: member.client.expert(row.digest).state is not ExpertState.RECEIVED)
    row = member.client.expert(row.digest)
    assert row.state is ExpertState.REFUSED
    assert row.problem is not None
    assert where in row.problem.field
