"""Evaluations and their table, owners' access to versions, the promotion policy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerge.client.pull import pull
from moerge.errors import CoordinatorError
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.options import SolveOptions
from moerge_proto.owners import NewToken, Role
from moerge_proto.problems import ProblemType
from support.federation import SILENT, Federation, federation_of
from support.merging import SMALL
from support.processes import moerge


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art are in every version; code has an expert, and contributed nothing."""
    with federation_of(tmp_path_factory.mktemp("evaluations"), "law", "art", **SMALL) as federation:
        body = federation.merge()
        federation.add("code", **SMALL)
        federation.contribute(body, "law", "art")
        solve(federation, 1.0)
        yield federation


def solve(federation: Federation, ridge_lambda: float) -> int:
    return federation.solve(options=SolveOptions(ridge_lambda=ridge_lambda)).number


def sums(federation: Federation, number: int, domain: str, nll: float = 25.0, /, **change: Any) -> NewEvaluation:
    sent = {
        "number": number,
        "domain": domain,
        "expert": federation.expert(domain).digest,
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


def test_the_command_line_sets_redistribution(federation: Federation) -> None:
    member = federation.members["code"]
    environment = federation.server.environment(member.token)
    digest = moerge("expert", "add", member.folder, "--domain", "code", "--redistribute", **environment)
    assert digest == federation.expert("code").digest
    shown = moerge("expert", "show", "code", **environment)
    assert "yes" in next(line for line in shown.splitlines() if "redistribute" in line)
    federation.members["code"].allow(redistribute=False)
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
