"""Evaluations, the table from them, who may have a version to evaluate it, and the promotion policy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerge.client.client import Client
from moerge.client.pull import pull
from moerge.errors import CoordinatorError, MoergeError
from moerge.progress import LogProgress
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.options import SolveOptions
from moerge_proto.owners import NewToken, Role
from moerge_proto.problems import ProblemType
from support.federation import Federation, federation_of
from support.processes import moerge

SETTINGS: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art are in every version; code has an expert, and contributed nothing."""
    with federation_of(tmp_path_factory.mktemp("evaluations"), "law", "art", **SETTINGS) as made:
        trunk = made.merge()
        made.add("code", **SETTINGS)
        made.contribute(trunk, "law", "art")
        solve(made, 1.0)
        yield made


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


def refused(caught: pytest.ExceptionInfo[CoordinatorError]) -> tuple[str, str]:
    problem = caught.value.problem()
    return problem.type.rpartition(":")[2], problem.field


def test_what_can_t_be_of_this_version_is_refused_and_not_kept(federation: Federation) -> None:
    asked: list[tuple[str, int, NewEvaluation, tuple[str, str]]] = [
        ("art", 1, sums(federation, 1, "law"), ("forbidden", "domain")),
        ("code", 1, sums(federation, 1, "code"), ("invalid-request", "domain")),
        ("law", 99, sums(federation, 99, "law"), ("not-found", "number")),
    ]
    for who, number, new, expected in asked:
        with pytest.raises(CoordinatorError) as caught:
            federation.members[who].client.evaluate(number, new)
        assert refused(caught) == expected
    wrong = sums(federation, 1, "law").model_copy(update={"routed": [[9, 1], [5, 4]]})
    with pytest.raises(CoordinatorError, match="routed counts 9 tokens in layer 1"):
        federation.members["law"].client.evaluate(1, wrong)
    assert list(federation.operator.evaluations(1)) == []
    retired = solve(federation, 77.0)
    federation.operator.retire_version(retired)
    with pytest.raises(CoordinatorError, match="is retired"):
        federation.members["law"].client.evaluate(retired, sums(federation, retired, "law"))


def test_evaluations_are_listed_and_make_the_table(federation: Federation) -> None:
    number, law = solve(federation, 2.0), federation.members["law"].client
    first, later = (law.evaluate(number, sums(federation, number, "law", nll)) for nll in (25.0, 30.0))
    [kept, counts] = law.evaluations(number)
    assert (kept.digest, kept.active, counts) == (first.digest, False, later)
    art = federation.members["art"].client.evaluate(number, sums(federation, number, "art", 20.0))
    assert list(federation.members["art"].client.evaluations(number)) == [art]  # an owner sees its own
    assert len(list(federation.operator.evaluations(number))) == 3
    token = federation.operator.add_token(NewToken(role=Role.READER)).secret
    with federation.server.client(token or "") as reader:
        table = reader.version_table(number)
    assert [each.normalised for each in table.scores] == [pytest.approx(36.787944), 100]
    assert table.average == pytest.approx(68.393972)


