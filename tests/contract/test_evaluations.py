"""Evaluations, their table, and owners' access to versions."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from moerge.client.pull import pull
from moerge.errors import CoordinatorError
from moerge_proto.evaluations import RESULTS, Evaluation, Perplexity, TaskResult
from moerge_proto.owners import NewToken, Role
from moerge_proto.problems import ProblemType
from moerge_proto.recipes import SolveOptions
from support.evaluations import evaluation, result, sums
from support.federation import SILENT, Federation, federation_of
from support.merging import SMALL
from support.processes import moerge


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art are in every version; code has an expert, and contributed nothing."""
    with federation_of(tmp_path_factory.mktemp("evaluations"), "law", "art", **SMALL) as federation:
        body = federation.body()
        federation.add("code", **SMALL)
        federation.contribute(body, "law", "art")
        solve(federation, 1.0)
        yield federation


def solve(federation: Federation, ridge_lambda: float) -> int:
    return federation.solve(options=SolveOptions(ridge_lambda=ridge_lambda), partial=True).number


def of(federation: Federation, domain: str, nll: float, **change: object) -> Perplexity:
    return sums(federation.members[domain].dense, nll, domain, **change)


def send(federation: Federation, who: str | None, number: int, *scores: Perplexity | TaskResult) -> list[Evaluation]:
    """A report by an owner, or by the operator."""
    client = federation.operator if who is None else federation.members[who].client
    return client.evaluate(evaluation(number, *scores))


def test_each_role_sees_its_part_of_the_scores(federation: Federation) -> None:
    number, operator = solve(federation, 2.0), federation.operator
    law, art = (federation.members[name].client for name in ("law", "art"))
    [first] = send(federation, "law", number, of(federation, "law", 40.0))
    own = send(federation, "law", number, of(federation, "law", 30.0), result(value=0.7))
    assert send(federation, "law", number, of(federation, "law", 40.0)) == [first.model_copy(update={"active": False})]
    other = send(federation, "art", number, of(federation, "art", 20.0))
    tasks = send(federation, None, number, result(value=0.6), result("gsm8k", 0.1, metric="exact_match,strict-match"))
    assert list(operator.evaluations(number)) == [*own, *other, *tasks]
    assert [row.active for row in operator.evaluations(number, replaced=True)] == [False, *[True] * 5]
    assert list(law.evaluations(number)) == [*own, *tasks]
    assert list(art.evaluations(number)) == [*other, *tasks], "law's are its own"
    token = operator.add_token(NewToken(role=Role.READER)).secret
    with federation.server.client(token) as reader:
        assert list(reader.evaluations(number)) == [own[1], *tasks], "owners' sums are the operators' to see"
        assert reader.version_table(number).average == pytest.approx(68.393972)
        with pytest.raises(CoordinatorError, match="role operator or owner"):
            reader.evaluate(evaluation(number))
    assert {score.domain for score in law.version_table(number).scores} == {"law"}
    entries = list(operator.audit(path=f"/v1/versions/{number}/evaluations"))
    assert [entry.owner for entry in entries] == ["law-owner"] * 3 + ["art-owner", None]


