"""A body has the tensors of its experts outside MLPs and head, and a name by all its inputs."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moerge.bodies.lineage import BodyLineage, BodyOptions
from moerge.bodies.merge import BodyInputs, FolderFiles, body_digest, files_digest, merge_body, seed_body, seed_digest
from moerge.bodies.methods.average import average
from moerge.bodies.methods.dare import dare
from moerge.bodies.methods.method import MethodInputs
from moerge.bodies.methods.registry import METHODS
from moerge.bodies.pieces import Piece
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.models.dense_files import DenseFiles
from moerge.models.reader import Checkpoint
from moerge.progress import NoProgress
from support.models import HEAD_NAMES, expert
from support.versions import body_file


def test_the_mean_is_summed_wider_than_its_dtype() -> None:
    """In bfloat16 itself, 256 + 1 + 1 + … stays 256."""
    tensors = [torch.tensor([256.0]), *[torch.tensor([1.0])] * 255]
    mean = average([tensor.bfloat16() for tensor in tensors], torch.bfloat16)
    assert mean.dtype == torch.bfloat16
    assert mean.item() == 2.0  # 511 / 256, rounded


def test_a_body_has_no_mlp_no_head_and_no_buffer_of_an_older_file(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    older = {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(older, path, metadata={"format": "pt"})
    merged = load_file(body_file([folder], tmp_path / "body"))
    assert merged.keys() == {name for name in tensors if ".mlp." not in name} - {*HEAD_NAMES}
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in merged.items())


def test_a_body_s_name_tells_every_input_and_their_order() -> None:
    def name(
        method: str = "average", experts: Sequence[str] = "ab", seed: int = 0, file: str = "1", bits: int = 16
    ) -> str:
        lineage = {"method": method, "experts": list(experts), "options": {"seed": seed}}
        return body_digest(lineage, {"body": file}, [bits])

    names = {name(), name("other"), name(experts="ba"), name(seed=1), name(file="2"), name(bits=15)}
    assert len(names) == 6
    assert name() in names


def test_revision_1_lineage_omits_the_revision_field() -> None:
    lineage = BodyLineage(method="average", options=BodyOptions(), experts=["0" * 64], contributions=[])
    fields = lineage.model_dump(mode="json")
    assert fields.keys() == {"method", "options", "experts", "contributions"}
    assert lineage.model_copy(update={"revision": 2}).model_dump(mode="json") == {**fields, "revision": 2}


def test_no_body_is_merged_by_another_revision_of_a_method(tmp_path: Path) -> None:
    """Else it would be named, and found again, as what the other formula makes."""
    lineage = BodyLineage(method="regmean", options=BodyOptions(), experts=["0" * 64], contributions=["1" * 64])
    with pytest.raises(MoergeError, match="expected revision 3 of 'regmean', found 1"):
        merge_body(lineage, BodyInputs({}, {}), FolderFiles(tmp_path), NoProgress())


def test_the_registry_is_imported_without_torch() -> None:
    code = "import sys, moerge.bodies.methods.registry; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603  # ours


def pieces(method: str, tensors: list[Tensor], options: dict[str, object], folder: Path) -> Tensor:
    """One tensor merged by a method, against a base model of zeros and ones."""
    save_file({"w": torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0])}, folder / "base", metadata={"format": "pt"})
    base = Checkpoint(folder / "base")
    chosen = BodyOptions.model_validate(options)
    rule = METHODS[method].rule
    assert rule is not None
    merge = rule(MethodInputs([], ["d0", "d1"], chosen, base))
    return merge(Piece("w", 0, range(len(tensors)), tensors, torch.float32))


WEIGHTS = ["body.safetensors", "head.safetensors", "parts.safetensors"]
NAMES = [*WEIGHTS, "config.json", "generation_config.json", "tokenizer.json"]
EXPERTS = [torch.tensor([4.0, 1.0, -2.0, 0.5, 1.0]), torch.tensor([-1.0, 2.0, -3.0, 0.25, 3.0])]


def test_weighted_counts_an_expert_by_its_weight(tmp_path: Path) -> None:
    merged = pieces("weighted", EXPERTS, {"weights": {"d1": 3.0}}, tmp_path)
    torch.testing.assert_close(merged, (EXPERTS[0] + 3 * EXPERTS[1]) / 4)


def test_seed_s_body_and_head_are_its_own_and_the_body_s_name_is_independent_of_the_head(tmp_path: Path) -> None:
    seeds = [expert(tmp_path / name, seed=1) for name in ("one", "other")]
    path = seeds[1] / "model.safetensors"
    tensors = load_file(path)
    other = {**tensors, "lm_head.weight": 2 * tensors["lm_head.weight"], "model.norm.weight": torch.zeros(32)}
    save_file(other, path, metadata={"format": "pt"})
    bodies = []
    for seed in seeds:
        made = seed_body(DenseFiles(seed), FolderFiles(seed / "body"), NoProgress(), "org/seed@1")
        body, head, parts = (load_file(seed / "body" / name) for name in WEIGHTS)
        own = load_file(seed / "model.safetensors")
        assert {name for name in own if ".mlp." not in name} == body.keys() | head.keys()
        assert parts.keys() == own.keys() - body.keys()
        assert all(torch.equal(tensor, own[name]) for name, tensor in [*{**body, **head}.items(), *parts.items()])
        assert made.digest == seed_digest(file_sha256(seed / "body" / "body.safetensors"), made.config, made.exponents)
        assert (made.method, made.source, made.experts) == ("seed", "org/seed@1", [])
        assert [file.name for file in made.files] == [*NAMES, "tokenizer_config.json"]
        assert made.seed == files_digest(made.files)
        bodies.append(made)
    assert bodies[0].digest == bodies[1].digest
    assert bodies[0].seed != bodies[1].seed


@pytest.mark.parametrize(
    ("family", "changed", "decides"),
    [
        ("llama", {"rms_norm_eps": 1e-5}, True),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, True),
        ("mistral", {"sliding_window": 128}, True),
        ("llama", {"initializer_range": 0.5}, False),
    ],
)
def test_seed_s_body_is_named_by_settings_that_decide_features(
    tmp_path: Path, family: str, changed: dict[str, Any], decides: bool
) -> None:
    digests = set()
    for name, settings in ("one", {}), ("other", changed):
        seed = expert(tmp_path / name, seed=1, family=family)
        config = json.loads((seed / "config.json").read_text())
        (seed / "config.json").write_text(json.dumps({**config, **settings}))
        digests.add(seed_body(DenseFiles(seed), FolderFiles(tmp_path / f"{name}-body"), NoProgress()).digest)
    assert len(digests) == 1 + decides


def test_ties_trims_elects_and_adds_what_agrees(tmp_path: Path) -> None:
    """Retaining 0.8 of 5 drops one each: the first's unchanged 1 and the second's 0.25. Then 4 beats -1."""
    merged = pieces("ties", EXPERTS, {"base": "0" * 64, "scale": 0.5}, tmp_path)
    torch.testing.assert_close(merged, torch.tensor([2.0, 1.5, -2.5, 0.25, 2.0]))


def test_dare_keeps_and_rescales_a_share_reproducibly_by_seed(tmp_path: Path) -> None:
    tensors = [torch.full((200_000,), 2.0), torch.full((200_000,), -1.0)]
    base = torch.zeros(200_000)
    merged = dare(base, tensors, torch.float32, 0.8, 1.0, "0")
    assert sorted(set(merged.tolist())) == [-1.25, 0.0, 1.25, 2.5]
    assert float((merged == 1.25).float().mean()) == pytest.approx(0.64, abs=0.01)
    assert float(merged.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.equal(merged, dare(base, tensors, torch.float32, 0.8, 1.0, "0"))
    assert not torch.equal(merged, dare(base, tensors, torch.float32, 0.8, 1.0, "1"))


def test_retaining_all_at_scale_one_over_d_is_the_average(tmp_path: Path) -> None:
    agreeing = [torch.tensor([4.0, 1.0, 2.0, 0.5, 1.0]), torch.tensor([1.0, 2.0, 3.0, 0.25, 3.0])]
    options: dict[str, object] = {"base": "0" * 64, "retain": 1.0, "scale": 0.5}
    for method in ("ties", "dare"):
        torch.testing.assert_close(pieces(method, agreeing, options, tmp_path), (agreeing[0] + agreeing[1]) / 2)


def test_a_body_has_the_widest_of_its_experts_dtypes(tmp_path: Path) -> None:
    folders = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    path = folders[0] / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    for order in (folders, folders[::-1]):
        assert {tensor.dtype for tensor in load_file(body_file(order, tmp_path / "body")).values()} == {torch.float32}
