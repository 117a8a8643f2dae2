"""A contribution's bytes don't tell in how many layer groups it was summed, nor how often the worker was killed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from moerge.documents.shards import Shard
from moerge.errors import MoergeError
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.statistics_file import MAX_SHARDS, RouterManifest, StatisticsFile, StatisticsSettings, TrunkManifest
from moerge_workers.computing.actors import Slot
from moerge_workers.computing.pending import PendingStatistics
from moerge_workers.computing.plan import Plan, Planner, Size
from moerge_workers.data.splits import Data
from moerge_workers.leaving.ledger import Ledger
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines
from support.models import SMALL, VOCAB, expert, texts

LAYERS, HIDDEN, KINDS = SMALL["num_hidden_layers"], SMALL["hidden_size"], ["router", "trunk"]
BLANK: dict[str, Any] = {
    "owner": "owner",
    "expert": "e" * 64,
    "domain": "law",
    "settings": StatisticsSettings(),
    "hidden_size": HIDDEN,
    "layers": LAYERS,
    "tokens": 1,
    "documents": 1,
    "shards": ["0" * 64],
}
ROUTER = RouterManifest(**BLANK, trunk="7" * 64, exponents=[16] * LAYERS)
TRUNK = TrunkManifest(**BLANK, exponents=[16] * (2 * LAYERS + 1), attention_size=HIDDEN, vocab_size=VOCAB, rare_below=0)


class _Killed(BaseException):
    """Stands for SIGKILL: nothing but files is left."""


class Seen(Events):
    """Keeps what it is told."""

    def __init__(self, status: Status, view: Lines, owner: "Owner") -> None:
        super().__init__(status, view)
        self._owner = owner

    def say(self, text: str) -> None:
        super().say(text)
        self._owner.said.append(text)

    def shards(self, done: int, total: int, tokens_left: int) -> None:
        super().shards(done, total, tokens_left)
        self._owner.shown.append((done, total))


class Owner:
    """An expert and data, and Ray's actor in this process.

    `computed` is every (layers, shard) of the last contribution, `shown` what it told of its shards, `said` all else.
    """

    def __init__(self, folder: Path) -> None:
        self.expert, self.data = expert(folder / "expert", 1), texts(folder / "texts.jsonl", 1, 180)
        self.whole: dict[str, bytes] = {}  # by kind, in one group, undisturbed
        self.then: dict[int, Callable[[], object]] = {}  # what happens once so many shards are computed
        self._loaded: dict[str, Slot] = {}

    def compute(self, work: RouterPass | TrunkPass, shards: Iterable[Shard]) -> Iterator[tuple[Shard, ShardSums]]:
        slot = self._loaded.get(repr(work)) or Slot(work, StatisticsSettings().batch_tokens)
        self._loaded[repr(work)] = slot
        for shard in shards:
            if self._left == 0:
                raise _Killed
            self._left -= 1
            self.then.pop(len(self.computed), int)()
            self.computed.append((work.layers, shard.name))
            yield shard, slot.sums(shard)

    def contribute(self, home: Path, kind: str, groups: int | None, kills: Iterable[int]) -> bytes:
        """What a worker of this home sends, which is killed after so many shards each time; b"" if it never ends."""
        self.computed: list[tuple[range | None, str]] = []
        self.said: list[str] = []
        self.shown: list[tuple[int, int]] = []
        settings = Settings(
            coordinator="",
            token="",
            domain="law",
            expert=self.expert,
            data=[str(self.data)],
            home=self.data.parent,  # where the key is: of all homes the same
            journal_seconds=0,
            layer_groups=groups,
        )
        trunk, router = TrunkPass(self.expert, TRUNK.exponents), RouterPass(self.expert, self.expert, ROUTER.exponents)
        blank, work = (TRUNK, trunk) if kind == "trunk" else (ROUTER, router)
        data = Data(settings, print)
        events = Seen(Status(home, "law", ""), Lines(), self)
        for self._left in kills:
            try:
                with closing(Ledger(home / "ledger.sqlite")) as ledger:
                    pending = PendingStatistics(settings, data, events, self.compute, blank, work, ledger)
                    whole = pending.complete()
                    assert whole is not None
                    whole.note()
                    return (home / whole.file.name).read_bytes()
            except _Killed:
                continue
        return b""


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Owner:
    owner = Owner(tmp_path_factory.mktemp("owner"))
    for kind in KINDS:
        owner.whole[kind] = owner.contribute(owner.data.parent / kind, kind, 1, NEVER)
    return owner


NEVER = [10**9]


def parts(home: Path) -> list[str]:
    return sorted(path.suffixes[0][1:] for path in home.glob("*.part"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [2, LAYERS, None])
def test_the_bytes_are_the_same_whatever_the_groups(owner: Owner, tmp_path: Path, kind: str, groups: int) -> None:
    assert owner.contribute(tmp_path, kind, groups, NEVER) == owner.whole[kind]
    assert len(owner.computed) == len(set(owner.computed)) == len(owner.shown) - (groups or 1)
    assert owner.shown[-1] == (len(owner.computed), len(owner.computed))
    assert {layers for layers, _ in owner.computed} == {
        2: {range(1), range(1, 3)},
        LAYERS: {range(1), range(1, 2), range(2, 3)},
        None: {None},
    }[groups]
    assert parts(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
@examples(max_examples=12, deadline=None)
@given(groups=st.integers(1, LAYERS), kills=st.lists(st.integers(0, 5), max_size=4))
def test_law_4_killed_within_and_between_groups_nothing_is_computed_twice(
    owner: Owner, tmp_path_factory: pytest.TempPathFactory, kind: str, groups: int, kills: list[int]
) -> None:
    home = tmp_path_factory.mktemp("home")
    assert owner.contribute(home, kind, groups, [*kills, *NEVER]) == owner.whole[kind]
    assert len(owner.computed) == len(set(owner.computed))


def test_a_journal_of_a_group_names_its_shards_and_is_no_contribution(owner: Owner, tmp_path: Path) -> None:
    owner.contribute(tmp_path, "trunk", 2, [6])
    first, second = sorted(tmp_path.glob("*.part"))
    with StatisticsFile(first, range(1)) as one, StatisticsFile(second, range(1, 3)) as two:
        assert set(two.manifest.shards) == {shard for layers, shard in owner.computed if layers == range(1, 3)}
        assert set(two.manifest.shards) < set(one.manifest.shards)
        assert "token_counts" not in dict(one.manifest.part(range(1)))
    with pytest.raises(ValueError, match="not in canonical form"):
        StatisticsFile(first)


def test_other_groups_discard_the_journals_and_say_so_and_without_a_wish_those_begun_go_on(
    owner: Owner, tmp_path: Path
) -> None:
    owner.contribute(tmp_path, "router", 1, [2])
    owner.contribute(tmp_path, "router", LAYERS, [6])
    assert [text for text in owner.said if "its layer groups differ" in text]
    assert list(tmp_path.glob("*.safetensors")) == []
    assert parts(tmp_path) == ["1-of-3", "2-of-3"]
    begun = set(owner.computed)
    owner.contribute(tmp_path, "router", None, [1])
    assert begun.isdisjoint(owner.computed)
    owner.contribute(tmp_path, "router", 2, [1])
    assert len([text for text in owner.said if "its layer groups differ" in text]) == 2
    assert parts(tmp_path) == ["1-of-2"]
    assert owner.contribute(tmp_path, "router", 1, NEVER) == owner.whole["router"]
    assert len(owner.computed) == len({shard for _, shard in owner.computed})


def test_what_is_joined_is_not_joined_or_computed_again(owner: Owner, tmp_path: Path) -> None:
    """Killed after the whole file was written, and before it was noted and the journals removed."""
    owner.contribute(tmp_path / "a", "router", 2, NEVER)
    [whole] = (tmp_path / "a").glob("*.safetensors")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / whole.name).write_bytes(whole.read_bytes())
    (tmp_path / "b" / f"{whole.stem}.1-of-2.part").write_bytes(b"a journal")
    assert owner.contribute(tmp_path / "b", "router", 3, NEVER) == owner.whole["router"]
    assert owner.computed == []
    assert parts(tmp_path / "b") == []


def test_a_trunk_contribution_that_grows_while_the_data_changes_between_groups_has_the_same_bytes(
    owner: Owner, tmp_path: Path
) -> None:
    before = owner.data.read_text()
    further = texts(tmp_path / "further.jsonl", 5, 240).read_text().splitlines(keepends=True)
    try:
        for home in ("straight", "other"):
            assert owner.contribute(tmp_path / home, "trunk", None, NEVER) == owner.whole["trunk"]
        owner.data.write_text(before + "".join(further))
        owner.contribute(tmp_path / "other", "trunk", 2, [8])
        assert parts(tmp_path / "other") == ["1-of-2", "2-of-2"]
        owner.data.write_text(before + "".join(further[:200]))
        expected = owner.contribute(tmp_path / "straight", "trunk", 1, NEVER)
        assert owner.contribute(tmp_path / "other", "trunk", 2, NEVER) == expected != owner.whole["trunk"]
        assert any("the data has changed" in text for text in owner.said)
    finally:
        owner.data.write_text(before)


def test_documents_that_go_while_a_group_is_computed_are_in_none(owner: Owner, tmp_path: Path) -> None:
    before, fewer = owner.data.read_text(), tmp_path / "fewer.jsonl"
    lines = before.splitlines(keepends=True)
    fewer.write_text("".join(lines[:50] + lines[70:]))
    try:
        owner.then[2] = lambda: fewer.rename(owner.data)  # whoever reads the old file reads it to its end
        found = owner.contribute(tmp_path / "a", "router", 2, NEVER)
        assert any("documents were removed during the work" in text for text in owner.said)
        assert found == owner.contribute(tmp_path / "b", "router", 1, NEVER) != owner.whole["router"]
    finally:
        owner.data.write_text(before)


def test_more_shards_than_a_contribution_holds_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    settings = Settings(
        coordinator="",
        token="",
        domain="law",
        expert=expert(tmp_path / "expert", 1),
        data=[str(texts(tmp_path / "texts.jsonl", 1, 9))],
        home=tmp_path,
    )
    sizes = {f"{number:064x}": Size(1, 2048) for number in range(MAX_SHARDS)}
    events = Events(Status(tmp_path, "law", ""), Lines())
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        router, trunk = (Planner(settings, Data(settings, print), events, blank, ledger) for blank in (ROUTER, TRUNK))
        plan = Plan(sizes, frozenset(["f" * 64]), replaces=False, differs=None)
        assert router.is_worth_sending(plan), "those that were sent are in another file"
        with pytest.raises(MoergeError, match="100,001 shards; the maximum of a contribution is 100,000"):
            trunk.is_worth_sending(plan)
