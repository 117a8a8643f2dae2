"""A checkpoint may be a folder or a hub id; what can't be had is told, and what to do."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from moerge.errors import CheckpointError, MoergeError
from moerge.models.adapters import WEIGHTS
from moerge.models.sources import ADAPTER_CONFIG, checkpoint_folder, hub_id, on_base


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert checkpoint_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("source", ["nobody/nothing", "nobody/nothing@v1"])
def test_a_hub_id_that_can_t_be_had_offline_is_told(source: str) -> None:
    with pytest.raises(CheckpointError, match="the hub can't provide it") as caught:
        checkpoint_folder(source)
    assert caught.value.where == source
    assert "network" in caught.value.todo


@pytest.mark.parametrize(
    ("variable", "value"),
    [("ALL_PROXY", "socks5://127.0.0.1:1080"), ("SSL_CERT_FILE", "/no/such/file"), ("HF_TOKEN", "hf_Zq7\x01Kx9")],
)
def test_an_environment_that_the_hub_cannot_use_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(MoergeError) as caught:
        checkpoint_folder("nobody/nothing")
    assert (caught.value.where, "Kx9" in str(caught.value)) == (variable, False)


@pytest.mark.parametrize("source", ["/no/such/folder", "folder", "a/b/c", ""])
def test_what_is_neither_is_told(source: str) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        checkpoint_folder(source)


def test_a_hub_id_in_the_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    revision = "a" * 40
    snapshot = tmp_path / "models--lab--law" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--lab--law" / "refs").mkdir()
    (tmp_path / "models--lab--law" / "refs" / "main").write_text(revision)
    assert checkpoint_folder("lab/law") == snapshot
    assert checkpoint_folder(f"lab/law@{revision}") == snapshot
    assert [hub_id("lab/law"), hub_id(f"lab/law@{revision}")] == ["lab/law"] * 2


def test_adapter_on_base_follows_the_current_symlinks(tmp_path: Path) -> None:
    own, base, made = tmp_path / "own", tmp_path / "base", tmp_path / "made"
    own.mkdir()
    (own / ADAPTER_CONFIG).write_text("{}")
    for step in ("first", "second"):
        (tmp_path / step).write_text(step)
        (own / WEIGHTS).unlink(missing_ok=True)
        (own / WEIGHTS).symlink_to(tmp_path / step)
        assert (on_base(base, own, made) / WEIGHTS).read_text() == step


def test_adapter_on_base_has_the_adapter_s_current_small_files(tmp_path: Path) -> None:
    own, made = tmp_path / "own", tmp_path / "made"
    own.mkdir()
    (own / ADAPTER_CONFIG).write_text("{}")
    (own / "tokenizer.json").write_text("first")
    assert (on_base(tmp_path, own, made) / "tokenizer.json").read_text() == "first"
    (own / "tokenizer.json").write_text("second")
    assert (on_base(tmp_path, own, made) / "tokenizer.json").read_text() == "second"
    (own / "tokenizer.json").unlink()
    assert {path.name for path in on_base(tmp_path, own, made).iterdir()} == {ADAPTER_CONFIG}


def test_a_base_s_path_may_have_a_plus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base, own = tmp_path / "c++" / "base", tmp_path / "a+b"
    for folder in (base, own):
        folder.mkdir(parents=True)
    (own / ADAPTER_CONFIG).write_text("{}")
    made = checkpoint_folder(f"{base}+{own}")
    assert str(base) in (made / ADAPTER_CONFIG).read_text()


def test_the_hub_s_name_of_a_model_is_told_from_its_address(tmp_path: Path) -> None:
    place = "https://huggingface.co/lab/law"
    assert [hub_id(place), hub_id(f"{place}/resolve/main/")] == ["lab/law"] * 2
    for other in (str(tmp_path), "https://models.example.org/lab/law", "https://huggingface.co/lab", "", "/srv/law"):
        assert hub_id(other) is None, other
