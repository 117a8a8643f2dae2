"""An owner's worker evaluates a version on documents that stay at home: what it reports, and what it keeps."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moerge.cli.common import wait
from moerge.documents.splits import split_of
from moerge.files import file_sha256
from moerge.models.tokens import all_counted
from moerge.scoring.perplexity import load, score, windows
from moerge.scoring.routers import RoutingCounter, forced
from moerge_proto.evaluations import Evaluation
from moerge_proto.experts import NewExpert
from moerge_proto.options import SolveOptions
from moerge_proto.versions import NewVersion
from moerge_workers import commands
from moerge_workers.data.shard_key import read_key
from moerge_workers.data.splits import document_mac
from moerge_workers.leaving.history import History
from support.fleet import Member, eventually, honest, joined, merge, send
from support.house import House, house_of
from support.models import tokenizer
from support.processes import coordinator, ended, start_worker
from support.progress import Silent
from support.statistics import written

POLICY = {"evaluation_sums": True, "redistribute": True, "router_contributions": False, "min_documents": 20}
CONTEXT = 16


@pytest.fixture(scope="module")
def art(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Member, House]]:
    """Version 1 is of law and art; law has a worker."""
    folder = tmp_path_factory.mktemp("evaluation")
    with coordinator(folder / "home") as server:
        law, other = (joined(server, domain, folder, seed) for seed, domain in enumerate(("law", "art"), 1))
        trunk = merge(server)
        for member in (law, other):
            send(member, written(folder / "contribution", *honest(server, member, trunk)))
        with house_of(server, law, folder) as house:
            house.write("a.jsonl", 0, 100)
            solve(house, 1.0)
            yield other, house
        other.client.close()


def solve(house: House, ridge_lambda: float) -> int:
    with house.server.client() as operator:
        new = NewVersion(options=SolveOptions(ridge_lambda=ridge_lambda))
        return int(wait(operator, operator.solve_version(new)))


def allow(member: Member) -> None:
    [expert] = member.client.experts()
    files = {file.name: file.sha256 for file in expert.files}
    member.client.register_expert(NewExpert(domain=member.domain, files=files, redistribute=True))


def run(house: House, **settings: object) -> str:
    policy = {**POLICY, **settings.pop("policy", {})}  # type: ignore[dict-item]
    statistics = {"context": CONTEXT, "tokens_per_document": 20}
    told = house.run(policy=policy, held_out_share=0.5, statistics=statistics, **settings)
    assert told == "ran", told
    assert not [path for path in (house.home / "evaluations").iterdir() if path.is_dir()]
    return house.log()


def evaluations(house: House, number: int) -> list[Evaluation]:
    return list(house.member.client.evaluations(number))


def held_out(house: House) -> list[list[int]]:
    """The ids of the documents that the owner's key puts aside, cut as the policy says."""
    encode, key = tokenizer(), read_key(house.home)
    lines = [line for path in sorted((house.folder / "data").iterdir()) for line in path.read_text().splitlines()]
    texts = [json.loads(line)["text"] for line in lines]
    return [encode(text)["input_ids"][:20] for text in texts if split_of(document_mac(key, text), 0, 0.5) == "held-out"]


