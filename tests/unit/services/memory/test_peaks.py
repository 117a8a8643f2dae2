"""Measured peaks of memory are within the formulas.

Each test measures a small and a large input in one process. Libraries have memory of their own, whose size depends on
the processor: what the small input takes above its need is no part of the large one's peak.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from moerge.bodies.methods.registry import METHODS
from moerge.documents.pool import encoded_pool
from moerge.fits.sample import need_of as fitting_need
from moerge.memory.needs import merging, merging_head, scoring, whitening
from moerge.memory.shapes import Shape
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.published import published_weights
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import body_contribution, head_contribution
from moerge.statistics.passes import RouterPass, need_of
from moerge_proto.statistics_file import StatisticsSettings
from support.models import expert
from support.peaks import peaks_of
from support.versions import body_file, published

SLACK = 2**24
SUMMED = """
from moerge.documents.shards import Shard
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens
from moerge.statistics.passes import RouterPass
from moerge.statistics.streamed import Streamed
def call(folder):
    tokens = int(folder.name)
    streamed = Streamed(RouterPass(DenseFiles(folder), DenseFiles(folder), [0] * 2), tokens)
    for length in (64, 10):
        rows = [Tokens([row % 256] * length) for row in range(tokens // length)]
        for _ in range(streamed.begin([Shard("one", rows, len(rows))]), streamed.layers):
            streamed.sums(["one"])
"""


def within(function: str, needs: Mapping[Path, int], slack: int = SLACK, *, exactly: bool = True) -> int:
    """Requires that the second input's peak is within its need, which it returns. `exactly`: nor much below."""
    small, large = peaks_of(function, *needs)
    first, second = needs.values()
    peak = large - max(0, small - first)
    assert peak < second + slack
    if exactly:
        assert peak > 0.8 * second - slack or not large  # unknown here
    return second


def passing(folder: Path, family: str = "llama", **sizes: Any) -> dict[Path, int]:
    """The needs of a pass of an expert, which is in two folders; their names are tokens of a micro-batch."""
    needs = {}
    for tokens in (256, 2048):
        own = DenseFiles(expert(folder / str(tokens), 1, family, num_hidden_layers=2, **sizes))
        need = need_of(RouterPass(own, own, []), StatisticsSettings(batch_tokens=tokens))
        needs[own.folder] = need.in_host + tokens * need.token
    return needs


def test_a_pass_with_a_wide_mlp(tmp_path: Path) -> None:
    """Its gate, its other half and their product are in memory together."""
    assert within(SUMMED, passing(tmp_path, intermediate_size=6000), exactly=False) > 3 * 4 * 2048 * 6000


def test_a_pass_with_linear_attention(tmp_path: Path) -> None:
    """Its rows are computed at multiples of 64 tokens."""
    heads = {"linear_num_key_heads": 8, "linear_num_value_heads": 16}
    widths = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
    assert within(SUMMED, passing(tmp_path, "qwen3_5_text", **heads, **widths), exactly=False) > 2**27


SCORE = """
from moerge.models.published import published_weights
from moerge.models.tokens import Tokens
from moerge.progress import NoProgress
from moerge.scoring.perplexity import windows
from moerge.scoring.streamed import streamed_model
def call(version):
    model = streamed_model(published_weights(version), "float32", "cpu", 64)
    model.score(windows([Tokens([1, 2, 3, 4] * 16)], 64, 32), NoProgress())
"""


def test_scoring_takes_layers_and_not_the_model(tmp_path: Path) -> None:
    """The larger version, of 16 layers and two experts, has 170 MB."""
    needs, whole = {}, 0
    for layers, size in ((2, 64), (16, 512)):
        sizes: dict[str, Any] = {"hidden_size": size, "intermediate_size": size, "num_hidden_layers": layers}
        folder = tmp_path / str(size)
        version = published([expert(folder / "expert", 1, **sizes)] * 2, folder, rows=[[[1, 2, 3]]] * 2)
        weights = published_weights(version)
        whole = sum(spec.bytes for spec in weights.checkpoint.specs.values())
        needs[version] = scoring(weights.config, torch.float32, 64, 64).device["two layers"]
    assert within(SCORE, needs, 2 * SLACK, exactly=False) + 2 * SLACK < whole / 2


FIT = """
from tempfile import mkdtemp
from moerge.fits.fitting import fit
from moerge.models.batches import batches
from moerge.models.dense_files import DenseFiles, DenseBody
from moerge.models.tokens import all_counted
def call(folder):
    own = DenseFiles(folder / "expert")
    body = DenseBody(folder / "body" / "body.safetensors", own.config)
    fit(own, body, list(batches(all_counted([range(64)] * 2), 128)), Path(mkdtemp(dir=folder)))
"""


def test_a_fit_takes_layers_and_not_models(tmp_path: Path) -> None:
    """The larger two models, of 20 layers, have 250 MB; without public text."""
    needs, whole = {}, 0
    for layers, size in ((2, 64), (20, 512)):
        sizes: dict[str, Any] = {"hidden_size": size, "intermediate_size": size, "num_hidden_layers": layers}
        folder = tmp_path / str(size)
        own = DenseExpert("law", expert(folder / "expert", 1, **sizes))
        body_file([own.folder], folder / "body")
        need = fitting_need(own, StatisticsSettings(context=64, batch_tokens=128), "cpu")
        whole = 2 * sum(spec.bytes for spec in own.checkpoint.specs.values())
        needs[folder] = need.total(128) - need.device["residuals of public text"]
    assert within(FIT, needs, 2 * SLACK, exactly=False) + 2 * SLACK < whole / 2


WHITEN = """
from tempfile import mkdtemp
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.passes import RouterPass
from moerge.noise.noisy_sums import write_whitenings
from moerge_proto.statistics_file import Privacy, StatisticsSettings
def call(folder):
    settings = StatisticsSettings(tokens_per_document=int(folder.name)).private(Privacy(epsilon=1.0))
    own = DenseExpert("law", folder)
    write_whitenings(RouterPass(own, own, [0]), settings, Path(mkdtemp(dir=folder.parent)) / "file")
"""


def test_a_whitening(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
    needs = {}
    for count in (72, 264):  # first tokens of each text
        own = DenseExpert("law", expert(tmp_path / str(count), 1, num_hidden_layers=1, **sizes))
        tokens = sum(map(len, encoded_pool(own.tokenizer, count)))
        needs[own.folder] = whitening(Shape.of(own.config, torch.float32), tokens).in_host
    within(WHITEN, needs)


MERGE = """
from tempfile import mkdtemp
from moerge.merging.local_lineages import local_body
from moerge.models.expert_folder import DenseExpert
from moerge.bodies.lineage import BodyOptions
def call(folder):
    own = [DenseExpert(f"d{{n}}", folder / str(n)) for n in range(2)]
    base = own[0] if "{method}" in ("seed", "ties", "dare") else None
    sums = [folder / f"sums-{{n}}" for n in range(2)] if "{method}" == "regmean" else []
    options = BodyOptions(**{options})
    local_body(own, Path(mkdtemp(dir=folder)), "{method}", sums, options, base=base)
"""
OPTIONS = {"ties": {"retain": 0.5}, "dare": {"retain": 0.5}}
EMBEDDING = [{"hidden_size": 256, "vocab_size": size} for size in (8192, 32768)]
ATTENTION = [{"hidden_size": size, "vocab_size": 300} for size in (256, 1024)]


def pairs(folder: Path, models: list[dict[str, Any]]) -> Iterator[tuple[Path, list[DenseExpert]]]:
    """Two experts of each of these settings, and their folder."""
    for number, sizes in enumerate(models):
        given: dict[str, Any] = {**sizes, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
        place = folder / f"model-{number}"
        yield place, [DenseExpert(f"d{slot}", expert(place / str(slot), slot + 1, **given)) for slot in range(2)]


@pytest.mark.parametrize(
    ("method", "models"),
    [
        *[(name, EMBEDDING) for name in ("seed", "average", "dare", "ties", "regmean")],
        pytest.param("regmean", ATTENTION, id="regmean-attention"),
    ],
)
def test_a_merge_by(tmp_path: Path, method: str, models: list[dict[str, Any]]) -> None:
    """Two experts with a large embedding or a wide attention."""
    needs = {}
    for folder, own in pairs(tmp_path, models):
        for slot, item in enumerate(own if METHODS[method].solved else ()):
            body_contribution(item, all_counted([range(2, 66)] * 4), folder / f"sums-{slot}")
        needs[folder] = merging(Shape.of(own[0].config, torch.float32), 2, METHODS[method], 1).total()
    within(MERGE.format(method=method, options=OPTIONS.get(method, {})), needs)


HEADS = """
from moerge.models.dense_files import DenseFiles
from moerge.models.writer import write_safetensors
from moerge.bodies.heads import HeadInputs, head_plan
def call(folder):
    models = [DenseFiles(folder / str(slot)) for slot in range(2)]
    sums = [folder / f"sums-{{slot}}" for slot in range(2)]
    inputs = HeadInputs([model.checkpoint for model in models], lambda: sums, None, models[0], False)
    with (folder / "head").open("wb") as out:
        write_safetensors(out, head_plan("{method}", inputs))
"""


@pytest.mark.parametrize("method", ["average", "regmean"])
def test_a_head_by(tmp_path: Path, method: str) -> None:
    needs = {}
    for folder, own in pairs(tmp_path, EMBEDDING):
        for slot, item in enumerate(own):
            head_contribution(item, all_counted([range(2, 66)] * 4), folder / f"sums-{slot}")
        shape = Shape.of(own[0].config, torch.float32)
        needs[folder] = merging_head(shape, 2, solved=method == "regmean").total()
    within(HEADS.format(method=method), needs)
