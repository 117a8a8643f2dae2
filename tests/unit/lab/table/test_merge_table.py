"""The table that ends a merge and the laboratory's table of the same version have the same figures."""

import json
from pathlib import Path

import pytest

from moerge.documents.corpus import Corpus
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.scoring.draw import Cut
from moerge.scoring.perplexity import total
from moerge.terminal import Screen
from moerge_lab.recipes.dense import expert_row
from moerge_lab.recipes.published import VERSION, version_recipe
from moerge_lab.recipes.registry import parse
from moerge_lab.table.inputs import Inputs, slots_of
from moerge_lab.table.measure import Settings
from moerge_lab.table.table import Run
from moerge_lab.table.texts import Sources
from moerge_proto.recipes import RECOMMENDED
from moerge_proto.statistics_file import StatisticsSettings
from support.models import expert, texts

CUT = Cut(context=64, stride=32, tokens=250)


def whole_file(path: Path, seed: int) -> Path:
    """One document of plain text, which is cut into pieces."""
    lines = texts(path.with_suffix(".jsonl"), seed, 240).read_text().splitlines()
    path.write_text(" ".join(json.loads(line)["text"] for line in lines))
    return path


@pytest.mark.parametrize(("plain", "with_seed"), [(False, False), (True, True)])
def test_a_merge_s_table_equals_the_laboratory_s(tmp_path: Path, plain: bool, with_seed: bool) -> None:
    experts, files = dict[str, Path](), dict[str, Path]()
    for seed, domain in enumerate(("law", "art", "code", *(["general"] if with_seed else [])), 1):
        experts[domain] = expert(tmp_path / domain, seed)
        files[domain] = (
            whole_file(tmp_path / f"{domain}.txt", seed) if plain else texts(tmp_path / f"{domain}.jsonl", seed, 240)
        )
    sources = [
        Source(DenseExpert(name, folder), Corpus([str(files[name])], DenseFiles(folder)))
        for name, folder in experts.items()
    ]
    settings = MergeSettings(
        recipe=RECOMMENDED.model_copy(update={"body": "seed"} if with_seed else {}),
        base=DenseExpert("base", experts["general"]) if with_seed else None,
        statistics=StatisticsSettings(context=CUT.context),
        scored_tokens=CUT.tokens,
    )
    report = merge(sources, tmp_path / "out", settings)

    slots, given = slots_of(tmp_path / "out"), {name: Sources(experts[name], [str(files[name])]) for name in experts}
    inputs = Inputs(dict(reversed(given.items())), CUT, Settings(experts.get("general"))).in_slot_order(slots)
    runs = [Run(*parse("experts")), Run(version_recipe(tmp_path / "out", slots), {}, VERSION)]
    table = inputs.table(runs)
    version = table.row(VERSION)
    assert report.domains == slots == [*experts]
    assert list(report.seeds) == list(table.seeds) == (["general"] if with_seed else [])
    *_, routing = table.render(Screen())
    assert routing.columns[-1].header == f"{slots[-1]} expert"
    for domain, score in zip(experts, report.scores, strict=True):
        assert score is not None
        assert len(score.shares) == len(slots)
        ours, theirs = (total(row.results[0].documents[domain]) for row in (table.row(expert_row(domain)), version))
        assert score.tokens == theirs.tokens
        assert CUT.tokens <= score.tokens < CUT.tokens + CUT.context
        assert (f"{score.expert:.2f}", f"{score.version:.2f}") == (f"{ours.perplexity:.2f}", f"{theirs.perplexity:.2f}")
        assert f"{score.normalised:.1f}" == f"{table.normalised(version, domain).mean:.1f}"
        assert [f"{share:.0%}" for share in score.shares] == [f"{share:.0%}" for share in version.shares()[domain]]
    assert f"{report.average:.1f}" == f"{table.average(version).mean:.1f}"
