"""The statistics equal the textbook: X^T X and X^T Y in float64, from hidden states that transformers returns."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from moerge.documents.shards import plan
from moerge.models.dense import domain_model, empty_model
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens
from moerge.statistics import decoder
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.integers import to_floats, unpack
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.passes import BodyPass
from moerge_proto.statistics_file import StatisticsSettings
from support.documents import texts_of
from support.models import expert, on_body, texts, tokenizer
from support.passes import own_pass, sums_of


def rows_of(folder: Path, settings: StatisticsSettings, hidden_size: int) -> tuple[list[Tokens], int]:
    encode = tokenizer()
    path = texts(folder / "texts.jsonl", seed=3, documents=40)
    shards = list(plan(texts_of([path]), lambda text: Tokens(encode(text)["input_ids"]), settings, hidden_size, b"key"))
    return [row for shard in shards for row in shard.rows], sum(shard.documents for shard in shards)


@torch.inference_mode()
def textbook(model: PreTrainedModel, gains: Tensor, rows: list[Tokens]) -> tuple[list[Tensor], list[Tensor]]:
    """Grams and crosses of features / gain, one document at a time: no batches, no padding, no hooks.

    The MLP's input is rebuilt from what transformers returns: hidden_states[l] enters layer l, and adding the layer's
    attention gives the residual that its second norm sees.
    """
    layers, hidden = gains.shape
    grams = [torch.zeros(hidden, hidden, dtype=torch.float64) for _ in range(layers)]
    crosses = [torch.zeros(hidden, dtype=torch.float64) for _ in range(layers)]
    for row in rows:
        ids = torch.tensor([row.ids])
        states = model.model(ids, output_hidden_states=True, use_cache=False).hidden_states
        positions = torch.arange(len(row))[None]
        for number, layer in enumerate(model.model.layers):
            window = getattr(model.config, "sliding_window", None) or len(row)
            far = torch.arange(len(row))[:, None] - torch.arange(len(row))
            mask = torch.where((far >= 0) & (far < window), 0.0, -torch.inf)[None, None]
            rope = model.model.rotary_emb(states[number], positions)
            attended, _ = layer.self_attn(
                hidden_states=layer.input_layernorm(states[number]), position_embeddings=rope, attention_mask=mask
            )
            residual = (states[number] + attended)[0].double()
            u = residual / (residual.pow(2).mean(dim=1, keepdim=True) + model.config.rms_norm_eps).sqrt()
            u = torch.where(gains[number] == 0, 0.0, u)[torch.tensor(row.mask)]
            grams[number] += u.T @ u
            crosses[number] += u.sum(dim=0)
    return grams, crosses


@pytest.mark.parametrize(("family", "settings"), [("llama", {}), ("mistral", {"sliding_window": 8})])
@pytest.mark.parametrize("tokens_per_document", [None, 5])
def test_statistics_equal_the_textbook(
    tmp_path: Path, family: str, settings: dict[str, object], tokens_per_document: int | None
) -> None:
    folder = expert(tmp_path / "expert", seed=1, family=family, **settings)
    model, gains = domain_model(*on_body(folder, folder / "model.safetensors"))
    assert gains.std() > 0.1  # gains of 1 would test nothing
    plan_settings = StatisticsSettings(tokens_per_document=tokens_per_document, context=64, batch_tokens=512)
    rows, documents_seen = rows_of(tmp_path, plan_settings, gains.shape[1])
    sums = sums_of(own_pass(folder, len(gains)), rows, 512, documents_seen)
    assert documents_seen == 40
    assert sums.tokens == sum(map(len, rows))
    if tokens_per_document is not None:
        assert sums.tokens == 40 * tokens_per_document
    require_equal(sums, *textbook(model, gains, rows))


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_read_but_does_not_count_is_in_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """In a conversation of which the assistant's turns count; padded, and end to end as on a GPU."""
    folder = expert(tmp_path / "expert", seed=1)
    model, gains = domain_model(*on_body(folder, folder / "model.safetensors"))
    generator = torch.Generator().manual_seed(3)
    rows = [
        Tokens(
            torch.randint(256, (length,), generator=generator).tolist(),
            torch.randint(2, (length,), generator=generator).bool().tolist(),
        )
        for length in (3, 40, 17, 25)
    ]
    expected = textbook(model, gains, rows)
    if packed:
        monkeypatch.setattr(decoder, "empty_model", end_to_end)
    sums = sums_of(own_pass(folder, len(gains)), rows, 90)
    assert sums.tokens == sum(sum(row.mask) for row in rows)
    require_equal(sums, *expected)
    counts = sums_of(BodyPass(DenseFiles(folder), [16] * 5), rows, 90).arrays["token_counts"]
    assert counts.tolist() == [sum(row.signed.count(id_) for row in rows) for id_ in range(len(counts))]


def end_to_end(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model that reads documents without padding, as on a GPU in bfloat16."""
    model = empty_model(config, dtype)
    model.set_attn_implementation(PACKED)
    return model


def require_equal(sums: ShardSums, grams: list[Tensor], crosses: list[Tensor]) -> None:
    for layer, (gram, cross) in enumerate(zip(grams, crosses, strict=True)):
        scale = float(gram.diagonal().mean())
        square = unpack(to_floats(sums.arrays[f"layers.{layer}.gram"], 16), len(cross))
        np.testing.assert_allclose(square, gram.numpy(), atol=2e-5 * scale)
        np.testing.assert_allclose(
            to_floats(sums.arrays[f"layers.{layer}.cross"], 16), cross.numpy(), atol=2e-5 * scale
        )


def test_a_zero_gain_gives_a_zero_feature(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].post_attention_layernorm.weight[7] = 0
    model.save_pretrained(folder)
    sums = sums_of(own_pass(folder, 3), [[1, 2, 3, 4]])
    square = unpack(to_floats(sums.arrays["layers.1.gram"], 16), 32)
    assert not square[7].any()
    assert sums.arrays["layers.1.cross"][7] == 0
    assert np.trace(square) == pytest.approx(4 * 31, rel=0.05)


def test_padding_is_never_counted(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    rows = [[5] * 3, [6] * 17, [7]]
    together = sums_of(own_pass(folder, 3), rows)
    one_by_one = [sums_of(own_pass(folder, 3), [row]) for row in rows]
    apart = one_by_one[0] + one_by_one[1] + one_by_one[2]
    assert together.tokens == apart.tokens == 21
    for name, array in together.arrays.items():
        np.testing.assert_allclose(array, apart.arrays[name], atol=64)  # of 2**16 a unit