def test_the_command_line_and_a_pulled_card_show_the_table(federation: Federation, tmp_path: Path) -> None:
    number = solve(federation, 3.0)
    federation.members["art"].client.evaluate(number, sums(federation, number, "art", 20.0, routed=[[4, 6], [2, 8]]))
    federation.operator.promote("shown", number)
    shown = federation.moerge("version", "table", "shown", COLUMNS="160")
    for text in ("art", "7.389", "100.0", "art-owner", "not evaluated", "70 %"):
        assert text in shown
    told = json.loads(federation.moerge("version", "table", number, "--json"))
    assert (told["missing"], told["average"], told["scores"][0]["tokens"]) == (["law"], None, 10)
    assert "average of its 2 domains" in shown
    federation.moerge("pull", "shown", tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| art | 10 | 7.39 | 7.39 | 100.0 |\n\nNo scores of: law.\n" in card
    assert "| art |" not in federation.members["law"].client.version_card(number).partition("\n## Experts\n")[0]


def test_averages_over_other_domains_are_named_and_not_compared(federation: Federation) -> None:
    alone = federation.solve(experts=federation.digests("law"), options=SolveOptions(ridge_lambda=4.0)).number
    both = solve(federation, 4.0)
    law, art = (federation.members[name].client for name in ("law", "art"))
    law.evaluate(alone, sums(federation, alone, "law", 21.0, routed=[[10], [10]]))
    law.evaluate(both, sums(federation, both, "law", 22.0))
    art.evaluate(both, sums(federation, both, "art", 30.0))
    shown = federation.moerge("version", "compare", alone, both, COLUMNS="160")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    cells = {name: row for name, *row in rows}
    assert cells["average of all its domains (1, 2)"] == ["90.5", "59.3", ""]
    assert cells["average of the 1 that both have"] == ["90.5", "81.9", "-8.6"]
    assert (cells["experts added"], cells["other MLPs"]) == (["art"], [""])


def test_an_owner_gets_a_version_s_files_once_every_other_owner_allows_it(
    federation: Federation, tmp_path: Path
) -> None:
    law, art = federation.members["law"].client, federation.members["art"].client
    version, before = federation.operator.version(1), federation.expert("art")

    def refusal(client: Client) -> str:
        with pytest.raises(CoordinatorError) as caught:
            pull(client, version, tmp_path / "model", LogProgress())
        assert refused(caught)[0] == "forbidden"
        assert not (tmp_path / "model").exists()
        return caught.value.what

    assert refusal(law) == "domains of version 1 don't allow redistribution: art"
    assert refusal(art) == "domains of version 1 don't allow redistribution: law"
    assert refusal(federation.members["code"].client) == "version 1 has no ready expert of yours"
    assert federation.members["art"].allow(redistribute=True).redistribute
    assert refusal(art) == "domains of version 1 don't allow redistribution: law"
    card = next(file for file in version.files if file.name == "README.md")
    assert pull(law, version, tmp_path / "model", LogProgress()) == version.bytes_total - card.size
    assert federation.members["art"].allow(redistribute=False) == before
    (tmp_path / "model" / "moerge.json").unlink()
    with pytest.raises(MoergeError):
        pull(law, version, tmp_path / "model", LogProgress())


def test_the_command_line_says_and_shows_whether_an_expert_may_be_redistributed(federation: Federation) -> None:
    member = federation.members["code"]
    environment = federation.server.environment(member.token)
    digest = moerge("expert", "add", member.folder, "--domain", "code", "--redistribute", **environment)
    assert digest == federation.expert("code").digest
    shown = moerge("expert", "show", "code", **environment)
    assert "yes" in next(line for line in shown.splitlines() if "redistribute" in line)
    federation.members["code"].allow(redistribute=False)
    listed = moerge("expert", "list", **environment)
    assert " no " in next(line for line in listed.splitlines() if "code-owner" in line)


def test_champion_moves_to_no_version_that_is_much_worse_for_an_owner(
    federation: Federation,
) -> None:
    operator, (one, worse) = federation.operator, (solve(federation, ridge) for ridge in (11.0, 13.0))

    def refusal(number: int) -> str:
        with pytest.raises(CoordinatorError) as caught:
            operator.promote("champion", number)
        assert (caught.value.type, caught.value.problem().status) == (ProblemType.NOT_PROMOTABLE.urn, 409)
        return caught.value.what

    assert operator.promote("candidate", one).warnings == []
    for number, law in ((one, 20.0), (worse, 20.3)):  # normalised 100, 97.04
        federation.members["law"].client.evaluate(number, sums(federation, number, "law", law))
        federation.members["art"].client.evaluate(number, sums(federation, number, "art", 22.0))
    assert operator.promote("champion", one).version == one
    fall = f"on version {worse} these scores fall by more than 2 points: law (owner law-owner) from 100.00 to 97.04"
    assert refusal(worse) == fall
    assert operator.alias("champion").version == one
