"""A checkpoint may be a folder or a hub id; what can't be had is told, and what to do."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from moerge.errors import CheckpointError, MoergeError
from moerge.models.adapters import WEIGHTS
from moerge.models.sources import ADAPTER_CONFIG, checkpoint_folder, hub_id, on_base, source_for, source_from


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


def test_a_path_may_begin_with_the_user_s_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base, own = tmp_path / "base", tmp_path / "own"
    for folder in (base, own):
        folder.mkdir()
    (own / ADAPTER_CONFIG).write_text("{}")
    assert (checkpoint_folder("~/base"), hub_id("~/base")) == (base, None)
    assert str(base) in (checkpoint_folder("~/base+~/own") / ADAPTER_CONFIG).read_text()
    assert source_for(str, "~/base") == "~/base"
    assert source_from(Path("/srv"), "~/base") == str(base)


@pytest.mark.parametrize(
    ("name", "content", "todo"),
    [
        ("law.gguf", b"", "GGUF isn't read"),
        ("LAW.GGUF", b"", "GGUF isn't read"),
        ("sha256-0a", b"GGUF\x03\0\0\0", "GGUF isn't read"),
        ("pytorch_model.bin", b"", "pickles aren't read"),
        ("law.pth", b"", "pickles aren't read"),
        ("law.tar.gz", b"", "unpack it"),
        ("law.7z", b"", "unpack it"),
        ("law.onnx", b"", "as safetensors"),
        ("model.safetensors", b"", "with config.json, safetensors and a tokenizer"),
        ("law", b"", "with config.json, safetensors and a tokenizer"),
    ],
)
def test_a_file_is_called_a_file_and_its_kind_has_a_remedy(
    name: str, content: bytes, todo: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="a file, not a folder") as caught:
        checkpoint_folder(str(tmp_path / name))
    assert todo in caught.value.todo


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_of_a_model_s_folder_names_the_folder(name: str, tmp_path: Path) -> None:
    for file in ("config.json", name):
        (tmp_path / file).write_text("{}")
    with pytest.raises(CheckpointError, match="a file, not a folder") as caught:
        checkpoint_folder(str(tmp_path / name))
    assert caught.value.todo == f"name its folder: {tmp_path}"


@pytest.mark.parametrize(
    "source",
    ["./law", "../law", "~/law", "models/law.gguf", "models/law.safetensors", "models/config.json"],
)
def test_a_path_is_not_looked_up_on_the_hub(source: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        checkpoint_folder(source)
    assert caught.value.what == "no such folder"


def test_a_misspelt_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "law").mkdir(parents=True)
    (tmp_path / "models" / "art.gguf").touch()
    for source, near in (("./modles/law", "models/law"), ("models/lw", "models/law"), ("./models/art", "")):
        with pytest.raises(CheckpointError, match="no such folder") as caught:
            checkpoint_folder(source)
        assert caught.value.todo.startswith(f"did you mean {near}?" if near else "name a folder"), source


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "law").symlink_to("moved")
    with pytest.raises(CheckpointError, match="a link to moved, which is missing"):
        checkpoint_folder(str(tmp_path / "law"))


def test_an_address_of_the_hub_has_its_id_as_remedy() -> None:
    with pytest.raises(CheckpointError, match="no such folder") as caught:
        checkpoint_folder("https://huggingface.co/lab/law/tree/main")
    assert caught.value.todo == "name the hub id: lab/law"


def test_a_folder_around_a_snapshot_of_the_hub_is_not_a_model_s(tmp_path: Path) -> None:
    folder = tmp_path / "models--lab--my-law"
    (folder / "snapshots").mkdir(parents=True)
    for place in (folder, folder / "snapshots"):
        with pytest.raises(CheckpointError, match="a folder of the hub's cache") as caught:
            checkpoint_folder(str(place))
        assert caught.value.todo == "name the hub id, which is downloaded: lab/my-law"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir()
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="a folder of the hub's cache") as caught:
        checkpoint_folder(str(folder))
    assert str(snapshot) in caught.value.todo
    assert checkpoint_folder(str(snapshot)) == snapshot
    (folder / "config.json").write_text("{}")
    assert checkpoint_folder(str(folder)) == folder, "a copy under this name"


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
