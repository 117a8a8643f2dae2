"""An owner's worker fits its expert's MLPs to the body at home, sends its parts, and contributes with them."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from typer.testing import CliRunner

from moerge.cli.common import wait
from moerge_proto.evaluations import Perplexity
from moerge_proto.experts import Expert, ExpertState
from moerge_proto.versions import NewVersion
from moerge_workers import commands
from moerge_workers.outgoing.history import History
from support.federation import federation_of, files_below
from support.models import expert
from support.worker import Worker, worker_of

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}
FIT = {"fit": True, "held_out_share": 0.3}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """law's, whose expert isn't registered yet."""
    with federation_of(tmp_path_factory.mktemp("fitting"), "art", **SMALL) as made:
        law = made.join("law", expert(made.folder / "law", 1, **SMALL))
        with worker_of(made.server, law, made.folder, made.seed) as worker:
            worker.write("a.jsonl", 0, 200)
            yield worker


@pytest.mark.slow
def test_fitted_parts_wait_for_the_owner_leave_once_and_join_again_only_if_asked(worker: Worker) -> None:
    before = files_below(worker.server)
    assert worker.run(**FIT, dry_run=True) == "ran"
    assert worker.run(**FIT, policy={"mode": "ask"}) == "ran"
    assert files_below(worker.server) == before
    [folder] = (worker.home / "parts").glob("*/fitted-*")
    with closing(History(worker.home)) as history:
        [asked] = history.asked()
    assert (asked.kind, asked.body, asked.place) == ("expert", folder.parent.name, str(folder))
    assert "parts with fitted MLPs for body" in asked.about

    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    leftover = folder.with_name(f".{folder.name}.tmp")
    leftover.mkdir()
    assert worker.run(**FIT) == "ran"  # as after a kill between fitting and sending
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == made
    expert = _registered(worker)
    assert (expert.state, expert.parts.expert) == (ExpertState.READY, worker.member.dense)
    [row] = worker.active()
    assert row.expert == expert.digest
    with closing(History(worker.home)) as history:
        became = [(sending.item.kind, sending.became) for sending in history.sendings()]
    assert became == [
        ("expert", "arrived"),  # config and tokenizer
        ("expert", "arrived"),
        ("head", "arrived"),
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
    assert isinstance(evaluation.score, Perplexity)
    assert evaluation.score.expert == worker.member.dense
    assert worker.active() == [row], "nothing was sent anew"
    assert worker.run(held_out_share=0.3) == "ran"
    assert worker.active() == [row], "parts that were made before stay"

    worker.member.client.withdraw_expert(expert.digest)
    assert "was withdrawn" in worker.run(**FIT)
    assert worker.active() == []
    assert worker.run(**FIT, rejoin=True) == "ran"
    assert _registered(worker).state is ExpertState.READY
    assert [item.digest for item in worker.active()] == [row.digest]


def _registered(worker: Worker) -> Expert:
    [expert] = [row for row in worker.member.client.experts() if row.domain == "law"]
    return expert