def test_the_command_line_and_a_card_show_the_table(federation: Federation, tmp_path: Path) -> None:
    number = solve(federation, 3.0)
    send(federation, "art", number, of(federation, "art", 20.0, routed=[[4, 6], [2, 8]]))
    federation.operator.promote("shown", number)
    shown = federation.moerge("version", "table", "shown", COLUMNS="160")
    for text in ("art", "7.389", "100.0", "art-owner", "not evaluated", "70 %"):
        assert text in shown
    table = json.loads(federation.moerge("version", "table", number, "--json"))
    assert (table["missing"], table["average"], table["scores"][0]["tokens"]) == (["law"], None, 10)
    assert "average of its 2 domains" in shown
    federation.moerge("pull", "shown", tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| art | 10 | 7.39 | 7.39 | 100.0 |\n\nNo scores of: law.\n" in card
    assert "| art |" not in federation.members["law"].client.version_card(number).partition("\n## Experts\n")[0]


def test_files_need_the_permission_of_all_other_owners(federation: Federation, tmp_path: Path) -> None:
    law, version = federation.members["law"].client, federation.operator.version(1)
    with pytest.raises(CoordinatorError, match="don't allow redistribution: art") as caught:
        pull(law, version, tmp_path / "model", SILENT)
    assert caught.value.type == ProblemType.FORBIDDEN.urn
    assert not (tmp_path / "model").exists()
    federation.members["art"].allow()
    card = next(file for file in version.files if file.name == "README.md")
    assert pull(law, version, tmp_path / "model", SILENT) == version.bytes_total - card.size


def test_the_command_line_shows_redistribution(federation: Federation) -> None:
    member = federation.members["code"]
    environment = federation.server.environment(member.token)
    member.allow()
    shown = moerge("expert", "show", "code", **environment)
    assert "yes" in next(line for line in shown.splitlines() if "redistribute" in line)
    member.allow(redistribute=False)
    listed = moerge("expert", "list", **environment)
    assert " no " in next(line for line in listed.splitlines() if "code-owner" in line)


def test_the_command_line_reports_and_shows_results_on_tasks(federation: Federation, tmp_path: Path) -> None:
    champion, number = (solve(federation, ridge) for ridge in (5.0, 6.0))
    federation.operator.promote("champion", champion)
    path, lower = tmp_path / "results.json", result("lambada", 31.5, None, metric="perplexity", higher_is_better=False)
    for version, value in ((champion, 0.52), (number, 0.55)):
        path.write_bytes(RESULTS.dump_json([result(value=value), lower]))
        assert "2 results on tasks reported" in federation.moerge("version", "evaluate", version, path)
    for command in (("table", number), ("compare", champion, number)):
        shown = federation.moerge("version", *command, COLUMNS="160")
        lines = [re.split(r"\s*│\s*", line)[1:6] for line in shown.splitlines() if "operator" in line]
        assert lines == [
            ["arc_easy (acc)", "0.550 ± 0.020", "0.520 ± 0.020", "0.030 ± 0.028", "400"],
            ["lambada (perplexity)", "31.5", "31.5", "0", "400"],
        ]
    table = json.loads(federation.moerge("version", "table", number, "--json"))
    assert [row["score"]["value"] for row in table["tasks"]] == [0.55, 31.5]
    assert "| arc_easy | acc | 0.550 ± 0.020 |" in federation.operator.version_card(number)
    for content, told in (("[{}]", "0.task: it is missing"), ("{", "not valid JSON")):
        path.write_text(content)
        with pytest.raises(AssertionError, match=told) as caught:
            federation.moerge("version", "evaluate", 1, path)
        assert str(path) in str(caught.value)


def test_an_owner_reports_the_results_that_its_policy_allows(federation: Federation, tmp_path: Path) -> None:
    number, member, home = solve(federation, 8.0), federation.members["law"], tmp_path / "home"
    path, policy = tmp_path / "results.json", home / "worker.toml"
    path.write_bytes(RESULTS.dump_json([result()]))
    home.mkdir()
    command = ("worker", "evaluate", number, path, "--home", home)
    environment = federation.server.environment(member.token)

    def write(rules: str) -> None:
        policy.write_text(f'domain = "law"\nexpert = "{member.folder}"\ndata = ["x"]\n[policy]\n{rules}\n')

    with pytest.raises(AssertionError, match="moerge worker evaluate"):
        moerge("version", "evaluate", number, path, **environment)
    write("evaluation_sums = false")
    with pytest.raises(AssertionError, match=r"(?s)policy forbids .*task_results = true"):
        moerge(*command, **environment)
    write('task_results = true\nmode = "ask"')
    with pytest.raises(AssertionError, match=r"(?s)What this reveals.*moerge worker approve"):
        moerge(*command, **environment)
    assert "not reported" in moerge(*command, "--dry-run", **environment)
    assert list(federation.operator.evaluations(number)) == []
    assert "approved: law: evaluation of" in moerge("worker", "approve", "--home", home)
    assert "1 result on tasks reported" in moerge(*command, **environment)
    assert [(row.owner, row.score) for row in member.client.evaluations(number)] == [("law-owner", result())]
    shown = moerge("worker", "history", "--home", home)
    assert f"law: evaluation of version {number}, 1 result on tasks" in shown
    assert "30 days: 0 evaluations" in shown, "the budget is of sums"
    assert not (home / "status.json").exists(), "it is a running worker's"


def test_hostile_reports_are_refused_by_their_field_or_size(federation: Federation) -> None:
    plain = result().model_dump(mode="json")
    for scores, status, field in (
        ([plain | {"task": "<script>alert(1)</script>"}], 422, "scores.0.task.task"),
        ([plain | {"kind": "text"}], 422, "scores.0"),
        ([plain | {"task": f"t{n}"} for n in range(6000)], 413, ""),
    ):
        answer = federation.request("POST", "/versions/1/evaluations", json={"number": 1, "scores": scores})
        assert (answer.status_code, answer.json()["field"]) == (status, field)
