"""A model's folder from elsewhere, such as a clone: links in it lead to its user's private files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moerge.errors import CheckpointError
from moerge.export.gguf import export_gguf
from moerge.merging.merge import MergeSettings, merge
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import expert_files, small_files
from moerge.models.sources import checkpoint_folder
from moerge.progress import NoProgress
from moerge_lab.tuning.request import Wanted
from moerge_lab.tuning.version import read_version
from support.merging import SMALL, source
from support.models import adapter, expert, texts
from support.versions import published

TEMPLATE = "chat_template.jinja"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "ssh" / "id_rsa"
    path.parent.mkdir()
    path.write_text("{# -----BEGIN OPENSSH PRIVATE KEY----- #}")
    return path


def refused(read: Callable[[], object], path: Path) -> None:
    with pytest.raises(CheckpointError, match="a link out of the folder") as caught:
        read()
    assert caught.value.where == str(path)


@pytest.mark.parametrize("name", [TEMPLATE, "merges.txt", "vocab.json", "generation_config.json"])
def test_link_to_a_private_file_is_neither_sent_nor_published(tmp_path: Path, private: Path, name: str) -> None:
    link = expert(tmp_path / "law", 1, **SMALL) / name
    link.unlink(missing_ok=True)
    link.symlink_to(private)
    model = DenseFiles(link.parent)
    refused(lambda: expert_files(model), link)
    refused(lambda: small_files(model), link)
    refused(lambda: published([link.parent], tmp_path), link)


def test_merge_refuses_the_link_before_it_writes(tmp_path: Path, private: Path) -> None:
    for seed, domain in enumerate(("art", "law")):
        expert(tmp_path / domain, seed, **SMALL)
        texts(tmp_path / f"{domain}.jsonl", seed, 40)
    (tmp_path / "law" / TEMPLATE).symlink_to(private)
    sources, out = [source(tmp_path, domain) for domain in ("art", "law")], tmp_path / "merged"
    refused(lambda: merge(sources, out, MergeSettings(scored_tokens=0)), tmp_path / "law" / TEMPLATE)
    assert not out.exists()


def test_version_with_the_link_is_neither_tuned_nor_exported(tmp_path: Path, private: Path) -> None:
    version = published([expert(tmp_path / "law", 1, **SMALL)], tmp_path)
    (version / TEMPLATE).symlink_to(private)
    wanted = Wanted("dume-plus", {"d0": [str(texts(tmp_path / "d0.jsonl", 1, 40))]}, 64, {}, context=32)
    refused(lambda: read_version(version, wanted, NoProgress()), version / TEMPLATE)
    refused(lambda: export_gguf(version, tmp_path / "a.gguf", tmp_path, None, NoProgress()), version / TEMPLATE)


def test_adapter_on_a_base_brings_no_private_file(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = adapter(tmp_path / "own", expert(tmp_path / "base", 1, **SMALL), 2)
    (own / TEMPLATE).symlink_to(private)
    refused(lambda: checkpoint_folder(f"{tmp_path / 'base'}+{own}"), own / TEMPLATE)


def test_links_of_the_hub_s_cache_and_within_the_folder_are_followed(tmp_path: Path, private: Path) -> None:
    hub = tmp_path / "models--lab--law"
    snapshot = hub / "snapshots" / ("a" * 40)
    (hub / "blobs").mkdir(parents=True)
    for number, path in enumerate(sorted(expert(snapshot, 1, **SMALL).iterdir())):
        path.rename(hub / "blobs" / f"{number:040}")
        path.symlink_to(Path("../../blobs") / f"{number:040}")
    (snapshot / TEMPLATE).symlink_to("tokenizer_config.json")
    assert TEMPLATE in expert_files(DenseFiles(snapshot))
    assert TEMPLATE in small_files(DenseFiles(snapshot))
    (snapshot / "merges.txt").symlink_to(private)
    refused(lambda: expert_files(DenseFiles(snapshot)), snapshot / "merges.txt")


def test_link_in_place_of_the_hub_s_blobs_is_refused(tmp_path: Path, private: Path) -> None:
    folder = expert(tmp_path / "clone" / "snapshots" / "a", 1, **SMALL)
    (tmp_path / "clone" / "blobs").symlink_to(private.parent)
    (folder / TEMPLATE).symlink_to("../../blobs/id_rsa")
    refused(lambda: expert_files(DenseFiles(folder)), folder / TEMPLATE)
