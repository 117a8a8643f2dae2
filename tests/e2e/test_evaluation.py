"""An owner's worker evaluates a version on documents that stay at home: what it reports, and what it keeps."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moerge.cli.common import wait
from moerge.documents.splits import SplitRule, document_mac
from moerge.files import file_sha256
from moerge.models.tokens import all_counted
from moerge.scoring.perplexity import load, score, windows
from moerge.scoring.routers import RoutingCounter, forced
from moerge_proto.evaluations import Perplexity
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import NewVersion
from moerge_workers import commands
from moerge_workers.data.documents import read_key
from moerge_workers.outgoing.history import History
from support.federation import Member, eventually, federation_of
from support.models import expert, tokenizer
from support.processes import ended, start_worker
from support.progress import Silent
from support.worker import Worker, worker_of

POLICY = {
    "evaluation_sums": True, "redistribute": True, "router_contributions": False, "head_contributions": False,
    "min_documents": 20,
}  # fmt: skip
CONTEXT = 16


@pytest.fixture(scope="module")
def art(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Member, Worker]]:
    """Version 1 is of art and law, which joined by its worker."""
    with federation_of(tmp_path_factory.mktemp("evaluation"), "art") as made:
        made.contribute(made.body())
        law = made.join("law", expert(made.folder / "law", 2))
        with worker_of(made.server, law, made.folder, made.seed) as worker:
            worker.write("a.jsonl", 0, 100)
            run(worker, fit=False, policy={"evaluation_sums": False, "router_contributions": True, "min_tokens": 1})
            solve(worker, 1.0)
            yield made.members["art"], worker


def solve(worker: Worker, ridge_lambda: float) -> int:
    with worker.server.client() as operator:
        new = NewVersion(options=SolveOptions(ridge_lambda=ridge_lambda))
        return int(wait(operator, operator.solve_version(new)))


def run(worker: Worker, **settings: object) -> str:
    policy = {**POLICY, **settings.pop("policy", {})}  # type: ignore[dict-item]
    statistics = {"context": CONTEXT, "tokens_per_document": 20}
    told = worker.run(policy=policy, held_out_share=0.5, statistics=statistics, **settings)
    assert told == "ran", told
    assert not [path for path in (worker.home / "evaluations").glob("*") if path.is_dir()]
    return worker.log()


def evaluations(worker: Worker, number: int) -> list[Perplexity]:
    rows = worker.member.client.evaluations(number)
    return [row.score for row in rows if isinstance(row.score, Perplexity)]


def held_out(worker: Worker) -> list[list[int]]:
    """The ids of the documents that the owner's key puts aside, cut as the policy says."""
    encode, key = tokenizer(), read_key(worker.home)
    lines = [line for path in sorted((worker.folder / "data").iterdir()) for line in path.read_text().splitlines()]
    texts = [json.loads(line)["text"] for line in lines]
    return [
        encode(text)["input_ids"][:20] for text in texts if SplitRule(0.5).split(document_mac(key, text)) == "held-out"
    ]


