"""An outsider's and a consumer's first hour: experts merged on one machine, measured, loaded and generated from."""

import shutil
from pathlib import Path

import pytest

from support.models import expert, texts
from support.terminal import Shell
from support.transcripts import Part, block

pytestmark = pytest.mark.slow
LOAD = """python -c "from transformers import pipeline; print(pipeline('text-generation', '{}')('The capital of'))\""""


def experts(folder: Path) -> None:
    """Three experts with their texts, their seed model, and prompts of law."""
    for seed, domain in enumerate(("code", "law", "art"), 1):
        expert(folder / domain, seed)
        texts(folder / domain / "a.jsonl", seed, documents=200)
        texts(folder / f"{domain}.jsonl", seed + 10, documents=40)
    expert(folder / "seed", 0, apart=0)
    (folder / "law.txt").write_text("the first prompt\nthe second\n")


def test_merges_and_tables_on_one_machine(tmp_path: Path) -> None:
    experts(tmp_path)
    with Shell(tmp_path) as person:
        with Part("docs/one-machine.md", "Merge") as part:
            said = person.types(part.next("moerge merge", {"org/name@rev": "./law"}))
            for word in ("code", "law"):
                assert word in said
            assert "not in the body" not in person.types(part.next("moerge merge --add"))
            assert "fitted to the body: art" in (tmp_path / "merged-2" / "README.md").read_text()
            said = person.types(part.next("moerge merge", {"org/name@rev": "./law"}))
            assert "not scored, because their experts wrote their text: code, law" in said
        (tmp_path / "merge.yaml").write_text(block("docs/one-machine.md", "yaml").replace("org/name@rev", "./law"))
        for name in ("merged", "merged.work"):
            shutil.rmtree(tmp_path / name)
        with Part("docs/one-machine.md", "A recipe file") as part:
            person.types(part.next("moerge merge"))
            person.types(part.next("moerge merge"))
            assert (tmp_path / "again" / "README.md").read_text() == (tmp_path / "merged" / "README.md").read_text()
        with Part("docs/training.md", "Tune a version") as part:
            assert "trained 192 parameters on 10,240 tokens" in person.types(part.next("moerge tune", {"1M": "10k"}))
        with Part("README.md", "One machine") as part:
            shutil.rmtree(tmp_path / "merged")
            person.types(part.next("moerge merge"))
        for made in ("merged", "tuned"):
            assert "generated_text" in person.types(LOAD.format(made))
        assert "moerge" in (tmp_path / "merged" / "README.md").read_text()
        shutil.copytree(tmp_path / "merged", tmp_path / "v1")
        with Part("docs/quality.md", "Running it") as part:
            said = person.types(part.next("moerge table --expert"))
            for row in ("averaging", "dume", "oracle", "ties"):
                assert row in said
            person.types(part.next("moerge table --expert"))
            assert (tmp_path / "k.svg").is_file()
            assert "version" in person.types(part.next("moerge table version"))


def test_mixtures(tmp_path: Path) -> None:
    experts(tmp_path)
    (tmp_path / "story.txt").write_text("a story")
    with Shell(tmp_path) as person:
        with Part("docs/training.md", "Tune a mixture") as part:
            part.names = {"1M": "10k"}
            assert "trained 15,360 parameters on 10,240 tokens" in person.types(part.next("moerge tune --base"))
            assert "7 tokens; seed " in person.types(part.next("moerge route"))
        loaded = LOAD.replace("from", "import moerge_lab.mixtures; from", 1)
        assert "generated_text" in person.types(loaded.format("stitched"))
