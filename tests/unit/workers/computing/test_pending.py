"""A contribution's bytes don't tell in which windows it was summed, nor how often the worker was killed."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import ByteSize

from moerge.documents.shards import enough
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.statistics import windows
from moerge.statistics.passes import HeadPass, Pass, RouterPass
from moerge.statistics.windows import Done, Window, computed
from moerge_proto.statistics_file import (
    MAX_SHARDS,
    HeadManifest,
    Manifest,
    RouterManifest,
    StatisticsFile,
    StatisticsSettings,
    TextBefore,
)
from moerge_workers.computing.finishing import Finishing
from moerge_workers.computing.pending import PendingStatistics
from moerge_workers.computing.plan import Plan, Planner, Size
from moerge_workers.data.documents import Data
from moerge_workers.outgoing.ledger import Ledger
from moerge_workers.policy import Policy
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines
from support.models import SMALL, expert, texts

LAYERS, HIDDEN, KINDS = SMALL["num_hidden_layers"], SMALL["hidden_size"], ["router", "head", "behind"]
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
ROUTER = RouterManifest(**BLANK, body="7" * 64, exponents=[16] * LAYERS)
BEFORE = TextBefore(tokens=16, piece=16)
BEHIND = RouterManifest(
    **BLANK | {"settings": StatisticsSettings(before=BEFORE)}, body="7" * 64, exponents=[12] * LAYERS
)
HEAD = HeadManifest(**BLANK, exponents=[16])

NEVER = [1e9]
SHARD_BYTES = 4 * HIDDEN * enough(HIDDEN)  # of hidden states, without padding


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

    Attributes:
        steps: every (layer, shards) that the last contribution computed.
        shown: what it told of its shards.
        said: all else that it told.
        then: what happens before the steps, and after a number of them.
    """

    def __init__(self, folder: Path) -> None:
        self.expert, self.data = expert(folder / "expert", 1), texts(folder / "texts.jsonl", 1, 180)
        self.whole: dict[str, bytes] = {}  # by kind, in one window, undisturbed
        self.then: dict[int, Callable[[], object]] = {}

    def compute(self, work: Pass, given: Iterable[Window]) -> Iterator[Done]:
        self.then.pop(0, int)()
        for done in computed(work, given, StatisticsSettings().batch_tokens, 1):
            self.steps.append((done.layer, frozenset(shard.name for shard in done.window.shards)))
            self.then.pop(len(self.steps), int)()
            if self._left == 0:
                raise _Killed  # before its sums are kept
            yield done
            if self._left == 0.5:
                raise _Killed  # before its hidden states are saved
            self._left -= 1

    def contribute(self, home: Path, kind: str, shards: int | None = None, kills: Iterable[float] = NEVER) -> bytes:
        """What a worker of this home sends, with so many shards in a window; b"" if it never ends.

        It is killed after so many steps each time; after half a step, its sums are kept, and its hidden states aren't.
        """
        self.steps: list[tuple[int, frozenset[str]]] = []
        self.said: list[str] = []
        self.shown: list[tuple[int, int]] = []
        positions = 2 if kind == "behind" else 1
        settings = Settings(
            coordinator="",
            token="",
            domain="law",
            expert=self.expert,
            data=[str(self.data)],
            home=self.data.parent,  # where the key is: of all homes the same
            journal_seconds=0,
            policy=Policy(min_documents=100),
            host_memory=None if shards is None else ByteSize(int(1.5 * positions * shards * SHARD_BYTES)),
        )
        own = DenseFiles(self.expert)
        works: dict[str, tuple[Manifest, Pass]] = {
            "head": (HEAD, HeadPass(own, HEAD.exponents)),
            "router": (ROUTER, RouterPass(own, own, ROUTER.exponents)),
            "behind": (BEHIND, RouterPass(own, own, BEHIND.exponents, before=BEFORE)),
        }
        blank, work = works[kind]
        data = Data(settings, DenseFiles(settings.expert), print)
        events = Seen(Status(home, "law", ""), Lines(), self)
        for self._left in kills:
            try:
                with closing(Ledger(home / "ledger.sqlite")) as ledger:
                    pending = PendingStatistics(settings, data, events, self.compute, blank, work, ledger)
                    whole = pending.complete()
                    assert whole is not None
                    whole.note()
                    assert journals(home) == []
                    return (home / whole.file.name).read_bytes()
            except _Killed:
                continue
        return b""


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    owner = Owner(tmp_path_factory.mktemp("owner"))
    for kind in KINDS:
        owner.whole[kind] = owner.contribute(owner.data.parent / kind, kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "SAVING_SHARE", 1e9)  # hidden states are saved after each layer
        yield owner


