"""A merge on one machine: cut runs, texts, refusals and the report, without a service."""

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from rich.console import Console
from safetensors.torch import load_file, save_file

from moerge.bodies.lineage import BodyOptions
from moerge.documents.conversations import Document
from moerge.documents.corpus import Corpus
from moerge.documents.files import DataFile
from moerge.documents.shards import Shard
from moerge.documents.splits import SplitRule, text_digest
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.merging.kept_statistics import kept
from moerge.merging.local_lineages import local_body
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.merging.report import DomainCounts, DomainScore, Report
from moerge.merging.texts import read_corpus
from moerge.models.dense import body_names
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens, all_counted
from moerge.statistics import contribution
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import Computing, body_contribution, router_contribution
from moerge.statistics.passes import BodyPass, RouterPass, need_of
from moerge.statistics.streamed import Streamed
from moerge_proto.recipes import PAPER, RECOMMENDED, SolveOptions, VersionRecipe
from moerge_proto.statistics_file import StatisticsFile, StatisticsSettings
from moerge_proto.version_files import HEAD_FILE
from support.merging import HIDDEN, SMALL, corpus_of, files, source
from support.models import expert, texts
from support.processes import run_command

SHARD, LAYERS = 64 * HIDDEN, int(SMALL["num_hidden_layers"])
ONE_SHARD = 4 * HIDDEN * SHARD  # bytes of its hidden states
SETTINGS = MergeSettings(scored_tokens=500)
KEPT = replace(SETTINGS, keep_statistics=True)
KILLED = """
import os, signal
from moerge.cli import app
os.rename = lambda *_: os.kill(os.getpid(), signal.{signal})  # by which the output's folder appears
app.main()
"""


class _CutError(Exception):
    """Ends a run anywhere."""


@dataclass
class Watched:
    """Progress that ends the run `after` so many steps of the work whose title begins with `title`."""

    title: str = "nothing"
    after: int = 0
    titles: list[str] = field(default_factory=list)

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator["Watched"]:
        self.titles.append(title)
        yield self

    def advance(self, n: int) -> None:
        if self.titles[-1].startswith(self.title):
            if not self.after:
                raise _CutError
            self.after -= 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts and texts of law and art; a text is several shards."""
    root = tmp_path_factory.mktemp("merging")
    for seed, domain in enumerate(("law", "art"), 1):
        expert(root / domain, seed, **SMALL)
        texts(root / f"{domain}.jsonl", seed, documents=90)
    return root


def sources(folder: Path) -> list[Source]:
    return [source(folder, "law"), source(folder, "art")]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Layer and shard of all computed sums."""
    seen, sums = list[tuple[int, str]](), Streamed.sums

    def counting(streamed: Streamed, wanted: Collection[str], ahead: Collection[str] | None) -> ShardSums | None:
        seen.extend((streamed.layer, name) for name in wanted)
        return sums(streamed, wanted, ahead)

    monkeypatch.setattr(Streamed, "sums", counting)
    return seen


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """The output of a run that was not cut; its statistics are kept."""
    merge(sources(folder), folder / "whole", KEPT)
    return folder / "whole"


def shards_of(path: Path) -> int:
    with StatisticsFile(path) as file:
        return len(file.manifest.shards)


def shards_below(work: Path) -> int:
    """Shards of all contributions in a work folder."""
    return sum(shards_of(path) for path in work.glob("*.safetensors"))


def stop(*_: object) -> None:
    raise _CutError


