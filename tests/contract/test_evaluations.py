"""Evaluations and their table, reported benchmarks, owners' access to versions, the promotion policy."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerge.client.pull import pull
from moerge.errors import CoordinatorError
from moerge_proto.benchmarks import results_json
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.options import SolveOptions
from moerge_proto.owners import NewToken, Role
from moerge_proto.problems import ProblemType
from support.benchmarks import result, results_of
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


def sums(federation: Federation, number: int, domain: str, nll: float = 25.0, /, **change: Any) -> NewEvaluation:
    sent = {
        "number": number,
        "domain": domain,
        "expert": federation.members[domain].dense,
        "documents": 2,
        "context": 8,
        "stride": 4,
        "dense": {"nll": 20.0, "tokens": 10},
        "version": {"nll": nll, "tokens": 10},
        "oracle": {"nll": 21.0, "tokens": 10},
        "routed": [[9, 1], [5, 5]],
    }
    return NewEvaluation.model_validate(sent | change)


def test_an_evaluation_of_another_s_domain_is_refused(federation: Federation) -> None:
    with pytest.raises(CoordinatorError) as caught:
        federation.members["art"].client.evaluate(1, sums(federation, 1, "law"))
    assert (caught.value.type, caught.value.where) == (ProblemType.FORBIDDEN.urn, "domain")
    assert list(federation.operator.evaluations(1)) == []


def test_evaluations_are_listed_and_make_the_table(federation: Federation) -> None:
    number, law = solve(federation, 2.0), federation.members["law"].client
    sent = law.evaluate(number, sums(federation, number, "law", 30.0))
    art = federation.members["art"].client.evaluate(number, sums(federation, number, "art", 20.0))
    assert list(law.evaluations(number)) == [sent]
    assert list(federation.operator.evaluations(number)) == [sent, art]
    token = federation.operator.add_token(NewToken(role=Role.READER)).secret
    with federation.server.client(token) as reader:
        assert reader.version_table(number).average == pytest.approx(68.393972)


def test_the_command_line_and_a_card_show_the_table(federation: Federation, tmp_path: Path) -> None:
    number = solve(federation, 3.0)
    federation.members["art"].client.evaluate(number, sums(federation, number, "art", 20.0, routed=[[4, 6], [2, 8]]))
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


def test_a_promotion_that_harms_an_owner_is_refused(federation: Federation) -> None:
    operator, (one, worse) = federation.operator, (solve(federation, ridge) for ridge in (11.0, 13.0))
    for number, law in ((one, 20.0), (worse, 20.3)):  # normalised 100, 97.04
        federation.members["law"].client.evaluate(number, sums(federation, number, "law", law))
    operator.promote("champion", one)
    with pytest.raises(CoordinatorError, match=r"law \(owner law-owner\) from 100\.00 to 97\.04") as caught:
        operator.promote("champion", worse)
    assert (caught.value.type, caught.value.problem().status) == (ProblemType.NOT_PROMOTABLE.urn, 409)
    assert operator.alias("champion").version == one


def test_benchmarks_are_reported_by_operators_and_owners_and_logged(federation: Federation) -> None:
    number, operator = solve(federation, 4.0), federation.operator
    law, art = (federation.members[name].client for name in ("law", "art"))
    report = results_of(number, result(value=0.6), result("gsm8k", 0.1, metric="exact_match,strict-match"))
    sent = operator.report_benchmarks(report)
    assert operator.report_benchmarks(report) == sent
    own = law.report_benchmarks(results_of(number, result(value=0.7)))
    assert [(row.owner, row.active, row.result) for row in own] == [("law-owner", True, result(value=0.7))]
    later = operator.report_benchmarks(results_of(number, result(value=0.5)))
    assert list(operator.benchmarks(number)) == [sent[1], *own, *later]
    assert [row.active for row in operator.benchmarks(number, replaced=True)] == [False, True, True, True]
    assert list(law.benchmarks(number)) == [sent[1], *own, *later]
    assert list(art.benchmarks(number)) == [sent[1], *later], "law's are its own"
    token = operator.add_token(NewToken(role=Role.READER)).secret
    with federation.server.client(token) as reader:
        assert list(reader.benchmarks(number)) == [sent[1], *own, *later]
        with pytest.raises(CoordinatorError, match="role operator or owner"):
            reader.report_benchmarks(report)
    entries = list(operator.audit(path=f"/v1/versions/{number}/benchmarks"))
    assert [(entry.owner, entry.status) for entry in entries] == [(None, 201)] * 2 + [("law-owner", 201), (None, 201)]


def test_the_command_line_reports_and_shows_benchmarks(federation: Federation, tmp_path: Path) -> None:
    champion, number = (solve(federation, ridge) for ridge in (5.0, 6.0))
    federation.operator.promote("champion", champion)
    path, lower = tmp_path / "results.json", result("lambada", 31.5, None, metric="perplexity", higher_is_better=False)
    for version, value in ((champion, 0.52), (number, 0.55)):
        path.write_bytes(results_json([result(value=value), lower]))
        assert "2 benchmark results reported" in federation.moerge("version", "benchmark", version, path)
    shown = federation.moerge("version", "table", number)
    lines = [line for line in shown.splitlines() if "operator" in line]
    assert re.split(r"\s*│\s*", lines[0])[3:7] == ["0.550 ± 0.020", "0.520 ± 0.020", "0.030 ± 0.028", "400"]
    assert re.split(r"\s*│\s*", lines[1])[3:6] == ["31.5", "31.5", "0"]
    compared = federation.moerge("version", "compare", champion, number)
    assert "arc_easy (acc)" in compared
    assert "0.030 ± 0.028" in compared
    table = json.loads(federation.moerge("version", "table", number, "--json"))
    assert [row["result"]["value"] for row in table["benchmarks"]] == [0.55, 31.5]
    assert "| arc_easy | acc | 0.550 ± 0.020 |" in federation.operator.version_card(number)


def test_a_file_that_has_no_results_is_named_with_its_field(federation: Federation, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for content, told in ((None, "No such file"), ("[{}]", "0.task: it is missing"), ("{", "not valid JSON")):
        if content is not None:
            path.write_text(content)
        with pytest.raises(AssertionError, match=told) as caught:
            federation.moerge("version", "benchmark", 1, path)
        assert str(path) in str(caught.value)


def test_an_owner_s_token_doesn_t_report_without_its_policy(federation: Federation, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(results_json([result()]))
    environment = federation.server.environment(federation.members["law"].token)
    with pytest.raises(AssertionError, match="moerge worker benchmark"):
        moerge("version", "benchmark", 1, path, **environment)
    assert list(federation.operator.benchmarks(1)) == []


def test_an_owner_reports_what_its_policy_allows(federation: Federation, tmp_path: Path) -> None:
    number, member, home = solve(federation, 8.0), federation.members["law"], tmp_path / "home"
    path, policy = tmp_path / "results.json", home / "worker.toml"
    path.write_bytes(results_json([result()]))
    home.mkdir()
    command = ("worker", "benchmark", number, path, "--home", home)
    environment = federation.server.environment(member.token)

    def write(rules: str) -> None:
        policy.write_text(f'domain = "law"\nexpert = "{member.folder}"\ndata = ["x"]\n[policy]\n{rules}\n')

    write("")
    with pytest.raises(AssertionError, match=r"(?s)policy forbids .*benchmark_results = true"):
        moerge(*command, **environment)
    write('benchmark_results = true\nmode = "ask"')
    with pytest.raises(AssertionError, match=r"(?s)What this reveals.*moerge worker approve"):
        moerge(*command, **environment)
    assert "not reported" in moerge(*command, "--dry-run", **environment)
    assert list(federation.operator.benchmarks(number)) == []
    assert "approved: law: benchmark results" in moerge("worker", "approve", "--home", home)
    assert "1 benchmark result reported" in moerge(*command, **environment)
    assert [(row.owner, row.result) for row in member.client.benchmarks(number)] == [("law-owner", result())]
    assert f"law: benchmark results of version {number} on 1 task" in moerge("worker", "history", "--home", home)
    assert not (home / "status.json").exists(), "it is a running worker's"


def test_an_owner_without_an_expert_in_the_version_reports_nothing(federation: Federation) -> None:
    with pytest.raises(CoordinatorError, match="no ready expert of yours") as caught:
        federation.members["code"].client.report_benchmarks(results_of(1))
    assert caught.value.type == ProblemType.FORBIDDEN.urn
    assert list(federation.operator.benchmarks(1)) == []


def test_hostile_reports_are_refused_by_their_field(federation: Federation) -> None:
    plain = result().model_dump(mode="json")
    for field, results in {
        "results.0.task": [plain | {"task": "<script>alert(1)</script>"}],
        "results.0.metric": [plain | {"metric": "acc|\n# Heading"}],
        "results.0.harness": [plain | {"harness": "lm_eval\x1b[2J"}],
        "results.0.value": [plain | {"value": 1e300}],
        "results.0.standard_error": [plain | {"standard_error": -1}],
        "results.0.questions": [plain | {"questions": 2**40}],
        "results.0.samples": [plain | {"samples": ["the patient"]}],
        "results": [],
    }.items():
        answer = federation.request("POST", "/versions/1/benchmarks", json={"number": 1, "results": results})
        assert (answer.status_code, answer.json()["field"]) == (422, field)
    twice = federation.request("POST", "/versions/1/benchmarks", json={"number": 1, "results": [plain, plain]})
    assert "2 results of arc_easy, acc; expected one" in twice.json()["detail"]
    for count, status in ((1001, 422), (6000, 413)):
        many = {"number": 1, "results": [plain | {"task": f"t{n}"} for n in range(count)]}
        assert federation.request("POST", "/versions/1/benchmarks", json=many).status_code == status
    text = '{"number": 1, "results": [{"task": "t", "metric": "acc", "value": NaN}]}'
    headers = {"Content-Type": "application/json"}
    answer = federation.request("POST", "/versions/1/benchmarks", content=text, headers=headers)
    assert answer.status_code == 422
    assert list(federation.operator.benchmarks(1)) == []
