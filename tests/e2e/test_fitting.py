"""An owner's worker fits its expert's MLPs to a merged body at home, sends its parts, and contributes with them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moerge.cli.common import wait
from moerge_proto.experts import Expert, ExpertState
from moerge_proto.versions import NewVersion
from moerge_workers import commands
from moerge_workers.leaving.history import History
from support.federation import federation_of, files_below, registered
from support.worker import Worker, worker_of

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}
FIT = {"fit": True, "held_out_share": 0.3}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """law and art have experts, and a body is merged of them."""
    with federation_of(tmp_path_factory.mktemp("fitting"), "law", "art", **SMALL) as made:
        made.merge()
        with worker_of(made.server, made.members["law"], made.folder) as worker:
            worker.write("a.jsonl", 0, 200)
            yield worker


def fitted(worker: Worker) -> list[Expert]:
    return [row for row in worker.member.client.experts() if row.parts is not None]


def folders(worker: Worker) -> list[Path]:
    return list((worker.home / "parts").glob("*/fitted-*"))


@pytest.mark.slow
def test_plain_contribution_leads_to_version_with_fitted_mlps(worker: Worker) -> None:
    assert worker.run(held_out_share=0.3) == "ran"
    [plain] = worker.active()
    before = files_below(worker.server)

    assert worker.run(**FIT, dry_run=True) == "ran"
    assert worker.run(**FIT, policy={"mode": "ask"}) == "ran"
    assert files_below(worker.server) == before
    [folder] = folders(worker)
    with closing(History(worker.home)) as history:
        [asked] = history.asked()
    assert (asked.kind, asked.body, asked.place) == ("expert", plain.body, str(folder))
    assert "parts with fitted MLPs for body" in asked.about

    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    leftover = folder.with_name(f".{folder.name}.tmp")
    leftover.mkdir()
    assert worker.run(**FIT) == "ran"  # as after a kill between fitting and sending
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == made
    [expert] = fitted(worker)
    assert (expert.state, expert.dense) == (ExpertState.READY, registered(worker.member).digest)
    [row] = worker.active()
    assert (row.expert, row.documents) == (expert.digest, plain.documents)
    with closing(History(worker.home)) as history:
        became = [(sending.item.kind, sending.became) for sending in history.sendings()]
    assert [item for item in became if item[0] != "head"] == [
        ("router", "superseded"),
        ("expert", "arrived"),  # config and tokenizer
        ("expert", "arrived"),
        ("router", "arrived"),
    ]
    listed = CliRunner().invoke(commands.app, ["history", "--home", str(worker.home)]).output
    assert "parts with fitted MLPs" in " ".join(listed.split()), listed

    with worker.server.client() as operator:
        number = int(wait(operator, operator.solve_version(NewVersion(partial=True))))
        assert operator.version(number).lineage.experts == [expert.digest]
    policy = {"evaluation_sums": True, "redistribute": True, "min_documents": 20}
    assert worker.run(**FIT, policy=policy) == "ran"
    with worker.server.client() as operator:
        [evaluation] = operator.evaluations(number)
    assert evaluation.sums.expert == expert.dense
    assert len(worker.active()) == 1  # nothing was sent anew

    assert worker.run(held_out_share=0.3) == "ran"  # parts that were made before stay
    said = worker.run(held_out_share=0.3, fit=False)
    assert f"the expert's parts {expert.digest}, with other MLPs, contribute under this body" in said
    worker.member.client.withdraw_expert(expert.digest)
    assert worker.run(held_out_share=0.3, fit=False) == "ran"
    assert [item.digest for item in worker.active()] == [plain.digest]
    assert worker.run(**FIT) == "ran"
    assert "the fitted MLPs were withdrawn" in worker.log()
    assert [item.digest for item in worker.active()] == [plain.digest]
