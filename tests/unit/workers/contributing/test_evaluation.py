"""The stage of the evaluations: when it looks for versions."""

from pathlib import Path

import pytest

from moerge.client.http import Pages
from moerge.errors import CoordinatorError
from moerge.memory.machine import Free
from moerge_proto.bodies import Body
from moerge_proto.evaluations import Evaluation
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.public_log import LogHead, extended, version_content
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import Lineage, Version
from moerge_workers.computing.held_out import NotNowError
from moerge_workers.contributing import evaluation
from moerge_workers.contributing.evaluation import Evaluations
from support.stages import Listed, MemoryClient, run_of


class _Versions(MemoryClient):
    """A coordinator of versions under a body that it refuses; `asked`: the numbers of those that it was asked for."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked = list[int]()

    def version(self, number: int | str) -> Version:
        self.asked.append(int(number))
        return Version.model_construct(number=int(number), lineage=Lineage.model_construct(body="7" * 64), files=[])

    def log_head(self) -> LogHead:
        for number in self.asked:
            self.publish("version", str(number), version_content([]))
        return extended(LogHead(), self.entries)

    def evaluations(self, number: int | str, *, replaced: bool = False) -> Pages[Evaluation]:
        return Listed([])

    def body(self, digest: str) -> Body:
        raise CoordinatorError(Problem.of(ProblemType.GONE, "retired"))


def test_version_that_failed_is_tried_again_after_an_hour(folder: Path, home: Path) -> None:
    client, seconds = _Versions(), [0.0]
    with run_of(folder, home, client) as run:
        evaluations = Evaluations(run.exchange, run.documents, run.expert, lambda: seconds[0])

        def asked_at(second: float, number: int | None) -> list[int]:
            client.asked.clear()
            seconds[0] = second
            evaluations.look(number)
            return client.asked

        assert asked_at(0, None) == []
        assert asked_at(0, 1) == [1]
        assert asked_at(3599, 1) == []
        assert asked_at(3599, 2) == [2]
        assert asked_at(3600, 1) == [1]


def test_version_requires_disk_space_and_memory_for_two_layers(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lineage = Lineage.model_construct(experts=["1" * 64] * 2, options=SolveOptions(top_k=1))
    with run_of(folder, home, _Versions()) as run:

        def require_room(size: int) -> None:
            version = Version.model_construct(lineage=lineage, bytes_total=size)
            evaluation._require_room(run.documents.settings, run.expert, version)

        require_room(1)
        with pytest.raises(NotNowError, match="are free at"):
            require_room(2**60)
        monkeypatch.setattr(evaluation, "free_for", lambda device: Free(2**20, None))
        with pytest.raises(NotNowError, match=r"^not enough memory; scoring needs .*\(two layers .* has 1\.0 MB"):
            require_room(1)


def test_version_waits_for_the_owner_s_copy_of_the_seed(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    lineage = Lineage.model_construct(body=body.digest)
    with run_of(folder, home, client, seed=None) as run:
        run.exchange.demands()
        evaluations = Evaluations(run.exchange, run.documents, run.expert)
        with pytest.raises(NotNowError, match="your own copy of the seed isn't set"):
            evaluations._checked_body(Version.model_construct(lineage=lineage))
