"""Exports: the folder for the converter, and its run, with a script in the converter's place."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.errors import MoergeError
from moerge.export.folder import converter_folder
from moerge.export.gguf import export_gguf, version_config
from moerge.export.llama_cpp import converter_form
from moerge.models.stored import INDEX, StoredTensors
from moerge.progress import NoProgress
from support.models import expert
from support.versions import published

WRITES = """
import json, pathlib, sys
folder, given = pathlib.Path(sys.argv[1]), dict(zip(sys.argv[2::2], sys.argv[3::2]))
config = json.loads((folder / "config.json").read_text())
pathlib.Path(given["--outfile"]).write_text(f"{config['model_type']} {given['--outtype']} {given['--model-name']}")
"""
FAILS = """
import pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("--outfile") + 1]).write_text("half")
print("INFO: reading")
sys.exit("ERROR: Model NewForCausalLM is not supported")
"""


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    return published([expert(folder / str(seed), seed, "qwen2", **window) for seed in (1, 2)], folder)


def script(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "convert_hf_to_gguf.py").write_text(text)
    return folder


def test_converter_folder_has_equal_tensors_with_mixtral_names(version: Path, tmp_path: Path) -> None:
    form = converter_form(version_config(version))
    made = StoredTensors(converter_folder(version, form, tmp_path / "made", NoProgress()))
    own = StoredTensors(version)
    for layer in range(3):
        block = f"model.layers.{layer}"
        for slot in range(2):
            for theirs, ours in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
                name = f"{block}.block_sparse_moe.experts.{slot}.{theirs}.weight"
                assert torch.equal(made.tensor(name), own.tensor(f"{block}.mlp.experts.{slot}.{ours}.weight"))
        assert torch.equal(made.tensor(f"{block}.block_sparse_moe.gate.weight"), own.tensor(f"{block}.mlp.gate.weight"))
        name = f"{block}.self_attn.q_proj.bias"
        assert torch.equal(made.tensor(name), own.tensor(name))
        assert made.tensor(f"{block}.self_attn.sinks").exp().tolist() == [0.0] * 4
    assert not [name for name in made.specs if "shared" in name]
    index = json.loads((tmp_path / "made" / INDEX).read_text())["weight_map"]
    assert index == {name: spec.file.name for name, spec in made.specs.items()}
    assert (tmp_path / "made" / "tokenizer.json").read_bytes() == (version / "tokenizer.json").read_bytes()


def test_a_shared_expert_that_is_not_zero_is_not_dropped(version: Path, tmp_path: Path) -> None:
    other = shutil.copytree(version, tmp_path / "other")
    name, file = "model.layers.1.mlp.shared_expert.down_proj.weight", other / "model-body-added.safetensors"
    tensors = load_file(file)
    tensors[name][0, 0] = 1
    save_file(tensors, file)
    with pytest.raises(MoergeError, match="expected zeros") as caught:
        converter_folder(other, converter_form(version_config(other)), tmp_path / "made", NoProgress())
    assert name in caught.value.where


def test_files_without_a_changed_name_are_linked(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed, "mistral", sliding_window=8) for seed in (1, 2)]
    version = published(experts, tmp_path)
    made = converter_folder(version, converter_form(version_config(version)), tmp_path / "made", NoProgress())
    assert all((made / path.name).samefile(path) for path in version.glob("*.safetensors"))


def test_converter_writes_the_own_or_requested_number_format(version: Path, tmp_path: Path) -> None:
    llama = script(tmp_path / "llama", WRITES)
    export_gguf(version, tmp_path / "a.gguf", llama, None, NoProgress())
    export_gguf(version, tmp_path / "b.gguf", llama, "q8_0", NoProgress())
    assert (tmp_path / "a.gguf").read_text() == "granitemoe_swa f32 version"
    assert (tmp_path / "b.gguf").read_text() == "granitemoe_swa q8_0 version"
    assert {path.name for path in tmp_path.iterdir()} == {"a.gguf", "b.gguf", "llama"}


def test_the_converter_gets_the_options_without_which_it_fails(tmp_path: Path) -> None:
    version = published([expert(tmp_path / str(seed), seed, "qwen3_5_text") for seed in (1, 2)], tmp_path)
    llama = script(tmp_path / "llama", 'import sys\nsys.exit(f"ERROR: given {sys.argv[2:]}")')
    with pytest.raises(MoergeError, match="'--no-mtp'"):
        export_gguf(version, tmp_path / "a.gguf", llama, None, NoProgress())


def test_a_failed_converter_leaves_nothing_and_is_quoted(version: Path, tmp_path: Path) -> None:
    llama = script(tmp_path / "llama", FAILS)
    with pytest.raises(MoergeError, match="NewForCausalLM is not supported") as caught:
        export_gguf(version, tmp_path / "a.gguf", llama, None, NoProgress())
    assert "update llama.cpp" in caught.value.todo
    assert [path.name for path in tmp_path.iterdir()] == ["llama"]


def test_a_missing_converter_says_how_to_get_it(version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for llama, result in ((None, "not on PATH"), (tmp_path, "has no convert_hf_to_gguf.py")):
        with pytest.raises(MoergeError, match=result) as caught:
            export_gguf(version, tmp_path / "a.gguf", llama, None, NoProgress())
        assert "git clone" in caught.value.todo


def test_export_names_the_file_after_version_and_prints_limits(
    version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    short = published([expert(tmp_path / str(seed), seed, rope_parameters=rope) for seed in (1, 2)], tmp_path)
    monkeypatch.setenv("LLAMA_CPP", str(script(tmp_path / "llama", WRITES)))
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["export", str(short), "--gguf", "--quantise", "q8_0"])
    assert (ended.exit_code, ended.stdout) == (0, "version-q8_0.gguf: 20 bytes\n")
    assert "256 tokens" in ended.stderr
    assert isinstance(CliRunner().invoke(app, ["export", str(version)]).exception, MoergeError)


def test_nothing_else_is_exported(version: Path, tmp_path: Path) -> None:
    llama = script(tmp_path / "llama", WRITES)
    dense = expert(tmp_path / "dense", 1)
    refused = published([expert(tmp_path / str(seed), seed, "olmo2") for seed in (1, 2)], tmp_path / "olmo")
    (tmp_path / "there.gguf").touch()
    for folder, out, result in (
        (tmp_path / "champion", "a.gguf", "no config.json"),
        (dense, "a.gguf", "expected a version"),
        (refused, "a.gguf", "no FlexOlmo"),
        (version, "there.gguf", "already exists"),
    ):
        with pytest.raises(MoergeError, match=result):
            export_gguf(folder, tmp_path / out, llama, None, NoProgress())
    assert not (tmp_path / "a.gguf").exists()
