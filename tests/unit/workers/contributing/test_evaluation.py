"""The stage of the evaluations: when it looks for versions."""

from collections.abc import Iterator
from pathlib import Path

from moerge_proto.experts import Expert
from moerge_proto.versions import Version
from moerge_workers.contributing.evaluation import Evaluations
from support.stages import NOW, MemoryClient, context_of


class _Versions(MemoryClient):
    """A coordinator of retired versions, and the numbers after which it was asked for versions."""

    def __init__(self, weights: Path) -> None:
        super().__init__(weights)
        self.newest, self.asked = 1, list[int]()

    def versions(self, after: int = 0) -> Iterator[Version]:
        self.asked.append(after)
        return iter([Version.model_construct(number=n, retired=NOW) for n in range(after + 1, self.newest + 1)])

    def experts(self) -> Iterator[Expert]:
        return iter(())


def test_only_later_versions_are_asked_for_until_one_comes_or_a_minute_is_over(folder: Path, home: Path) -> None:
    client, seconds = _Versions(folder), [0.0]
    with context_of(folder, home, client) as context:
        evaluations = Evaluations(context, None, lambda: seconds[0])

        def asked_at(second: float) -> list[int]:
            client.asked.clear()
            seconds[0] = second
            evaluations.look()
            return client.asked

        assert asked_at(0) == [0, 0]
        assert asked_at(1) == []
        assert asked_at(6) == [1]
        client.newest = 3
        assert asked_at(12) == [1, 0]
        assert asked_at(18) == [3]
        assert asked_at(80) == [3, 0]
