"""As experts join one trunk: how owners' evaluations tell that domains move, and that a remerge pays."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.errors import CoordinatorError
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.owners import NewToken, Role
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion
from support.dashboard import act, signed_in
from support.fleet import Member, eventually, honest, joined, merge, send
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written

SETTINGS = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}


@dataclass
class House:
    """law and art are in the trunk; code joined it."""

    server: Coordinator
    operator: Client
    folder: Path
    trunk: Trunk
    members: dict[str, Member] = field(default_factory=dict)

    def join(self, seed: int, domain: str) -> None:
        self.members[domain] = joined(self.server, domain, self.folder, seed, **SETTINGS)

    def contribute(self, trunk: Trunk, *domains: str) -> None:
        for domain in domains:
            send(self.members[domain], written(self.folder / "part", *honest(self.server, self.members[domain], trunk)))

    def solve(self) -> int:
        return int(wait(self.operator, self.operator.solve_version(NewVersion())))

    def evaluate(self, number: int, **nll: tuple[float, float]) -> None:
        """Domain -> nats by which the version, and its oracle, are above the dense expert's 20, over ten tokens."""
        made = self.operator.version(number).lineage
        for domain, (version, oracle) in nll.items():
            experts = len(made.experts)
            sums = {
                "number": number,
                "domain": domain,
                "expert": made.experts[made.domains.index(domain)],
                "documents": 2,
                "context": 8,
                "stride": 4,
                "dense": {"nll": 20, "tokens": 10},
                "version": {"nll": 20 + version, "tokens": 10},
                "oracle": {"nll": 20 + oracle, "tokens": 10},
                "routed": [[10, *[0] * (experts - 1)]] * 2,
            }
            self.members[domain].client.evaluate(number, NewEvaluation.model_validate(sums))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with coordinator(folder / "home") as server, server.client() as operator:
        joining = {"law": 1, "art": 2}
        members = {domain: joined(server, domain, folder, seed, **SETTINGS) for domain, seed in joining.items()}
        made = House(server, operator, folder, merge(server), members)
        made.contribute(made.trunk, "law", "art")
        made.solve()
        made.join(3, "code")
        made.contribute(made.trunk, "code")
        made.solve()
        yield made
        for member in made.members.values():
            member.client.close()


def test_from_evaluations_comes_a_remerge_and_what_it_gained(house: House) -> None:
    """e^-0.1 is 0.9048, e^-0.2 0.8187, e^-0.3 0.7408 and e^-0.8 0.4493.

    With M = 90.48 and N = 44.93, a third of 45.55 less a third of 9.52 is 12.01. It goes from 69.56 to 81.87.
    """
    server, operator = house.server, house.operator
    told = operator.trunk_history("current").remerge
    assert told is not None
    assert (told.expected, told.missing, told.recommended) == (None, ["law", "art", "code"], False)
    with signed_in(server, server.operator_token) as browser:
        assert "expected of a remerge" not in browser.get("/versions").text
        assert "not evaluated: law, art, code" in browser.get("/trunks").text
    house.evaluate(1, law=(1, 1), art=(3, 1))
    house.evaluate(2, law=(2, 1), art=(2, 1), code=(8, 8))

    history = operator.trunk_history(house.trunk.digest)
    first, second = history.versions
    moved = {score.domain: (score.newcomer, score.moved) for score in second.scores}
    assert moved == {
        "law": (False, pytest.approx(-8.6106669)),
        "art": (False, pytest.approx(7.7912532)),
        "code": (True, None),
    }
    assert first.behind is None
    assert second.behind == pytest.approx(36.9401789)
    remerge = history.remerge
    assert remerge is not None
    assert remerge.expected == pytest.approx(12.0115292)
    assert remerge.fall == pytest.approx(3.1720861)
    assert (remerge.recommended, remerge.newcomers, remerge.version) == (True, ["code"], 2)

    token = operator.add_token(NewToken(role=Role.READER)).secret
    with server.client(token) as reader:
        assert reader.trunk_history("current") == history
    own = house.members["code"].client.trunk_history("current")
    assert [[score.domain for score in each.scores] for each in own.versions] == [[], ["code"]]
    assert [each.average for each in own.versions] == [each.average for each in history.versions]
    assert (own.versions[1].behind, own.remerge, own.before) == (None, None, None)

    shown = moerge("trunk", "history", **server.environment(), COLUMNS="160")
    for text in ("81.9 (-8.6)", "44.9, newcomer", "A remerge with code: expected +12.0", "members lose 3.2"):
        assert text in shown
    assert shown.splitlines()[-1] == "Recommended: moerge trunk remerge"
    assert json.loads(moerge("trunk", "history", "--json", **server.environment()))["remerge"]["recommended"]

    with signed_in(server, server.operator_token) as browser:
        page = browser.get("/versions").text
        assert "The trunk lacks code: expected of a remerge are +12.0 points" in page
        path = f"/trunks/{house.trunk.digest}/remerge"
        assert f'href="/dashboard{path}"' in page
        assert "Expected are +12.0 points" in browser.get(path).text
        assert act(browser, path).headers["Location"].endswith("said=started")
        eventually(lambda: operator.trunk("current").digest != house.trunk.digest)
        merged = operator.trunk("current")
        assert merged.experts == remerge.merge.experts
        assert "expected of a remerge" not in browser.get("/versions").text
        assert browser.get("/trunks/current/remerge").status_code == 404
    with pytest.raises(AssertionError, match="no newcomers"):
        moerge("trunk", "remerge", **server.environment())

    house.contribute(merged, "law", "art", "code")
    number = house.solve()
    house.evaluate(number, law=(2, 2), art=(2, 2), code=(2, 2))
    before = operator.trunk_history("current").before
    assert before is not None
    assert (before.expected, before.version, before.after) == (remerge.expected, 2, number)
    assert before.real == pytest.approx(12.3133930)
    assert "expected +12.0" in moerge("trunk", "history", **server.environment(), COLUMNS="160")
    with signed_in(server, server.operator_token) as browser:
        assert f"version 2 to {number}" in browser.get("/trunks").text


def test_the_command_merges_anew_what_is_not_evaluated_too(house: House) -> None:
    house.join(4, "film")
    trunk = house.operator.trunk("current")
    house.contribute(trunk, "film")
    house.solve()
    digest = moerge("trunk", "remerge", **house.server.environment())
    assert digest == house.operator.trunk("current").digest
    assert len(house.operator.trunk(digest).experts) == len(trunk.experts) + 1


def test_there_is_no_history_of_a_trunk_that_is_not_there(house: House) -> None:
    with pytest.raises(CoordinatorError, match="no trunk 0000"):
        house.operator.trunk_history("0" * 64)
