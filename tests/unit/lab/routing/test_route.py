"""`moerge route`: the weights of a version's and of mixtures' experts along a text, as SVG and HTML."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.errors import MoergeError
from moerge_lab.mixtures.bam import Bam
from moerge_lab.mixtures.base import observed
from moerge_lab.mixtures.bts import Bts
from moerge_lab.mixtures.heterogeneous import Heterogeneous, running_means
from moerge_lab.mixtures.jetmoe import jetmoe
from moerge_lab.routing.weights import along
from moerge_proto.records import Build, MixtureMember, TunedMixture
from support.models import expert, tokenizer
from support.versions import published

TEXT = "a <b> & \n'c'"
IDS = tokenizer()(TEXT)["input_ids"]
SVG = "{http://www.w3.org/2000/svg}"


def folders(folder: Path, **settings: Any) -> dict[str, Path]:
    names = {"seed": 0.0, "code": 0.02, "law": 0.02}
    return {
        name: expert(folder / name, slot, apart=apart, **settings) for slot, (name, apart) in enumerate(names.items())
    }


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """The model with random new parameters, in a folder with a tokenizer."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.added().values() if isinstance(model, Bam | Bts | Heterogeneous) else ():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def seen(model: PreTrainedModel, ids: list[int]) -> dict[str, Tensor]:
    with observed(model) as result, torch.inference_mode():
        model(torch.tensor([ids]), use_cache=False)
    return {name: weights[0] for name, weights in result}


def recorded(members: Sequence[str]) -> TunedMixture:
    """The record of a mixture."""
    return TunedMixture(
        recipe="bam",
        options={},
        tokens=1,
        texts={},
        weights={},
        context=2,
        precision="float32",
        accumulate=1,
        workers=1,
        seed=0,
        build=Build(moerge="0", torch="0", transformers="0", device="cpu"),
        members=[MixtureMember(name=name, digest="a" * 64) for name in members],
    )


def ran(*line: object) -> str:
    ended = CliRunner().invoke(app, ["route", *map(str, line)])
    return ended.stdout if ended.exception is None else str(ended.exception)


def test_version_weights_are_layer_averages_of_router_softmax(tmp_path: Path) -> None:
    members = folders(tmp_path)
    version = published([members["code"], members["law"]], tmp_path)
    model = AutoModelForCausalLM.from_pretrained(version, dtype=torch.float32)
    out = model(torch.tensor([tokenizer()(TEXT)["input_ids"]]), output_router_logits=True)
    wanted = torch.stack([logit.softmax(-1) for logit in out.router_logits])
    result = along(version, TEXT)
    assert (result.members, "".join(result.pieces)) == (["d0", "d1"], TEXT)
    torch.testing.assert_close(result.mean, wanted.mean(0))
    torch.testing.assert_close(along(version, TEXT, 1).mean, wanted[1])
    assert "layer 3" in ran(version, "--text", TEXT, "--out", tmp_path / "a.svg", "--layer", 3)
    assert "moerge publishes no model_type 'llama'" in ran(members["law"], "--text", "a", "--out", tmp_path / "a.svg")


def test_bts_weights_are_gates_of_experts_into_hub_layers(tmp_path: Path) -> None:
    model = Bts.of(folders(tmp_path))  # experts-into-hub behind the layers 0 and 2
    folder = saved(model, tmp_path / "bts")
    gates = seen(model, IDS)
    result = along(folder, TEXT)
    assert list(result.members) == ["seed", "code", "law"]
    torch.testing.assert_close(result.mean, gates["stock.model.layers.2.stitch.weights"].mean(-1))
    torch.testing.assert_close(result.mean.sum(-1), torch.ones(len(TEXT)))
    torch.testing.assert_close(along(folder, TEXT, 0).mean, gates["stock.model.layers.0.stitch.weights"].mean(-1))
    with pytest.raises(MoergeError, match=r"(?s)layer 1 has no experts-into-hub stitch layer.*use one of: 0, 2"):
        along(folder, TEXT, 1)


