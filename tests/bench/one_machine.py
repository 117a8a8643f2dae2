"""The complete `moerge merge` compared with `mergekit-moe`, on the demo's experts and texts."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from bench import peer
from bench.measure import Run, in_turns, process, say
from bench.merge import emptied, mergekit
from bench.registry import HOME, Pair, benchmark
from moerge.files import cache_folder
from moerge.progress import progress
from moerge.scoring.draw import Cut
from moerge.scoring.perplexity import Score, Window, load, normalised, score
from moerge.threads import one_thread
from moerge_lab.recipes.base import Domain, Fleet
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.texts import Sources, read_texts
from support.progress import Silent

RUNS = 3
CUT = Cut(context=256, stride=128, tokens=10_000)
WORK = HOME / "work"
PEER = f"{peer.MERGEKIT} mergekit-moe, hidden gates, {peer.PROMPTS} prompts of {peer.PROMPT_TOKENS} tokens"
ALL = "the demo's four experts (2.6 M parameters), float32; 230 000 tokens of text for moerge, 2000 for mergekit"
FEW = "the demo's four experts (2.6 M parameters), float32; the same 2000 tokens of text for both"


@cache
def sources() -> dict[str, Sources]:
    return PRESETS["small"].sources(cache_folder(), progress())[0]


@cache
def fleet() -> tuple[Fleet, list[list[Window]]]:
    """The domains, and each one's windows of held-out text."""
    texts = {name: read_texts(name, source, CUT) for name, source in sources().items()}
    domains = [Domain(name, text.expert, text.statistics) for name, text in texts.items()]
    return Fleet(domains, None, 0, WORK), [list(text.held_out) for text in texts.values()]


def ours(texts: Sequence[str]) -> Run:
    """The command with its default recipe, without the final table."""
    (config := emptied(WORK) / "recipe.yaml").write_text("scored_tokens: 0\n", encoding="utf-8")
    command = [sys.executable, "-m", "moerge", "merge", "--out", str(WORK / "ours"), "--config", str(config)]
    for domain, text in zip(fleet()[0].domains, texts, strict=True):
        command += ["--expert", f"{domain.name}={domain.expert}", "--text", f"{domain.name}={text}"]
    return process(command, HOME / "ours.log", {**os.environ, "HF_HUB_OFFLINE": "1"})


def theirs(base: Path) -> Run:
    """The peer's command, with all parameters except MLPs and routers from `base`."""
    config = HOME / "mergekit-moe.yml"  # JSON is YAML
    config.write_text(json.dumps(peer.settings(fleet()[0], base)), encoding="utf-8")
    out = emptied(WORK / "theirs")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(mergekit()), str(config), str(out), "--device", "cpu"]
    return process(command, HOME / "mergekit.log", {**environment, "HF_HUB_OFFLINE": "1"})


def all_text() -> list[str]:
    """The file of each domain's statistics text."""
    return [source.text[0] for source in sources().values()]


def few_text() -> list[str]:
    """The peer's prompts as a file for each domain."""
    result = []
    experts = peer.settings(fleet()[0], fleet()[0].domains[0].expert)["experts"]
    for name, expert in zip(sources(), experts, strict=True):
        path = HOME / f"prompts-{name}.jsonl"
        lines = [json.dumps({"text": prompt}) + "\n" for prompt in expert["positive_prompts"]]
        path.write_text("".join(lines), encoding="utf-8")
        result.append(str(path))
    return result


@cache
def processes() -> list[tuple[list[Run], list[Run]]]:
    """Ours on all text and on the prompts, and theirs with the first expert's body."""
    mergekit()
    every, few, base = all_text(), few_text(), fleet()[0].domains[0].expert
    runs = in_turns(lambda: [ours(every), ours(few)], lambda: [theirs(base)], RUNS)
    shutil.rmtree(WORK)
    return runs


@benchmark("one-machine-time", "moerge merge, all text, s", PEER, "<=", 10.0, ALL, "one-machine")
def one_machine_time() -> list[Pair]:
    return [(our.seconds, their.seconds) for [our, _], [their] in processes()]


@benchmark("one-machine-time-few", "moerge merge, the peer's prompts, s", PEER, "<=", 1.5, FEW, "one-machine")
def one_machine_time_few() -> list[Pair]:
    return [(our.seconds, their.seconds) for [_, our], [their] in processes()]


@benchmark("one-machine-memory", "moerge merge, all text, anonymous memory", PEER, "<=", 1.5, ALL, "one-machine")
def one_machine_memory() -> list[Pair]:
    return [(our.anonymous, their.anonymous) for [our, _], [their] in processes()]


@benchmark(
    "one-machine-quality",
    "moerge merge, mean normalised perplexity",
    f"{PEER}, averaged body",
    ">=",
    1.1,
    f"{ALL}; {CUT.tokens} held-out tokens a domain",
)
def one_machine_quality() -> list[Pair]:
    """100 / the mean normalised perplexity of each side, so that less is better."""
    ours(all_text())
    theirs(peer.averaged(fleet()[0]))
    with one_thread():
        domains, texts = fleet()
        experts = [scores(domain.expert, [text])[0] for domain, text in zip(domains.domains, texts, strict=True)]
        pair = 100 / mean(experts, WORK / "ours"), 100 / mean(experts, WORK / "theirs")
    shutil.rmtree(WORK)
    return [pair]


def scores(folder: Path, texts: Sequence[Sequence[Window]]) -> list[Score]:
    """The scores of a model on each text."""
    model = load(folder)
    return [score(model, text, Silent()) for text in texts]


def mean(experts: Sequence[Score], folder: Path) -> float:
    """The mean normalised perplexity of a merged model."""
    result = fmean(map(normalised, experts, scores(folder, fleet()[1])))
    say(f"  {folder.name}: {result:.1f}")
    return result
