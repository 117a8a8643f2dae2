"""What has no exact stock equivalent is refused with the reason, by the name of the field."""

import json
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from moerge.errors import IncompatibleExpertError
from moerge.models.config import read_config
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_small_files
from moerge.models.families.family import Family
from moerge.models.families.refused import REFUSED
from moerge.models.families.registry import FAMILIES, family_of
from moerge.models.reader import Checkpoint
from moerge_lab.mixtures import CLASSES
from support.models import SMALL, expert, small_settings

FULL = {"layer_types": ["full_attention"] * 3}


def config(folder: Path, model_type: str, **settings: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SMALL, "model_type": model_type, **settings}))
    return folder


MIXED = ["full_attention", "sliding_attention", "full_attention"]
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("model_type", "settings", "field", "why"),
    [
        ("llama", {"mlp_bias": True}, "mlp_bias", "no biases"),
        ("internlm3", {"attention_bias": True, "mlp_bias": True}, "mlp_bias", "no biases"),
        ("seed_oss", {"attention_out_bias": True}, "attention_out_bias", "the attention's output"),
        ("seed_oss", {"mlp_bias": True}, "mlp_bias", "no biases of MLPs"),
        ("llama", {"attention_bias": True, "dtype": "float16"}, "dtype", "rounds to 0"),
        ("llama", {"attention_bias": True, "rope_parameters": DYNAMIC}, "rope_parameters.rope_type", "every length"),
        ("glm", {"rope_parameters": DYNAMIC}, "rope_parameters.rope_type", "every length"),
        ("helium", {"attention_bias": True}, "attention_bias", "no biases"),
        ("helium", {"mlp_bias": True}, "mlp_bias", "no biases"),
        ("cwm", {"mlp_bias": True}, "mlp_bias", "no biases"),
        ("smollm3", {"no_rope_layers": [1, 0, 1], "layer_types": MIXED}, "layer_types", "two kinds"),
        ("ministral3", {"rope_parameters": DYNAMIC}, "rope_parameters.rope_type", "YaRN"),
        ("gemma2", {}, "model_type", "capped logits"),
        ("granite", {"mlp_bias": True}, "mlp_bias", "no biases"),
        ("gemma4_text", {"enable_moe_block": True}, "enable_moe_block", "must be dense"),
        ("gemma4_text", {"dtype": "float16"}, "dtype", "float16 can't hold"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, "layer_types.-1", "no window"),
        ("gemma3_text", {**FULL, "attention_bias": True}, "attention_bias", "biases of values"),
        ("gemma3_text", {**FULL, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping", "doesn't cap"),
        ("gemma3_text", {**FULL, "use_bidirectional_attention": True}, "use_bidirectional_attention", "later ones"),
        ("gemma3_text", {**FULL, "dtype": "float16"}, "dtype", "float16 can't hold"),
        ("nemotron_h", {"layers_block_type": ["linear_attention", "moe"]}, "layers_block_type", "must be dense"),
        (
            "nemotron_h",
            {"layers_block_type": ["linear_attention", "mlp", "mlp"]},
            "layers_block_type",
            "each MLP",
        ),
        ("nemotron_h", {"layers_block_type": ["full_attention", "mlp"], "mlp_bias": True}, "mlp_bias", "no biases"),
        ("gpt_neox", {}, "model_type", "no gate"),
        ("starcoder2", {}, "model_type", "no gate"),
        ("gpt2", {}, "model_type", "no stock MoE class in moerge"),
    ],
)
def test_what_can_t_be_matched_is_refused_with_the_reason(
    tmp_path: Path, model_type: str, settings: dict[str, object], field: str, why: str
) -> None:
    with pytest.raises(IncompatibleExpertError, match=why) as caught:
        family_of(read_config(config(tmp_path / "dense", model_type, **settings)))
    assert caught.value.where == f"config.json: {field}"


def test_a_mixture_is_refused_with_the_law_s_reason(tmp_path: Path) -> None:
    for number, (kind, _) in enumerate(CLASSES):
        folder = config(tmp_path / str(number), kind.model_type)
        with pytest.raises(IncompatibleExpertError, match=r"\(law 6\)"):
            check_small_files(DenseFiles(folder), None, "expert")


def test_no_family_is_both_known_and_refused() -> None:
    assert not FAMILIES.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_form_of_a_family_has_its_model_type(name: str) -> None:
    form: Family | None = FAMILIES[name]
    while form is not None:
        assert form.model_type == name
        form = form.otherwise


def test_every_refused_family_is_one_of_transformers() -> None:
    own = {kind.model_type for kind, _ in CLASSES}
    assert REFUSED.keys() - own <= set(CONFIG_MAPPING.keys())


def test_the_refusal_of_an_unknown_family_names_the_issue_to_open(tmp_path: Path) -> None:
    for model_type, is_unknown in (("gpt2", True), ("gemma2", False)):
        with pytest.raises(IncompatibleExpertError) as caught:
            family_of(read_config(config(tmp_path / model_type, model_type)))
        assert ("open an issue with the model's hub id, its config.json" in caught.value.todo) == is_unknown


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_documents_share_a_row_only_where_all_layers_have_attention(tmp_path: Path, name: str) -> None:
    own = read_config(config(tmp_path / "dense", name, **small_settings(name)))
    assert FAMILIES[name].packs(own) == (name not in ("qwen3_5_text", "lfm2", "granitemoehybrid", "nemotron_h"))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_names_tensors_that_its_models_have(tmp_path: Path, name: str) -> None:
    folder = expert(tmp_path / "expert", seed=1, family=name)
    family, result = FAMILIES[name], Checkpoint(folder).specs.keys()
    pieces = [name for name in family.pieces if name.endswith(".weight")]  # an optional bias becomes one if it exists
    patterns = [*family.mlp, *pieces, *family.added]
    patterns += [gain for gain in (family.gain, family.final_norm, *family.zero_centred) if gain]
    assert all(any(pattern.format(layer=layer) in result for layer in range(3)) for pattern in patterns)
    for attention in family.attentions(DenseFiles(folder).config):
        assert {f"{module}.weight" for module in (*attention.inputs, attention.output) if module} <= result
        assert attention.gain is None or attention.gain in result
    assert (family.gain is None) == bool(family.added)