def test_version_is_scored_on_held_out_text_and_only_sums_sent(art: tuple[Member, Worker]) -> None:
    other, worker = art
    assert "don't allow redistribution: art" in run(worker)
    assert [expert.redistribute for expert in worker.member.client.experts()] == [True]
    other.allow()
    shown = run(worker, dry_run=True)
    assert "a run would send" in shown
    assert "law: evaluation of version 1, sums over" in shown
    run(worker, policy={"mode": "ask"})
    assert evaluations(worker, 1) == []
    with closing(History(worker.home)) as history:
        [asked] = history.asked()
    assert "well your expert and the version predict your held-out text" in worker.log()
    before = Path(asked.place).read_bytes()
    approved = CliRunner().invoke(commands.app, ["approve", asked.digest[:12], "--home", str(worker.home)])
    assert approved.exit_code == 0, approved.output
    run(worker, policy={"mode": "ask"})
    [sent], [sums] = worker.member.client.evaluations(1), evaluations(worker, 1)
    assert (sent.digest, file_sha256(Path(asked.place)), sent.owner) == (asked.digest, asked.digest, "law-owner")
    [content] = json.loads(before)["scores"]
    assert sorted(content) == [
        "context", "dense", "documents", "domain", "expert", "kind", "oracle", "routed", "software", "stride",
        "version",
    ]  # fmt: skip

    documents = held_out(worker)
    assert (sums.documents, sums.context, sums.stride) == (len(documents), CONTEXT, CONTEXT // 2)
    cut = windows(all_counted(documents), CONTEXT, CONTEXT // 2)
    model = load(worker.server.home / "versions" / "1")
    counter = RoutingCounter(model)
    with counter.counting():
        version = score(model, cut, Silent(), [counter.count])
    with forced(model, 1):
        oracle = score(model, cut, Silent())
    dense = score(load(worker.member.folder), cut, Silent())
    assert oracle.nll != version.nll
    for result, expected in (sums.dense, dense), (sums.version, version), (sums.oracle, oracle):
        assert result.tokens == expected.tokens
        assert result.nll == pytest.approx(expected.nll, rel=1e-6)
    assert sums.routed == counter.counts.tolist()
    with worker.server.client() as operator:
        [line] = operator.version_table(1).scores
    assert line.normalised == pytest.approx(100 * dense.perplexity / version.perplexity)

    run(worker)
    assert len(evaluations(worker, 1)) == 1
    with closing(History(worker.home)) as history:
        left = [sending.became for sending in history.sendings() if sending.item.kind == "evaluation"]
    assert left == ["arrived"]


def test_few_new_documents_wait_and_few_removed_send_nothing(
    art: tuple[Member, Worker],
) -> None:
    other, worker = art
    other.allow()
    run(worker)
    [first] = evaluations(worker, 1)
    worker.write("b.jsonl", 100, 10)
    assert len(held_out(worker)) > first.documents
    two = solve(worker, 2.0)
    run(worker)
    [second] = evaluations(worker, two)
    assert (second.documents, second.dense) == (first.documents, first.dense)

    worker.write("a.jsonl", 10, 90)
    three = solve(worker, 3.0)
    assert "held-out documents were added or removed since the last evaluation" in run(worker)
    assert evaluations(worker, three) == []

    worker.write("c.jsonl", 1000, 100)
    run(worker)
    [third] = evaluations(worker, three)
    assert third.documents == len(held_out(worker))


@pytest.mark.slow
def test_worker_waiting_for_a_body_evaluates_versions(art: tuple[Member, Worker]) -> None:
    other, worker = art
    other.allow()
    number = solve(worker, 5.0)
    home = worker.folder / "waiting"
    home.mkdir()
    (home / "worker.toml").write_text(
        f'coordinator = "{worker.server.url}"\ndomain = "law"\nexpert = "{worker.member.folder}"\n'
        f'seed = "{worker.seed}"\ndata = ["{worker.folder / "data"}"]\nheld_out_share = 0.5\nfit = false\n'
        "[policy]\nhead_contributions = false\n"
        "evaluation_sums = true\nredistribute = true\nmin_documents = 20\nmin_tokens = 1\n"
    )
    log = worker.folder / "waiting.log"
    environment = {"MOERGE_TOKEN": worker.member.token}
    running = start_worker(["worker", "run", "--home", str(home)], environment, log)
    try:
        eventually(lambda: not running.is_alive() or "evaluated version" in log.read_text(), seconds=120)
        assert running.is_alive(), log.read_text()
        assert evaluations(worker, number)
        text = log.read_text()
        assert text.index("under body") < text.index("waiting for the next body") < text.index("evaluated version")
        assert "tokens/s" in text
    finally:
        running.terminate()
        ended(running, 60)


def test_too_few_documents_are_not_scored(art: tuple[Member, Worker]) -> None:
    _, worker = art
    four = solve(worker, 4.0)
    assert "the policy's min_documents is 5,000" in run(worker, policy={"min_documents": 5000})
    assert evaluations(worker, four) == []