def journals(home: Path) -> list[str]:
    """The kinds of the journal's files, a layer's number before its sums."""
    return sorted(".".join(path.name.split(".")[1:]) for kind in ("part", "states") for path in home.glob(f"*.{kind}"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shards", [1, 2, None])
def test_the_bytes_are_the_same_whatever_the_windows(owner: Owner, tmp_path: Path, kind: str, shards: int) -> None:
    assert owner.contribute(tmp_path, kind, shards) == owner.whole[kind]
    result = {names for _, names in owner.steps}
    assert len(owner.steps) == LAYERS * len(result)
    every = frozenset[str]().union(*result)
    assert sum(map(len, result)) == len(every) >= 4
    assert max(map(len, result)) == (len(every) if shards is None else shards)
    assert owner.shown[0] == (0, len(every))
    assert owner.shown[-1] == (len(every), len(every))


@pytest.mark.parametrize("kind", KINDS)
@examples(max_examples=6, deadline=None)
@given(
    shards=st.sampled_from([1, 3, None]),
    kills=st.lists(st.integers(0, 8).map(lambda halves: halves / 2), max_size=4),
)
def test_law_4_killed_work_resumes_at_its_layer_and_window(
    owner: Owner, tmp_path_factory: pytest.TempPathFactory, kind: str, shards: int | None, kills: list[float]
) -> None:
    home = tmp_path_factory.mktemp("home")
    assert owner.contribute(home, kind, shards, [*kills, *NEVER]) == owner.whole[kind]
    if shards is not None:  # otherwise a window is all that is left, and the last one's layers may differ
        result = {names for _, names in owner.steps}
        assert len(owner.steps) <= LAYERS * len(result) + len(kills)


def test_kill_within_a_layer_repeats_only_that_layer(owner: Owner, tmp_path: Path) -> None:
    owner.contribute(tmp_path, "router", None, [1])
    for name in ("earlier-body-1.0123456789abcdef.states", ".earlier-body-1.0.part.01234567.tmp"):
        (tmp_path / name).write_bytes(b"of a killed run")
    assert journals(tmp_path)[0] == "0.part"
    assert journals(tmp_path)[1].endswith(".states")
    assert [layer for layer, _ in owner.steps] == [0, 1]
    assert owner.contribute(tmp_path, "router") == owner.whole["router"]
    assert [layer for layer, _ in owner.steps] == [1, 2]
    assert not [path.name for path in tmp_path.iterdir() if "earlier" in path.name]


def test_without_saved_hidden_states_no_sum_is_computed_again(owner: Owner, tmp_path: Path) -> None:
    owner.contribute(tmp_path, "router", None, [0.5])
    assert journals(tmp_path) == ["0.part"]
    assert owner.contribute(tmp_path, "router", 2) == owner.whole["router"]
    assert {layer for layer, _ in owner.steps} == {0, 1, 2}
    with StatisticsFile(next(tmp_path.glob("*.safetensors"))) as file:
        assert set(file.manifest.shards) == frozenset[str]().union(*(names for _, names in owner.steps))


def test_what_is_joined_is_not_joined_or_computed_again(owner: Owner, tmp_path: Path) -> None:
    """Killed after the whole file was written, and before it was noted and the journal removed."""
    owner.contribute(tmp_path / "a", "router")
    [whole] = (tmp_path / "a").glob("*.safetensors")
    owner.contribute(tmp_path / "b", "router", None, [2])
    (tmp_path / "b" / whole.name).write_bytes(whole.read_bytes())
    assert owner.contribute(tmp_path / "b", "router") == owner.whole["router"]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / whole.name).write_bytes(whole.read_bytes())
    assert owner.contribute(tmp_path / "c", "router") == owner.whole["router"]
    assert owner.steps == []


def test_head_bytes_stay_equal_if_data_changes_between_layers(owner: Owner, tmp_path: Path) -> None:
    before = owner.data.read_text()
    further = texts(tmp_path / "further.jsonl", 5, 240).read_text().splitlines(keepends=True)
    try:
        for home in ("straight", "other"):
            assert owner.contribute(tmp_path / home, "head") == owner.whole["head"]
        owner.data.write_text(before + "".join(further))
        owner.contribute(tmp_path / "other", "head", 1, [10])
        assert {"0.part", "1.part", "2.part"} < set(journals(tmp_path / "other"))
        owner.data.write_text(before + "".join(further[:200]))
        expected = owner.contribute(tmp_path / "straight", "head")
        assert owner.contribute(tmp_path / "other", "head", 2) == expected != owner.whole["head"]
        assert any("the data has changed" in text for text in owner.said)
    finally:
        owner.data.write_text(before)


def test_documents_removed_during_a_window_are_excluded(owner: Owner, tmp_path: Path) -> None:
    before, fewer = owner.data.read_text(), tmp_path / "fewer.jsonl"
    lines = before.splitlines(keepends=True)
    fewer.write_text("".join(lines[:50] + lines[70:]))
    try:
        owner.then[0] = lambda: fewer.rename(owner.data)  # whoever reads the old file reads it to its end
        result = owner.contribute(tmp_path / "a", "router", 1)
        assert any("documents were removed during the work" in text for text in owner.said)
        assert result == owner.contribute(tmp_path / "b", "router") != owner.whole["router"]
    finally:
        owner.data.write_text(before)


def test_too_many_shards_are_refused_before_computation(tmp_path: Path) -> None:
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
        router, head = (
            Planner(settings, Data(settings, DenseFiles(settings.expert), print), events, blank, ledger, Finishing())
            for blank in (ROUTER, HEAD)
        )
        plan = Plan(sizes, frozenset(["f" * 64]), replaces=False, differs=None)
        assert router.is_worth_sending(plan), "those that were sent are in another file"
        with pytest.raises(MoergeError, match="100,001 shards; the maximum of a contribution is 100,000"):
            head.is_worth_sending(plan)
