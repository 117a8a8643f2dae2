"""Measured peaks of memory grow with the input as the formulas say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from moerge.bodies.methods.registry import METHODS
from moerge.documents.pool import encoded_pool
from moerge.fits.sample import need_of as fitting_need
from moerge.memory.needs import merging, merging_head, whitening
from moerge.memory.shapes import Shape
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.published import published_weights
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import body_contribution, head_contribution
from moerge.statistics.passes import RouterPass, need_of
from moerge_proto.statistics_file import StatisticsSettings
from support.models import expert
from support.peaks import peaks_of, require_growth
from support.versions import body_file, published

pytestmark = pytest.mark.slow

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


def passing(folder: Path, family: str = "llama", **sizes: Any) -> dict[Path, int]:
    """The needs of a pass of an expert, which is in two folders; their names are tokens of a micro-batch."""
    needs = {}
    for tokens in (512, 2048):
        own = DenseFiles(expert(folder / str(tokens), 1, family, num_hidden_layers=2, **sizes))
        need = need_of(RouterPass(own, own, []), StatisticsSettings(batch_tokens=tokens))
        needs[own.folder] = need.in_host + tokens * need.token
    return needs


def test_a_pass_with_a_wide_mlp(tmp_path: Path) -> None:
    """Its gate, its other half and their product are in memory together."""
    require_growth(SUMMED, passing(tmp_path, intermediate_size=6000))


def test_a_pass_with_linear_attention(tmp_path: Path) -> None:
    """Its rows are computed at multiples of 64 tokens."""
    heads = {"linear_num_key_heads": 8, "linear_num_value_heads": 16}
    widths = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
    require_growth(SUMMED, passing(tmp_path, "qwen3_5_text", **heads, **widths))


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
    """Twelve further layers of 8 MB need a quarter of their own size at most."""
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 512}
    versions, whole = [], []
    for layers in (4, 16):
        folder = tmp_path / str(layers)
        own = expert(folder / "expert", 1, num_hidden_layers=layers, **sizes)
        versions.append(published([own] * 2, folder, rows=[[[1, 2, 3]]] * 2))
        whole.append(sum(spec.bytes for spec in published_weights(versions[-1]).checkpoint.specs.values()))
    small, large = peaks_of(SCORE, *versions)
    assert large - small < (whole[1] - whole[0]) / 4


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
    needs = {}
    for layers, size in ((2, 64), (20, 512)):
        sizes: dict[str, Any] = {"hidden_size": size, "intermediate_size": size, "num_hidden_layers": layers}
        folder = tmp_path / str(size)
        own = DenseExpert("law", expert(folder / "expert", 1, **sizes))
        body_file([own.folder], folder / "body")
        need = fitting_need(own, StatisticsSettings(context=64, batch_tokens=128), "cpu")
        needs[folder] = need.total(128) - need.device["residuals of public text"]
    require_growth(FIT, needs)


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
    require_growth(WHITEN, needs)


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
ATTENTION = [{"hidden_size": size, "vocab_size": 300} for size in (512, 1536)]


def pairs(folder: Path, models: list[dict[str, Any]]) -> Iterator[tuple[Path, list[DenseExpert]]]:
    """Two experts of each of these settings, and their folder."""
    for number, sizes in enumerate(models):
        given: dict[str, Any] = {**sizes, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
        place = folder / f"model-{number}"
        yield place, [DenseExpert(f"d{slot}", expert(place / str(slot), slot + 1, **given)) for slot in range(2)]


@pytest.mark.parametrize(
    ("method", "models"),
    [
        *[(name, EMBEDDING) for name in ("seed", "regmean")],
        *[(name, ATTENTION) for name in ("average", "dare", "ties", "regmean")],
    ],
)
def test_a_merge_by(tmp_path: Path, method: str, models: list[dict[str, Any]]) -> None:
    """Two experts with a large embedding or a wide attention."""
    needs = {}
    for folder, own in pairs(tmp_path, models):
        for slot, item in enumerate(own if METHODS[method].solved else ()):
            body_contribution(item, all_counted([range(2, 66)] * 4), folder / f"sums-{slot}")
        needs[folder] = merging(Shape.of(own[0].config, torch.float32), 2, METHODS[method], 1).total()
    require_growth(MERGE.format(method=method, options=OPTIONS.get(method, {})), needs)


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
    require_growth(HEADS.format(method=method), needs)
