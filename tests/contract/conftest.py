"""One coordinator for the whole contract, with a trunk; each test brings owners of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from moerge.cli import wait
from moerge.client import Client
from moerge.progress import LogProgress
from moerge_proto.experts import ExpertState
from moerge_proto.trunks import NewTrunk, Trunk
from support.contributions import Contributor, Party, contributor, join, register
from support.models import expert
from support.processes import Coordinator, coordinator

_NUMBERS = count(1)


@dataclass(frozen=True)
class House:
    """A running coordinator whose current trunk was merged from one expert, `first`."""

    coordinator: Coordinator
    operator: Client
    first: Path
    trunk: Trunk
    weights: Path

    @property
    def home(self) -> Path:
        return self.coordinator.home

    @property
    def url(self) -> str:
        return self.coordinator.url


def furnish(running: Coordinator, operator: Client, folder: Path) -> House:
    """Registers a first expert and merges the trunk."""
    first = expert(folder / "first", seed=1)
    founder = join(running, "founder")
    with founder.client:
        assert register(founder, first).state is ExpertState.READY
    wait(operator, operator.merge_trunk(NewTrunk()))
    trunk = operator.current_trunk()
    assert trunk is not None
    operator.download(f"/v1/trunks/{trunk.digest}/files", trunk.files, folder / "trunk", LogProgress(), title="trunk")
    return House(running, operator, first, trunk, folder / "trunk" / "trunk.safetensors")


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    with coordinator(folder / "home") as running, running.client() as operator:
        yield furnish(running, operator, folder)


@pytest.fixture
def newcomer(house: House) -> Iterator[Callable[..., Party]]:
    """Makes owners that no other test knows; the arguments are further domains."""
    with ExitStack() as stack:

        def make(*more_domains: str) -> Party:
            party = join(house.coordinator, f"owner-{next(_NUMBERS)}", *more_domains)
            stack.enter_context(party.client)
            return party

        yield make


@pytest.fixture(scope="session")
def settled(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contributor]:
    """One owner with a ready expert for tests that need no fresh one; each names shards of its own."""
    folder = expert(tmp_path_factory.mktemp("settled") / "expert", seed=2)
    party = join(house.coordinator, "settled")
    with party.client:
        yield contributor(party, folder, register(party, folder), house.trunk, house.weights)


@pytest.fixture
def ready(house: House, newcomer: Callable[..., Party], tmp_path: Path) -> Callable[[], Contributor]:
    """Makes owners with a ready expert and honest sums."""

    def make() -> Contributor:
        party, seed = newcomer(), next(_NUMBERS)
        folder = expert(tmp_path / f"expert-{seed}", seed=100 + seed)
        row = register(party, folder)
        assert row.state is ExpertState.READY
        return contributor(party, folder, row, house.trunk, house.weights, seed)

    return make
