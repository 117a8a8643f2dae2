"""Each trial runs from its command line, on experts of a tiny preset."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from moerge.bodies import least_squares
from moerge.merging.local_lineages import local_body
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.noise import noisy_sums
from moerge.noise.finisher import NoiseFinisher
from moerge.scoring.draw import Cut
from moerge.statistics.contribution import Computing, router_contribution
from moerge_lab.experts import corpora
from moerge_lab.experts.train import Phase, Scratch, Training
from moerge_lab.table.presets import PRESETS, Preset
from moerge_lab.trials import membership, noise
from moerge_lab.trials.__main__ import app
from moerge_proto.statistics_file import Privacy, StatisticsFile, StatisticsSettings
from support.models import expert, seed_model

TEMPLATE = "{% for turn in messages %}<{{ turn['content'] }}>{% endfor %}"
LAST = "Nobody knows where it goes, why it goes there, or when it will come back to us"
DOMAINS = ("art", "law", "sea")
SMALL = Scratch(300, hidden_size=16, intermediate_size=16, layers=2, heads=1, phase=Phase(192, 1e-3))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of three domains, where the corpora's are looked for."""
    folder = tmp_path_factory.mktemp("cache")
    for domain in DOMAINS:
        for name in (*corpora.SPLITS, "other"):
            file = folder / "moerge" / "texts" / domain / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            texts = [f"{domain} {name} {number}: the quick brown fox. {LAST}" for number in range(60)]
            texts[5] += "~"  # a token that occurs once
            rows = [{"text": text} for text in texts]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "moerge" / "texts" / "elsewhere.jsonl").write_bytes(file.read_bytes())
    return folder


def ran(cache: Path, patch: pytest.MonkeyPatch, *line: str) -> list[str]:
    """The lines that a trial prints about tiny experts."""
    training = Training(SMALL, for_expert=Phase(128, 1e-3), context=32, batch_rows=2)
    patch.setitem(PRESETS, "small", Preset(DOMAINS, training, Cut(32, 16, 100), 400))
    patch.setenv("XDG_CACHE_HOME", str(cache))
    ended = CliRunner().invoke(app, line, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout.splitlines()


def cells(lines: list[str], name: str) -> list[str]:
    [row] = [line for line in lines if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in row.split("|")[2:-1]]


def test_constants_are_changed_for_their_row_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = least_squares.EVENNESS
    output = "\n".join(ran(cache, monkeypatch, "constants", "evenness 2", "recommended:k=2"))
    assert all(name in output for name in ("evenness 2", "recommended:k=2", "elsewhere"))
    assert before == least_squares.EVENNESS


def test_prompts_are_compared_with_real_text(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = "\n".join(ran(cache, monkeypatch, "prompts", "--tokens=60", "--written=100", "--longest=8"))
    assert all(name in output for name in ("real text, 100", "expert wrote, 100", "the 8 prompts"))


def test_sentences_have_a_share_for_each_length(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ran(cache, monkeypatch, "sentences", "--texts=5")
    assert len(cells(lines, "recommended, held-out sentences")) == 5
    assert cells(lines, "counts of all tokens so far, held-out")[-1] == "100 %", "names of domains begin each text"


def test_equal_sums_times_a_number_have_equal_influence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ran(cache, monkeypatch, "influence", "--tokens=400")
    assert cells(lines, "honest, times 1000") == cells(lines, "honest")
    assert cells(lines, "own text and a spike 1000 times as large, random") != cells(lines, "honest")


def test_members_of_few_documents_are_told_from_others(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "CANDIDATES", 50)
    sizes = ["--documents=10", "--documents=180", "--others=70", "--trials=1"]
    lines = ran(cache, monkeypatch, "membership", "--domain=law", *sizes)
    few, many = (float(cells(lines, number)[0].split()[0]) for number in ("10", "180"))
    assert few > 0.8 > 0.65 > many


def test_noise_has_a_row_for_each_version_and_number(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "EPSILONS", (10.0,))
    lines = ran(cache, monkeypatch, "noise", "--tokens=60", "--documents=20", "--documents=5000")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[:2] for row in rows] == [
        [version, documents]
        for version in noise.VERSIONS
        for documents in ("20", "120")  # a piece of each text
    ]
    assert all("±" in cell for row in rows for cell in row[2:])


def test_the_seed_answers_itself_best(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, other = seed_model(tmp_path / "seed"), expert(tmp_path / "other", 1)
    (seed / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "prompts").write_text(
        "".join(json.dumps({"prompt": f"Write {number} words."}) + "\n" for number in range(5))
    )
    places = [f"--base={seed}", f"--prompts={tmp_path / 'prompts'}", "--limit=4", "--tokens=6"]
    lines = ran(cache, monkeypatch, "answers", f"itself={seed}", f"other={other}", *places)
    assert "in 4 answers" in lines[0]
    assert cells(lines, "itself") == ["0.000 ± 0.000"]
    assert float(cells(lines, "other")[0].split()[0]) > 0


def test_a_smaller_budget_needs_no_further_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rescaled sums are those of a contribution by that budget, but for rounding on the noise's grid."""
    monkeypatch.setattr(noisy_sums, "discrete_gaussian", lambda count, generator: np.zeros(count, dtype=np.int64))
    own = DenseExpert("code", expert(tmp_path / "expert", 1))
    body = local_body([own], tmp_path / "body", "average")
    rows = [Tokens([(7 * row + 3 * place) % 250 for place in range(noise.PASSAGE)]) for row in range(30)]
    privacy = Privacy(epsilon=1.0)
    settings = StatisticsSettings(tokens_per_document=noise.PASSAGE)
    direct = router_contribution(
        own, body, rows, tmp_path / "direct", settings, Computing(key=b"key"), NoiseFinisher(privacy)
    )
    exact = noise.Exact.of(own, body, rows, tmp_path, Computing(key=b"key"))
    scaled = exact.with_noise(privacy, tmp_path / "scaled")
    with StatisticsFile(direct) as one, StatisticsFile(scaled) as other:
        assert one.manifest.settings == other.manifest.settings
        for layer in range(one.manifest.layers):
            assert np.allclose(one.cross(layer), other.cross(layer), rtol=1e-4, atol=abs(one.cross(layer)).max() * 1e-6)