def test_a_version_is_scored_on_held_out_documents_and_only_sums_leave(art: tuple[Member, House]) -> None:
    other, house = art
    assert "these domains don't allow redistribution: art" in run(house)
    assert [each.redistribute for each in house.member.client.experts()] == [True]
    allow(other)
    shown = run(house, dry_run=True)
    assert "It would send" in shown
    assert "law: evaluation of version 1, sums over" in shown
    run(house, policy={"mode": "ask"})
    assert evaluations(house, 1) == []
    with closing(History(house.home)) as history:
        [asked] = history.asked()
    assert "well your expert and the version predict your held-out text" in house.log()
    before = Path(asked.place).read_bytes()
    approved = CliRunner().invoke(commands.app, ["approve", asked.digest[:12], "--home", str(house.home)])
    assert approved.exit_code == 0, approved.output
    run(house, policy={"mode": "ask"})
    [sent] = evaluations(house, 1)
    assert (sent.digest, file_sha256(Path(asked.place)), sent.owner) == (asked.digest, asked.digest, "law-owner")
    assert sorted(json.loads(before)) == [
        "context", "dense", "documents", "domain", "expert", "number", "oracle", "routed", "software", "stride",
        "version",
    ]  # fmt: skip

    documents, sums = held_out(house), sent.sums
    assert (sums.documents, sums.context, sums.stride) == (len(documents), CONTEXT, CONTEXT // 2)
    cut = windows(all_counted(documents), CONTEXT, CONTEXT // 2)
    model = load(house.server.home / "versions" / "1")
    counter = RoutingCounter(model)
    with counter.counting():
        version = score(model, cut, Silent(), counter.count)
    with forced(model, 0):
        oracle = score(model, cut, Silent())
    dense = score(load(house.member.folder), cut, Silent())
    assert oracle.nll != version.nll
    for found, expected in (sums.dense, dense), (sums.version, version), (sums.oracle, oracle):
        assert found.tokens == expected.tokens
        assert found.nll == pytest.approx(expected.nll, rel=1e-6)
    assert sums.routed == counter.counts.tolist()
    with house.server.client() as operator:
        [line] = operator.version_table(1).scores
    assert line.normalised == pytest.approx(100 * dense.perplexity / version.perplexity)

    run(house)
    assert len(evaluations(house, 1)) == 1
    with closing(History(house.home)) as history:
        assert [(each.item.kind, each.became) for each in history.sendings()] == [("evaluation", "arrived")]


def test_documents_that_came_wait_until_they_are_enough_and_a_few_that_went_keep_it_here(
    art: tuple[Member, House],
) -> None:
    other, house = art
    allow(other)
    run(house)
    [first] = evaluations(house, 1)
    house.write("b.jsonl", 100, 10)
    assert len(held_out(house)) > first.sums.documents
    two = solve(house, 2.0)
    run(house)
    [second] = evaluations(house, two)
    assert (second.sums.documents, second.sums.dense) == (first.sums.documents, first.sums.dense)

    house.write("a.jsonl", 10, 90)
    three = solve(house, 3.0)
    assert "held-out documents were added or removed since the last evaluation" in run(house)
    assert evaluations(house, three) == []

    house.write("c.jsonl", 1000, 100)
    run(house)
    [third] = evaluations(house, three)
    assert third.sums.documents == len(held_out(house))


@pytest.mark.slow
def test_a_worker_that_waits_for_the_next_trunk_evaluates_meanwhile(art: tuple[Member, House]) -> None:
    other, house = art
    allow(other)
    number = solve(house, 5.0)
    home = house.folder / "waiting"
    home.mkdir()
    (home / "worker.toml").write_text(
        f'coordinator = "{house.server.url}"\ndomain = "law"\nexpert = "{house.member.folder}"\n'
        f'data = ["{house.folder / "data"}"]\nheld_out_share = 0.5\n'
        "[policy]\nevaluation_sums = true\nredistribute = true\nmin_documents = 20\nmin_tokens = 1\n"
    )
    log = house.folder / "waiting.log"
    environment = {"MOERGE_TOKEN": house.member.token}
    running = start_worker(["worker", "run", "--home", str(home)], environment, log)
    try:
        eventually(lambda: not running.is_alive() or "evaluated version" in log.read_text(), seconds=120)
        assert running.is_alive(), log.read_text()
        assert evaluations(house, number)
        text = log.read_text()
        assert text.index("under trunk") < text.index("waiting for the operator") < text.index("evaluated version")
        assert "tokens/s" in text
    finally:
        running.terminate()
        ended(running, 60)


def test_too_few_documents_are_not_scored(art: tuple[Member, House]) -> None:
    _, house = art
    four = solve(house, 4.0)
    assert "the policy's min_documents is 5,000" in run(house, policy={"min_documents": 5000})
    assert evaluations(house, four) == []