def test_bam_has_the_routers_of_attention_and_of_mlps(tmp_path: Path) -> None:
    model = Bam.of(folders(tmp_path), seed=0)
    folder, weights = saved(model, tmp_path / "bam"), seen(model, IDS)
    result = along(folder, TEXT)
    for part, module in (("attention", "self_attn"), ("MLPs", "mlp")):
        wanted = torch.stack([weights[f"stock.model.layers.{layer}.{module}.weights"] for layer in range(3)]).mean(0)
        torch.testing.assert_close(result.parts[f"routers of {part}, mean over the layers"], wanted)


def test_jetmoe_weights_use_the_members_of_its_record(tmp_path: Path) -> None:
    members = folders(tmp_path, num_key_value_heads=4)
    model = jetmoe(members, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(100 if "router" in name else 1)
    folder = saved(model, tmp_path / "jetmoe")
    logits = model(torch.tensor([IDS]), output_router_logits=True).router_logits  # of attention twice, of MLPs, …
    with pytest.raises(MoergeError, match="not found"):
        along(folder, TEXT)
    (folder / "moerge.json").write_text(recorded([*members]).model_dump_json())
    result = along(folder, TEXT)
    assert result.members == ["seed", "code", "law"]
    assert len(logits) == 9
    for first, part in ((1, "attention"), (2, "MLPs")):
        wanted = torch.stack([logit.softmax(-1) for logit in logits[first::3]])
        assert wanted.std() > 0.05
        torch.testing.assert_close(result.parts[f"routers of {part}, mean over the layers"], wanted.mean(0))
        torch.testing.assert_close(along(folder, TEXT, 2).parts[f"routers of {part}, layer 2"], wanted[2])


def test_experts_of_different_architectures_have_one_router(tmp_path: Path) -> None:
    members = folders(tmp_path) | {"art": expert(tmp_path / "art", 5, "qwen2", max_position_embeddings=8)}
    model = Heterogeneous.of(members, 0, 2)
    folder = saved(model, tmp_path / "heterogeneous")
    result = along(folder, TEXT)
    assert (result.members, "".join(result.pieces)) == ([*members], TEXT)
    means = running_means(model.embed_tokens(torch.tensor([IDS[:8], IDS[4:]])))  # windows of the shortest context
    logits = model.router(torch.cat([means[0], means[1, 4:]]))
    wanted = torch.zeros_like(logits).scatter(1, logits.topk(2).indices, logits.topk(2).values.softmax(-1))
    torch.testing.assert_close(result.mean, wanted)
    with pytest.raises(MoergeError, match="one router for all layers"):
        along(folder, TEXT, 0)


def test_the_pictures_show_every_token_and_need_no_other_file(tmp_path: Path) -> None:
    folder = saved(Bts.of(folders(tmp_path)), tmp_path / "bts")
    (tmp_path / "text.txt").write_text(TEXT)
    said = ran(folder, "--text", f"@{tmp_path / 'text.txt'}", "--out", tmp_path / "a.html")
    assert f"a.html: {len(TEXT)} tokens; seed " in said
    page = (tmp_path / "a.html").read_text()
    drawn = ElementTree.fromstring(page.partition("\n")[2])  # noqa: S314
    [tokens] = [item for item in drawn.iter("p") if item.get("class") == "tokens"]
    assert "".join(tokens.itertext()) == TEXT
    assert all(" %, law " in (token.get("title") or "") for token in tokens)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    ran(folder, "--text", 200 * TEXT, "--out", tmp_path / "a.svg")  # 2400 tokens, in windows of 256
    drawing = ElementTree.parse(tmp_path / "a.svg").getroot()  # noqa: S314
    assert [len((item.get("points") or "").split()) for item in drawing.iter(f"{SVG}polyline")] == [480] * 3
    shown = {item.text for item in drawing.iter(f"{SVG}text")}
    assert {"2000", "gates of the stitch layer behind layer 2"} <= shown
    assert "expected .html or .svg" in ran(folder, "--text", "a", "--out", tmp_path / "a.png")
    assert "can't be read" in ran(folder, "--text", "@none.txt", "--out", tmp_path / "a.svg")
    assert "the text has no token" in ran(folder, "--text", "", "--out", tmp_path / "a.svg")