# --- runs that are cut
@pytest.mark.parametrize(
    ("title", "after"),
    [("body statistics of art", 3), ("head statistics of art", 3), ("router statistics of law", 3), ("writing", 2)],
)
def test_interrupted_merge_resumes_without_repeated_layers(
    folder: Path, whole: Path, computed: list[tuple[int, str]], tmp_path: Path, title: str, after: int
) -> None:
    cut = Computing(progress=Watched(title, after), host_memory=ONE_SHARD)
    with pytest.raises(_CutError):
        merge(sources(folder), tmp_path / "out", replace(SETTINGS, computing=cut))
    assert computed
    assert not (tmp_path / "out").exists()
    merge(sources(folder), tmp_path / "out", SETTINGS)
    assert len(computed) == LAYERS * shards_below(whole.with_name("whole.work")) > 16
    assert files(tmp_path / "out") == files(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_sums_that_were_joined_are_not_computed_again(
    folder: Path, whole: Path, computed: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(contribution, "withhold_rare", stop)
        with pytest.raises(_CutError):
            merge(sources(folder), tmp_path / "out", SETTINGS)
    work = whole.with_name("whole.work")
    assert len(computed) == LAYERS * shards_of(work / "body-law.safetensors")
    merge(sources(folder), tmp_path / "out", SETTINGS)
    assert len(computed) == LAYERS * shards_below(work)
    assert files(tmp_path / "out") == files(whole)


def test_a_cut_window_goes_on_with_its_saved_hidden_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = DenseExpert("law", expert(tmp_path / "law", 1, **{**SMALL, "num_hidden_layers": 3}))
    documents = all_counted([[(7 * token + number) % 256 for token in range(SHARD)] for number in (0, 1)])
    body_contribution(own, documents, tmp_path / "whole")
    passed, sums = list[tuple[int, int]](), Streamed.sums

    def counting(streamed: Streamed, wanted: Collection[str], ahead: Collection[str] | None) -> ShardSums | None:
        passed.append((streamed.layer, len(wanted)))
        return sums(streamed, wanted, ahead)

    monkeypatch.setattr(Streamed, "sums", counting)
    monkeypatch.setattr(contribution, "_SECONDS", 0)
    with pytest.raises(_CutError):
        body_contribution(own, documents, tmp_path / "cut", computing=Computing(progress=Watched("body", 2)))
    body_contribution(own, documents, tmp_path / "cut")
    assert passed == [(0, 2), (1, 2), (1, 0), (2, 2)]  # the states behind layer 0 were saved, then layer 1's sums kept
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut", "law", "whole"]


def test_a_killed_run_leaves_no_output_and_goes_on(
    folder: Path, whole: Path, computed: list[tuple[int, str]], tmp_path: Path
) -> None:
    done = run_command(*command(folder, tmp_path / "out"), script=KILLED.format(signal="SIGKILL"))
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / "out").exists()
    merge(sources(folder), tmp_path / "out", SETTINGS)
    assert computed == []
    assert files(tmp_path / "out") == files(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("title", "finished"), [("body statistics of art", ["body"]), ("writing", ["body", "head"])])
def test_a_changed_text_begins_its_statistics_anew(
    folder: Path, computed: list[tuple[int, str]], tmp_path: Path, title: str, finished: list[str]
) -> None:
    text = Path(shutil.copy(folder / "art.jsonl", tmp_path / "art.jsonl"))
    given = [source(folder, "law"), source(folder, "art", text)]
    with pytest.raises(_CutError):
        merge(given, tmp_path / "out", replace(SETTINGS, computing=Computing(progress=Watched(title, after=2))))
    text.write_text("".join(text.read_text().splitlines(keepends=True)[30:]))
    computed.clear()
    merge(given, tmp_path / "out", SETTINGS)
    again = len(computed)
    computed.clear()
    merge(given, tmp_path / "fresh", KEPT)
    assert files(tmp_path / "out") == files(tmp_path / "fresh")
    reused = sum(shards_of(tmp_path / "fresh.work" / f"{kind}-law.safetensors") for kind in finished)
    assert again == len(computed) - LAYERS * reused


def test_kept_statistics_are_used_again(folder: Path, whole: Path, computed: list[tuple[int, str]]) -> None:
    before = files(whole)
    report = merge(sources(folder), whole, KEPT)
    assert computed == []
    assert files(whole) == before
    assert [score.tokens > 0 for score in report.scores if score] == [True, True]
    card = (whole / "README.md").read_text()
    assert f"| average |  |  |  | {report.average:.1f} |" in card
    assert "Scores are measured later" not in card


# --- the output
def test_other_version_in_the_output_is_refused_and_kept(
    folder: Path, whole: Path, computed: list[tuple[int, str]]
) -> None:
    before, recipe = files(whole), RECOMMENDED.model_copy(update={"solve": SolveOptions()})
    with pytest.raises(MoergeError, match="contains another version"):
        merge(sources(folder), whole, replace(KEPT, recipe=recipe))
    assert files(whole) == before


@pytest.mark.parametrize("name", ["notes.txt", "moerge.json"])
def test_unrelated_output_folder_is_refused_and_kept(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    before = files(tmp_path)
    with pytest.raises(MoergeError, match="not empty"):
        merge(sources(folder), tmp_path / "out", SETTINGS)
    with pytest.raises(MoergeError, match="not empty"):
        merge(sources(folder), tmp_path / "out" / name, SETTINGS)
    assert files(tmp_path) == before
    assert not (tmp_path / "out.work").exists()


def test_a_second_merge_into_the_same_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out.work").mkdir()
    with FileLock(tmp_path / "out.work" / "lock"), pytest.raises(MoergeError, match="another run uses this folder"):
        merge(sources(folder), tmp_path / "out", SETTINGS)


def test_disk_space_is_checked_first_and_existing_files_count(
    folder: Path, whole: Path, computed: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = DenseExpert("law", folder / "law").checkpoint.specs.values()
    needed = 2 * (sum(spec.bytes for spec in own) + 2 * 8 * HIDDEN * (HIDDEN + 1))
    needed += sum(path.stat().st_size for path in folder.glob("*.jsonl"))  # about the size of their token ids
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed - 1))
    with pytest.raises(MoergeError, match="make room"):
        merge(sources(folder), tmp_path / "out", SETTINGS)
    shutil.copytree(whole.with_name("whole.work"), tmp_path / "out.work")
    merge(sources(folder), tmp_path / "out", SETTINGS)
    assert computed == []


# --- texts
def test_one_plain_file_is_cut_into_pieces_that_are_documents(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "law.txt"
    lines = (folder / "law.jsonl").read_text().splitlines()
    path.write_text("".join(json.loads(line)["text"] for line in lines))
    length = len(path.read_text())
    settings = MergeSettings(statistics=StatisticsSettings(context=32), held_out_share=0.2, scored_tokens=10**6)
    result = read_corpus("law", corpus_of(folder, "law", path), settings)
    held_out = list(result.text.held_out)
    assert 10 < result.documents < length // 32
    assert result.documents + len(held_out) == -(-length // 32)
    assert result.tokens + sum(tokens.count for tokens in held_out) == length
    assert sum(window.scored for window in result.scored) == sum(tokens.count - 1 for tokens in held_out)


def test_every_text_is_read_and_tokenised_once(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read, encoded = list[str](), list[Document]()
    opening, encoding = DataFile.open, Corpus.encode

    def opened(file: DataFile) -> Any:
        read.append(file.url)
        return opening(file)

    def counting(corpus: Corpus, document: Document) -> Tokens:
        encoded.append(document)
        return encoding(corpus, document)

    monkeypatch.setattr(DataFile, "open", opened)
    monkeypatch.setattr(Corpus, "encode", counting)
    merge(sources(folder), tmp_path / "out", replace(SETTINGS, fit=True))
    assert sorted(read) == [str(folder / "art.jsonl"), str(folder / "law.jsonl")]
    assert len(encoded) == 2 * 90


def test_many_documents_stay_whole_and_none_is_in_two_splits(folder: Path) -> None:
    result = read_corpus("law", corpus_of(folder, "law"), MergeSettings(held_out_share=0.2, scored_tokens=100))
    held_out = {bytes(tokens.ids) for tokens in result.text.held_out}
    kept = {bytes(tokens.ids) for tokens in result.text}
    assert (len(kept), len(kept) + len(held_out), kept & held_out) == (result.documents, 90, set())
    assert 100 <= sum(window.scored for window in result.scored) < 200


def test_documents_apart_are_scored_and_all_text_is_in_the_statistics(folder: Path, tmp_path: Path) -> None:
    unseen = texts(tmp_path / "unseen.jsonl", 7, documents=30)
    given = [replace(source(folder, "law"), held_out=corpus_of(folder, "law", unseen)), source(folder, "art")]
    report = merge(given, tmp_path / "out", replace(SETTINGS, scored_tokens=10**6))
    assert [counts.documents for counts in report.counts] == [90, report.counts[1].documents]
    assert report.counts[1].documents < 90
    scored = [score.tokens for score in report.scores if score]
    assert scored[0] == sum(len(json.loads(line)["text"]) - 1 for line in unseen.read_text().splitlines())
    for shown in ((tmp_path / "out" / "README.md").read_text(), printed(report)):
        assert re.search(r"\bart[:;].*\bknow\s+them", shown, re.DOTALL)
        assert not re.search(r"\blaw[^.|]*\bknow\s+them", shown)


def test_a_scored_document_of_the_text_is_refused(folder: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared.jsonl"
    shared.write_text("".join((folder / "law.jsonl").read_text().splitlines(keepends=True)[:3]))
    result = run_command(*command(folder, tmp_path / "out", "--held-out", f"law={shared}"))
    assert result.returncode == 1
    assert "--held-out law: 3 of its documents are in the domain's text, too" in " ".join(result.stderr.split())


def test_insufficient_text_is_refused_with_the_required_tokens(
    folder: Path, computed: list[tuple[int, str]], tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("x" * (HIDDEN - 1))
    with pytest.raises(MoergeError, match=f"at least {HIDDEN} tokens") as raised:
        merge([source(folder, "law"), source(folder, "art", short)], tmp_path / "out", SETTINGS)
    assert (raised.value.where, f"{HIDDEN - 1} tokens" in raised.value.what) == ("`text` art", True)
    assert computed == []
    assert not (tmp_path / "out.work").exists()


def test_short_text_causes_a_warning_and_no_score(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("x" * (SHARD - 1))
    messages: list[str] = []
    given = [source(folder, "law"), source(folder, "art", short)]
    report = merge(given, tmp_path / "out", replace(SETTINGS, held_out_share=0), messages.append)
    assert re.search(f"art: {SHARD - 1:,} tokens .* {SHARD:,} or more", " ".join(messages))
    assert [line.partition(":")[0] for line in messages if "not scored" in line] == ["law", "art"]
    assert report.scores == [None, None]
    assert report.average is None


# --- refusals, before anything is computed
@pytest.mark.parametrize(
    ("domains", "recipe", "problem"),
    [
        (["law"], RECOMMENDED, "two experts or more"),
        (["law", "art"], PAPER.model_copy(update={"solve": SolveOptions(top_k=3)}), "3 experts per token, of 2"),
        (["law", "art"], PAPER.model_copy(update={"solve": SolveOptions(lambda_scale="auto")}), "no tuning split"),
        (["law", "art"], PAPER.model_copy(update={"body": "ties"}), "base"),
        (["law", "art"], PAPER.model_copy(update={"body": "seed"}), "needs the seed model"),
        (["law", "art"], PAPER.model_copy(update={"head": "seed"}), "the seed's head under a body by 'average'"),
    ],
)
def test_a_recipe_that_can_t_be_followed_is_refused(
    folder: Path, tmp_path: Path, domains: list[str], recipe: VersionRecipe, problem: str
) -> None:
    with pytest.raises(MoergeError, match=problem):
        merge([source(folder, domain) for domain in domains], tmp_path / "out", replace(SETTINGS, recipe=recipe))
    assert list(tmp_path.iterdir()) == []


def test_a_class_with_one_expert_per_token_gets_no_more(tmp_path: Path) -> None:
    for seed, domain in enumerate(("law", "art")):
        texts(expert(tmp_path / domain, seed, "lfm2").parent / f"{domain}.jsonl", seed, 90)
    for recipe in (PAPER, RECOMMENDED):
        settings = replace(SETTINGS, recipe=recipe.model_copy(update={"solve": SolveOptions(top_k=2)}))
        with pytest.raises(MoergeError, match="Lfm2MoeForCausalLM weights several by sigmoids"):
            merge(sources(tmp_path), tmp_path / "out", settings)
    assert {item.name for item in tmp_path.iterdir()} == {"law", "art", "law.jsonl", "art.jsonl"}


WEIGHTED = RECOMMENDED.model_copy(update={"body": "weighted"})


def test_a_weighted_body_has_the_given_weights(folder: Path, tmp_path: Path) -> None:
    weights = BodyOptions(weights={"law": 3.0})
    merge(sources(folder), tmp_path / "out", replace(SETTINGS, recipe=WEIGHTED, body=weights, keep_statistics=True))
    name = "model.layers.0.self_attn.q_proj.weight"
    law, art = (DenseFiles(folder / domain).checkpoint.tensor(name) for domain in ("law", "art"))
    body = load_file(tmp_path / "out.work" / "body" / "body.safetensors")[name]
    torch.testing.assert_close(body, (3 * law + art) / 4)


def test_a_seed_s_body_is_the_base_s_with_fitted_experts(folder: Path, tmp_path: Path) -> None:
    seed = DenseExpert("base", expert(tmp_path / "seed", 3, **SMALL), hub_id="org/seed")
    recipe = RECOMMENDED.model_copy(update={"body": "seed"})
    merge(sources(folder), tmp_path / "out", replace(SETTINGS, recipe=recipe, base=seed))
    published = {
        name: tensor for path in (tmp_path / "out").glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    assert all(published[name].equal(seed.checkpoint.tensor(name)) for name in body_names(seed))
    assert not published["lm_head.weight"].equal(seed.checkpoint.tensor("lm_head.weight"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "that of org/seed, unchanged" in card
    assert "fitted to the body: law, art" in card
    alone = replace(SETTINGS, recipe=recipe.model_copy(update={"head": "seed"}), base=seed, fit=False)
    merge(sources(folder), tmp_path / "own", alone)
    head = load_file(tmp_path / "own" / HEAD_FILE)["lm_head.weight"]
    assert head.equal(seed.checkpoint.tensor("lm_head.weight"))
    assert "the experts' own, unchanged" in (tmp_path / "own" / "README.md").read_text()


def test_the_seed_may_be_one_more_expert_which_no_average_counts(folder: Path, tmp_path: Path) -> None:
    seed = DenseExpert("general", expert(tmp_path / "general", 9, **SMALL))
    text = texts(tmp_path / "general.jsonl", 7, 90)
    given, out = [*sources(folder), source(tmp_path, "general", text)], tmp_path / "out"
    recipe = RECOMMENDED.model_copy(update={"body": "seed", "fit": True})
    settings = replace(KEPT, base=replace(seed, domain="base"), recipe=recipe, scored_tokens=200)
    report = merge(given, out, settings)
    *own, of_seed = report.scores
    assert report.domains[-1] == "general"
    assert of_seed is not None
    assert report.average == fmean(score.normalised for score in own if score is not None)
    assert "fitted to the body: law, art; all others unchanged" in (out / "README.md").read_text()
    mlps = [load_file(path) for path in sorted(out.glob("model-expert*"))]
    down = next(tensor for name, tensor in mlps[-1].items() if "layers.0" in name and name.endswith("w2.weight"))
    assert down.equal(seed.checkpoint.tensor("model.layers.0.mlp.down_proj.weight"))
    new = replace(given[0], expert=DenseExpert("new", expert(tmp_path / "new", 8, **SMALL)))
    assert merge([new], tmp_path / "added", settings, version=kept(out)).seeds == ["general"]


def test_a_family_without_fittable_mlps_is_merged_as_trained(folder: Path, tmp_path: Path) -> None:
    for seed, domain in enumerate(("law", "art", "seed"), 1):
        expert(tmp_path / domain, seed, "olmo2", **SMALL)
    given = [source(tmp_path, domain, folder / f"{domain}.jsonl") for domain in ("law", "art")]
    seed_body = replace(
        SETTINGS, recipe=PAPER.model_copy(update={"body": "seed"}), base=DenseExpert("base", tmp_path / "seed")
    )
    with pytest.raises(IncompatibleExpertError, match="can't be fitted"):
        merge(given, tmp_path / "out", replace(seed_body, fit=True))
    merge(given, tmp_path / "out", seed_body)
    assert "the experts' own, unchanged" in (tmp_path / "out" / "README.md").read_text()


def test_a_weight_of_an_unknown_domain_is_refused(folder: Path, tmp_path: Path) -> None:
    weights = BodyOptions(weights={"lew": 3.0})
    with pytest.raises(MoergeError, match="no expert of lew"):
        merge(sources(folder), tmp_path / "out", replace(SETTINGS, recipe=WEIGHTED, body=weights))


@pytest.mark.parametrize(("name", "value"), [("rms_norm_eps", 1e-3), ("num_hidden_layers", 1)])
def test_unlike_experts_are_refused_by_the_field_that_differs(
    folder: Path, tmp_path: Path, name: str, value: Any
) -> None:
    expert(tmp_path / "art", 2, **{**SMALL, name: value})
    unlike = replace(source(folder, "art"), expert=DenseExpert("art", tmp_path / "art"))
    with pytest.raises(IncompatibleExpertError, match=f"'art' differs from the other experts: {name} is {value}"):
        merge([source(folder, "law"), unlike], tmp_path / "out", SETTINGS)


# --- the command
def command(folder: Path, out: Path, *more: str) -> list[str]:
    experts = [f"--expert={name}={folder / name}" for name in ("law", "art")]
    documents = [f"--text={name}={folder / name}.jsonl" for name in ("law", "art")]
    (config := folder / "command.yaml").write_text("scored_tokens: 500\nslots: 2\n")
    return ["merge", *experts, *documents, f"--config={config}", f"--out={out}", *more]


def test_json_is_the_only_stdout_and_files_match_the_library(folder: Path, whole: Path, tmp_path: Path) -> None:
    done = run_command(*command(folder, tmp_path / "out", "--json", "--keep-statistics"))
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert [item["domain"] for item in content["domains"]] == ["law", "art"]
    assert all(item["score"]["normalised"] > 0 for item in content["domains"])
    assert content["folder"] == str(tmp_path / "out")
    assert re.search(r"router statistics of art: 100 %, [\d,]+ tokens/s", done.stderr)
    made, library = files(tmp_path / "out"), files(whole)
    assert made.keys() - library.keys() == {"merge.yaml"}
    assert {name for name in library if made[name] != library[name]} == {"README.md"}  # it names the recipe
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.work"]


def test_ctrl_c_ends_with_130_and_without_an_output(folder: Path, tmp_path: Path) -> None:
    done = run_command(*command(folder, tmp_path / "out"), script=KILLED.format(signal="SIGTERM"))
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_expert_with_nan_is_named_by_its_folder(folder: Path, tmp_path: Path) -> None:
    bad = Path(shutil.copytree(folder / "art", tmp_path / "art")) / "model.safetensors"
    save_file({name: tensor * float("nan") for name, tensor in load_file(bad).items()}, bad, {"format": "pt"})
    pair = [sources(folder)[0], source(tmp_path, "art", folder / "art.jsonl")]
    with pytest.raises(MoergeError, match="NaN") as caught:
        merge(pair, tmp_path / "out", SETTINGS)
    assert caught.value.where.startswith(f"{tmp_path / 'art'}: model.safetensors: ")


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_an_output_without_a_name_is_refused(folder: Path, out: str) -> None:
    with pytest.raises(MoergeError, match="needs a name"):
        merge(sources(folder), Path(out), SETTINGS)


@pytest.mark.parametrize(
    ("more", "status", "error"),
    [
        (["--text=code={folder}/law.jsonl"], 1, "--text: no expert of code"),
        (["--expert=code={folder}/law"], 1, "--text: no text of code"),
        (["--expert=law={folder}/law"], 1, "'law' is given 2 times"),
        (["--expert=Law={folder}/law"], 1, "'Law' is not a valid domain name"),
        (["--body=seed"], 1, "--base: the method 'seed' needs the seed model"),
        (["--head=seed"], 1, "--head: the seed's head under a body by 'regmean'"),
        (["--top-k=0"], 2, "--top-k"),
    ],
)
def test_wrong_options_are_told_with_their_exit_status(
    folder: Path, tmp_path: Path, more: list[str], status: int, error: str
) -> None:
    done = run_command(*command(folder, tmp_path / "out", *(word.format(folder=folder) for word in more)))
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert error in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- the report
def reported(scores: Sequence[DomainScore | None], condition: float = 10.0) -> Report:
    domains = [f"domain-{number}" for number in range(len(scores))]
    return Report("merged", domains, [DomainCounts(5, 12_345)] * len(scores), scores, (1.0, condition))


def printed(report: Report) -> str:
    console = Console(width=80, force_terminal=False)
    with console.capture() as shown:
        for part in report.render():
            console.print(part)
    return shown.get()


def test_the_table_names_every_domain_within_80_columns() -> None:
    scores = [DomainScore(10.0, 10.0 + number, 1000.0 / (10.0 + number), 100, [1 / 8] * 8) for number in range(8)]
    shown = printed(reported(scores))
    for number, score in enumerate(scores):
        assert re.search(rf"domain-{number} .* {score.normalised:.1f} ", shown)
    assert "average" in shown
    assert f"{sum(score.normalised for score in scores) / 8:.1f}" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_without_every_score_there_is_no_average() -> None:
    shown = printed(reported([DomainScore(10.0, 11.0, 100 * 10.0 / 11.0, 100, [0.5, 0.5]), None]))
    assert "domain-1" in shown
    assert "average" not in shown


def test_low_scores_and_ill_conditioned_routers_cause_warnings() -> None:
    scores = [
        DomainScore(10.0, 11.0, 100 * 10.0 / 11.0, 100, [0.5, 0.5]),
        DomainScore(10.0, 12.5, 100 * 10.0 / 12.5, 100, [0.5, 0.5]),
    ]
    assert reported(scores).warnings == ["domain-1 loses 20.0 points against its own expert"]
    [warning] = reported(scores[:1], condition=1e9).warnings
    assert "condition is 1e+09" in warning
    assert "warning: domain-1 loses 20.0 points" in printed(reported(scores))


# --- threads and windows change no byte
@given(
    lengths=st.lists(st.integers(1, 3 * SHARD), min_size=1, max_size=6),
    slots=st.integers(1, 3),
    short=st.booleans(),
    kind=st.sampled_from(["body", "router"]),
)
@example(lengths=[SHARD] * 3, slots=1, short=True, kind="body")  # equal shards count once
@examples(max_examples=12, deadline=None)
def test_contributions_are_equal_for_any_threads_and_windows(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, lengths: list[int], slots: int, short: bool, kind: str
) -> None:
    place, own = tmp_path_factory.mktemp("sums"), DenseExpert("law", folder / "law")
    documents = all_counted([[(7 * token + length) % 256 for token in range(length)] for length in lengths])
    body = local_body([own], folder / "body", "average")
    work = BodyPass(own, []) if kind == "body" else RouterPass(own, DenseBody(body.path, own.config), [])
    root: Callable[..., Path] = (
        partial(body_contribution, own) if kind == "body" else partial(router_contribution, own, body)
    )
    one = root(documents, place / "one", computing=Computing(slots=1))
    begun, begin = list[int](), Streamed.begin

    def counting(streamed: Streamed, shards: Sequence[Shard], states: Path | None = None) -> int:
        begun.append(len(shards))
        return begin(streamed, shards, states)

    shard = min(need_of(work, StatisticsSettings()).least, 4 * HIDDEN * sum(lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Streamed, "begin", counting)
        root(documents, place / "other", computing=Computing(slots=slots, host_memory=shard if short else None))
    assert one.read_bytes() == (place / "other").read_bytes()
    assert begun == ([1] * shards_of(one) if short else [shards_of(one)])
    assert sorted(path.name for path in place.iterdir()) == ["one", "other"]


def test_documents_sorted_by_sha_256_are_split_like_others(folder: Path, tmp_path: Path) -> None:
    """Such as the share of a corpus that another split by the same digest has left."""
    every = sorted((f"document {number}" for number in range(2000)), key=lambda text: text_digest(text))
    share = tmp_path / "share.jsonl"
    share.write_text("".join(json.dumps({"text": text}) + "\n" for text in every[:200]))
    corpus = Corpus([str(share)], DenseFiles(folder / "law"), SplitRule(held_out_share=0.1))
    assert 5 <= len(list(corpus.read().held_out)) <= 40
