"""An owner's worker fits its expert's MLPs to the trunk at home, sends them, and contributes with them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moerge.cli.common import wait
from moerge_proto.experts import Expert, ExpertState
from moerge_proto.versions import NewVersion
from moerge_workers import commands
from moerge_workers.leaving.history import History
from support.fleet import files_below, honest_trunk, joined, merge, registered, send_trunk
from support.house import House, house_of
from support.processes import coordinator
from support.statistics import written

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}
FIT = {"fit": True, "held_out_share": 0.3}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """law and art have experts, and a trunk is merged of them."""
    folder = tmp_path_factory.mktemp("fitting")
    with coordinator(folder / "home") as server:
        law, art = (joined(server, domain, folder, seed, **SMALL) for seed, domain in enumerate(("law", "art"), 1))
        art.client.close()
        merge(server)
        with house_of(server, law, folder) as made:
            made.write("a.jsonl", 0, 200)
            yield made


def fitted(house: House) -> list[Expert]:
    return [row for row in house.member.client.experts() if row.fitted is not None]


def folders(house: House) -> list[Path]:
    return list((house.home / "trunks").glob("*/fitted-*"))


@pytest.mark.slow
def test_from_the_plain_contribution_to_the_evaluated_version_with_fitted_mlps(house: House) -> None:
    assert house.run(held_out_share=0.3) == "ran"
    [plain] = house.active()
    before = files_below(house.server)

    assert house.run(**FIT, dry_run=True) == "ran"
    assert house.run(**FIT, policy={"mode": "ask"}) == "ran"
    assert files_below(house.server) == before
    [folder] = folders(house)
    with closing(History(house.home)) as history:
        [asked] = history.asked()
    assert (asked.kind, asked.trunk, asked.place) == ("expert", plain.trunk, str(folder))
    assert "fitted to trunk" in asked.about

    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    leftover = folder.with_name(f".{folder.name}.tmp")
    leftover.mkdir()
    assert house.run(**FIT) == "ran"  # as after a kill between fitting and sending
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == made
    [expert] = fitted(house)
    assert (expert.state, expert.trained) == (ExpertState.READY, registered(house.member).digest)
    [row] = house.active()
    assert (row.expert, row.documents) == (expert.digest, plain.documents)
    with closing(History(house.home)) as history:
        became = [(each.item.kind, each.became) for each in history.sendings()]
    assert became == [("router", "superseded"), ("expert", "arrived"), ("router", "arrived")]
    listed = CliRunner().invoke(commands.app, ["history", "--home", str(house.home)]).output
    assert "fitted to trunk" in " ".join(listed.split()), listed

    with house.server.client() as operator:
        number = int(wait(operator, operator.solve_version(NewVersion())))
        assert operator.version(number).lineage.experts == [expert.digest]
    policy = {"evaluation_sums": True, "redistribute": True, "min_documents": 20}
    assert house.run(**FIT, policy=policy) == "ran"
    with house.server.client() as operator:
        [evaluation] = operator.evaluations(number)
    assert evaluation.sums.expert == expert.trained
    assert len(house.active()) == 1  # nothing was sent anew

    said = house.run(held_out_share=0.3)
    assert f"its fitted expert {expert.digest} contributes under this trunk" in said
    house.member.client.withdraw_expert(expert.digest)
    assert house.run(held_out_share=0.3) == "ran"
    assert [each.digest for each in house.active()] == [plain.digest]
    assert house.run(**FIT) == "ran"
    assert "the fitted expert was withdrawn" in house.log()
    assert [each.digest for each in house.active()] == [plain.digest]

    send_trunk(house.member, written(house.folder / "trunk-contribution", *honest_trunk(house.member)))
    merge(house.server, [registered(house.member).digest], method="moerge")
    assert house.run(held_out_share=0.3) == "ran"
    assert "with --fit this domain would do better" in house.log()
