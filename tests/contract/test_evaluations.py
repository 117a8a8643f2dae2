"""Evaluations, the table from them, who may have a version to evaluate it, and the promotion policy."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.client.pull import pull
from moerge.errors import CoordinatorError, MoergeError
from moerge.progress import LogProgress
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.experts import Expert, NewExpert
from moerge_proto.options import SolveOptions
from moerge_proto.owners import NewToken, Role
from moerge_proto.problems import ProblemType
from moerge_proto.versions import NewVersion
from support.fleet import Member, honest, joined, merge, send
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written

SETTINGS: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}


@dataclass
class House:
    """law and art are in every version; code has an expert, and contributed nothing."""

    server: Coordinator
    operator: Client
    members: dict[str, Member]
    experts: dict[str, Expert]

    def solve(self, ridge_lambda: float, *domains: str) -> int:
        experts = [self.experts[domain].digest for domain in domains] or None
        new = NewVersion(options=SolveOptions(ridge_lambda=ridge_lambda), experts=experts)
        return int(wait(self.operator, self.operator.solve_version(new)))

    def sums(self, number: int, domain: str, nll: float = 25.0, /, **change: Any) -> NewEvaluation:
        sent = {
            "number": number,
            "domain": domain,
            "expert": self.experts[domain].digest,
            "documents": 2,
            "context": 8,
            "stride": 4,
            "dense": {"nll": 20.0, "tokens": 10},
            "version": {"nll": nll, "tokens": 10},
            "oracle": {"nll": 21.0, "tokens": 10},
            "routed": [[9, 1], [5, 5]],
        }
        return NewEvaluation.model_validate(sent | change)

    def client(self, domain: str) -> Client:
        return self.members[domain].client

    def allow(self, domain: str, *, redistribute: bool) -> Expert:
        files = {file.name: file.sha256 for file in self.experts[domain].files}
        return self.client(domain).register_expert(NewExpert(domain=domain, files=files, redistribute=redistribute))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with coordinator(folder / "home", settings="promotion_max_fall = 2.0\n") as server, server.client() as operator:
        members = {
            domain: joined(server, domain, folder, seed, **SETTINGS) for seed, domain in enumerate(("law", "art"), 1)
        }
        trunk = merge(server)
        members["code"] = joined(server, "code", folder, 3, **SETTINGS)
        for domain in ("law", "art"):
            send(members[domain], written(folder / "contribution", *honest(server, members[domain], trunk)))
        made = House(server, operator, members, {each.domain: each for each in operator.experts()})
        made.solve(1.0)
        yield made
        for member in members.values():
            member.client.close()


def refused(caught: pytest.ExceptionInfo[CoordinatorError]) -> tuple[str, str]:
    problem = caught.value.problem()
    return problem.type.rpartition(":")[2], problem.field


@pytest.mark.parametrize(
    ("who", "domain", "change", "kind", "field"),
    [
        ("art", "law", {}, "forbidden", "domain"),
        ("code", "code", {}, "invalid-request", "domain"),
        ("law", "law", {"number": 2}, "invalid-request", "number"),
        ("law", "law", {"expert": "0" * 64}, "invalid-request", "expert"),
        ("law", "law", {"routed": [[9, 1]]}, "invalid-request", "routed"),
        ("law", "law", {"routed": [[9, 1], [5, 5], [5, 5]]}, "invalid-request", "routed"),
        ("law", "law", {"routed": [[8, 1, 1], [5, 5, 0]]}, "invalid-request", "routed"),
        ("law", "law", {"routed": [[10], [10]]}, "invalid-request", "routed"),
    ],
)
def test_what_can_t_be_of_this_version_is_refused_by_its_field(
    house: House, who: str, domain: str, change: dict[str, Any], kind: str, field: str
) -> None:
    with pytest.raises(CoordinatorError) as caught:
        house.client(who).evaluate(1, house.sums(1, domain, **change))
    assert refused(caught) == (kind, field)
    assert list(house.operator.evaluations(1)) == []


def test_an_evaluation_that_does_not_add_up_is_refused_and_so_is_one_of_no_version(house: House) -> None:
    wrong = house.sums(1, "law").model_copy(update={"routed": [[9, 1], [5, 4]]})
    with pytest.raises(CoordinatorError, match="routed counts 9 tokens in layer 1"):
        house.client("law").evaluate(1, wrong)
    with pytest.raises(CoordinatorError, match="no version 99"):
        house.client("law").evaluate(99, house.sums(99, "law"))
    retired = house.solve(77.0)
    house.operator.retire_version(retired)
    with pytest.raises(CoordinatorError, match="is retired"):
        house.client("law").evaluate(retired, house.sums(retired, "law"))


def test_the_same_again_changes_nothing_and_a_later_one_takes_its_place(house: House) -> None:
    number, law = house.solve(2.0), house.client("law")
    first = law.evaluate(number, house.sums(number, "law"))
    assert law.evaluate(number, house.sums(number, "law")) == first
    assert (first.owner, first.version, first.active) == ("law-owner", number, True)
    later = law.evaluate(number, house.sums(number, "law", 30.0))
    assert later.number > first.number
    assert law.evaluate(number, house.sums(number, "law")) == first.model_copy(update={"active": False})  # come late
    [kept, counts] = law.evaluations(number)
    assert (kept.digest, kept.active, counts) == (first.digest, False, later)
    art = house.client("art").evaluate(number, house.sums(number, "art", 20.0))
    assert list(house.client("art").evaluations(number)) == [art]  # an owner sees its own
    assert len(list(house.operator.evaluations(number))) == 3
    token = house.operator.add_token(NewToken(role=Role.READER)).secret
    with house.server.client(token or "") as reader:
        table = reader.version_table(number)
    assert [each.normalised for each in table.scores] == [pytest.approx(36.787944), 100]
    assert table.average == pytest.approx(68.393972)


def test_the_command_line_shows_the_table_by_number_and_alias(house: House) -> None:
    number = house.solve(3.0)
    house.client("art").evaluate(number, house.sums(number, "art", 20.0, routed=[[4, 6], [2, 8]]))
    house.operator.promote("shown", number)
    shown = moerge("version", "table", "shown", **house.server.environment(), COLUMNS="160")
    for text in ("art", "7.389", "100.0", "art-owner", "not evaluated", "70 %"):
        assert text in shown
    told = json.loads(moerge("version", "table", number, "--json", **house.server.environment()))
    assert (told["missing"], told["average"], told["scores"][0]["tokens"]) == (["law"], None, 10)


def test_an_owner_gets_a_version_s_files_once_every_other_owner_allows_it(house: House, tmp_path: Path) -> None:
    law, art = house.client("law"), house.client("art")
    version = house.operator.version(1)

    def refusal(client: Client) -> str:
        with pytest.raises(CoordinatorError) as caught:
            pull(client, version, tmp_path / "model", LogProgress())
        assert refused(caught)[0] == "forbidden"
        assert not (tmp_path / "model").exists()
        return caught.value.what

    assert refusal(law) == "in version 1 these domains don't allow redistribution: art"
    assert refusal(art) == "in version 1 these domains don't allow redistribution: law"
    assert refusal(house.client("code")) == "no ready expert of yours is in version 1"
    assert house.allow("art", redistribute=True).redistribute
    assert refusal(art) == "in version 1 these domains don't allow redistribution: law"
    assert pull(law, version, tmp_path / "model", LogProgress()) == version.bytes_total
    assert house.allow("art", redistribute=False) == house.experts["art"]
    (tmp_path / "model" / "moerge.json").unlink()
    with pytest.raises(MoergeError):
        pull(law, version, tmp_path / "model", LogProgress())


def test_the_command_line_says_and_shows_whether_an_expert_may_be_redistributed(house: House) -> None:
    member = house.members["code"]
    environment = house.server.environment(member.token)
    digest = moerge("expert", "add", member.folder, "--domain", "code", "--redistribute", **environment)
    assert digest == house.experts["code"].digest
    shown = moerge("expert", "show", "code", **environment)
    assert "yes" in next(line for line in shown.splitlines() if "redistribute" in line)
    house.allow("code", redistribute=False)
    listed = moerge("expert", "list", **environment)
    assert " no " in next(line for line in listed.splitlines() if "code-owner" in line)


def test_champion_moves_only_where_no_domain_falls_by_more_than_the_policy_allows(house: House) -> None:
    operator, law, art = house.operator, house.client("law"), house.client("art")
    one, fair, worse, alone = (house.solve(ridge) for ridge in (11.0, 12.0, 13.0, 14.0))

    def refusal(number: int) -> str:
        with pytest.raises(CoordinatorError) as caught:
            operator.promote("champion", number)
        assert (caught.value.type, caught.value.problem().status) == (ProblemType.NOT_PROMOTABLE.urn, 409)
        return caught.value.what

    operator.promote("candidate", one)  # other aliases move freely
    assert refusal(one) == f"version {one} is not evaluated on law, art"
    law.evaluate(one, house.sums(one, "law", 20.0))  # normalised 100
    assert refusal(one) == f"version {one} is not evaluated on art"
    art.evaluate(one, house.sums(one, "art", 25.0))
    assert operator.promote("champion", one).version == one  # the first needs the evaluations only
    for number, nll in ((fair, 20.2), (worse, 20.3)):  # 98.02, 97.04
        law.evaluate(number, house.sums(number, "law", nll))
        art.evaluate(number, house.sums(number, "art", 22.0))
    assert refusal(worse) == f"from version {one} to {worse} fall by more than 2: law from 100.00 to 97.04"
    assert operator.alias("champion").version == one
    assert operator.promote("champion", fair).version == fair
    assert operator.promote("champion", worse).version == worse  # 98.02 to 97.04
    assert operator.roll_back("champion", worse).version == fair  # not judged
    law.evaluate(alone, house.sums(alone, "law", 20.0))
    assert refusal(alone) == f"version {alone} is not evaluated on art"


def test_a_withdrawn_expert_s_evaluation_stays_and_its_version_goes_to_no_owner(house: House) -> None:
    number, (law, art) = house.solve(21.0), (house.client("law"), house.client("art"))
    house.allow("art", redistribute=True)
    art.evaluate(number, house.sums(number, "art"))
    art.withdraw_expert(house.experts["art"].digest)
    for client, told in (law, "contains withdrawn experts: art"), (art, "no ready expert of yours is in version"):
        with pytest.raises(CoordinatorError, match=told) as caught:
            client.http.send("GET", f"/v1/versions/{number}/files/config.json")
        assert refused(caught)[0] == "forbidden"
    assert [each.domain for each in house.operator.version_table(number).scores] == ["art"]
