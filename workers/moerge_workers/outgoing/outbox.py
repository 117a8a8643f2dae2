"""The single exit for all data except progress: applies the policy, asks the owner, records sent items."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from rich.filesize import decimal

from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.statistics.describe import summary
from moerge_proto.contributions import Contribution
from moerge_proto.evaluations import Evaluation, NewEvaluation, Perplexity
from moerge_proto.experts import Expert
from moerge_proto.progress import Obstacle, Stage
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.outgoing import version_limit
from moerge_workers.outgoing.history import History, Item
from moerge_workers.outgoing.kinds import OUTGOING
from moerge_workers.outgoing.question import watching
from moerge_workers.policy import Kind
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

_ANSWER_SECONDS = 1.0  # between two looks for the owner's answer


@dataclass(frozen=True)
class Outbox:
    """Every item leaves within `sending`, after `may_leave` allowed it; `events` asks the owner."""

    settings: Settings
    history: History
    events: Events

    @property
    def say(self) -> Callable[[str], None]:
        return self.events.say

    def may_leave(self, item: Item, outdated: Callable[[], bool] = lambda: False) -> bool:
        """Tell whether an item may leave; in mode `ask`, waits for the owner's answer until the item is `outdated`.

        With `once` and without a terminal, doesn't wait. `outdated` is called in a thread, and may wait.
        """
        name, decision = f"{item.about} ({item.digest[:12]})", self.history.decision(item)
        if not self.settings.policy.allows(item.kind):
            self.say(f"the policy forbids sending: {name}")
            return False
        if decision == "refused":
            self.say(f"you refused to send: {name}; to approve it: {self._command('approve', item)}")
            self.events.hindered(Obstacle.OWNER_REFUSED)
            return False
        if self.settings.dry_run:
            self._show(item, "dry run, sending nothing; a run would send")
            return False
        if self.settings.policy.mode == "auto" or decision == "approved":
            return True
        return self._asked(item, outdated)

    def may_use(self, item: Item, outdated: Callable[[], bool] = lambda: False) -> bool:
        """Tell whether to use a version: it is within the budget, or the owner approved it.

        In mode `ask` the question about an evaluation covers the use of its version.
        """
        decision, covered = (
            self.history.decision(item),
            item.kind == "version-use" and self.settings.policy.mode == "ask",
        )
        if covered or version_limit.reveals(self.history, self.settings.policy, item) is None:
            return True
        if decision == "refused":
            self.say(f"you refused: {item.about}; to approve it: {self._command('approve', item)}")
            self.events.hindered(Obstacle.OWNER_REFUSED)
            return False
        if self.settings.dry_run:
            self.say(f"dry run; a run would first ask you about: {item.about}")
            return True
        return decision == "approved" or self._asked(item, outdated)

    def _asked(self, item: Item, outdated: Callable[[], bool]) -> bool:
        self.outdate(lambda other: other.place == item.place and other.digest != item.digest)
        if self.history.decision(item) != "asked":
            self.history.note(item, "asked")  # before the slow display, so that it overwrites no answer
        self._show(item, "may the worker compute this?" if item.is_use else "may the worker send this?")
        self.events.enter(Stage.WAITING)
        self.events.hindered(Obstacle.ASKS_OWNER)
        if self.history.decision(item) == "asked":
            verb = "Allow" if item.is_use else "Send"
            sent = self.events.view.ask(f"{verb} {item.about}, to {item.coordinator}?")
            if sent is not None:
                self.history.note(item, "approved" if sent else "refused")
        if self.history.decision(item) == "asked":
            self.say(f"waiting for your answer: {self._command('approve', item)} (or refuse)")
        decision = self.history.decision(item) if self.settings.once else self._answer(item, outdated)
        if decision != "asked" or not self.settings.once:
            self.events.hindered(Obstacle.OWNER_REFUSED if decision == "refused" else None)
        return decision == "approved"

    def _answer(self, item: Item, outdated: Callable[[], bool]) -> str | None:
        """The owner's decision, also from another process; "asked" if the item became outdated."""
        with watching(outdated) as is_outdated:
            while (decision := self.history.decision(item)) == "asked":
                if is_outdated():
                    self.history.note(item, "outdated")
                    break
                time.sleep(_ANSWER_SECONDS)
        return decision

    def outdate(self, which: Callable[[Item], bool]) -> None:
        """End the questions about outdated items."""
        for item in filter(which, self.history.asked()):
            self.history.note(item, "outdated")

    def _command(self, name: str, item: Item) -> str:
        return f"moerge worker {name} {item.digest[:12]} --home {quote(str(self.settings.home))}"

    def _show(self, item: Item, title: str) -> None:
        size = "for" if item.is_use else f"{decimal(item.bytes)}, to"
        self.say(f"{title}: {item.about}, {size} {item.coordinator}; see {item.place}")
        if not item.is_use:
            for part in OUTGOING[item.kind](Path(item.place)):
                self.events.view.show(part)
        if (danger := version_limit.reveals(self.history, self.settings.policy, item)) is not None:
            self.events.view.show(danger)

    @contextmanager
    def sending(self, item: Item, supersedes: Sequence[str] = ()) -> Iterator[None]:
        """Context for sending an item; records it before and after."""
        if self.settings.dry_run or not self.settings.policy.allows(item.kind):
            raise MoergeError("the policy or the dry run forbids sending", where=item.about)
        self.say(f"sending {item.about}, {decimal(item.bytes)}; a copy stays at {item.place}")
        self.history.note(item, "leaves")
        self.events.enter(Stage.SENDING)
        self.events.hindered(None)
        self.events.sent(self.history.sent())
        yield
        self.history.note(item, "arrived")
        for digest in supersedes:
            self._end(digest, "superseded")

    def settle(self, rows: Iterable[Contribution | Evaluation | Expert]) -> None:
        """Record changed states of items at the coordinator."""
        for row in rows:
            self._settle(row.digest, row)
            if isinstance(row, Expert) and row.adapter is not None:
                self._settle(row.adapter.weights, row)

    def _settle(self, digest: str, row: Contribution | Evaluation | Expert) -> None:
        item = self.history.item(digest, self.settings.coordinator)
        last = self.history.movement(item) if item is not None else None
        alive = row.withdrawn is None if isinstance(row, Expert) else row.active
        if item is not None and last == "leaves" and alive:
            self.history.note(item, "arrived")
        if item is not None and last == "arrived" and not alive:
            withdrawn = not isinstance(row, Evaluation) and row.withdrawn is not None
            self.history.note(item, "withdrawn" if withdrawn else "superseded")

    def withdrawn(self, digest: str) -> None:
        """Record that a contribution was withdrawn."""
        self._end(digest, "withdrawn")

    def _end(self, digest: str, how: Literal["superseded", "withdrawn"]) -> None:
        if (old := self.history.item(digest, self.settings.coordinator)) is not None:
            self.history.note(old, how)

    def contribution(self, path: Path, digest: str) -> Item:
        with StatisticsFile(path) as file:
            manifest = file.manifest
        if manifest.kind == "body":
            raise TypeError("body contributions don't leave")
        about = f"{manifest.domain}, {manifest.split}: {summary(manifest)}"
        size = path.stat().st_size
        return Item(digest, self.settings.coordinator, manifest.kind, about, size, manifest.under or "", str(path))

    def expert(self, digest: str, paths: Mapping[str, Path], name: str = "expert", body: str = "") -> Item:
        """An expert's files, or some of them, as an item; `name` says which, `body`: the one that parts are for."""
        size = sum(path.stat().st_size for path in paths.values())
        under = f" for body {body[:12]}" if body else ""
        files = f"{len(paths)} file{'s' if len(paths) > 1 else ''}"
        about = f"{self.settings.domain}: {name}{under}, {files}"
        folder = next(iter(paths.values())).parent
        return Item(digest, self.settings.coordinator, "expert", about, size, body, str(folder))

    def version_use(self, number: int, digest: str, body: str, path: Path) -> Item:
        """Evaluating a version, as an item; `path` and `digest` are the evaluation's."""
        sent = len(version_limit.versions(self.history))
        about = f"{self.settings.domain}: an evaluation of version {number}, after {sent} others in 30 days"
        return Item(digest, self.settings.coordinator, "version-use", about, 0, body, str(path))

    def evaluation(self, path: Path, body: str = "") -> Item:
        """Scores of a version as an item: sums under a `body`, or results on tasks."""
        new = NewEvaluation.model_validate_json(path.read_bytes())
        sums = next((score for score in new.scores if isinstance(score, Perplexity)), None)
        kind: Kind
        if sums is None:
            kind, what = "task", f"{len(new.scores)} result{'s' * (len(new.scores) > 1)} on tasks"
        else:
            kind, what = "evaluation", f"sums over {sums.version.tokens:,} tokens of {sums.documents:,} documents"
        about = f"{self.settings.domain}: evaluation of version {new.number}, {what}"
        return Item(new.digest, self.settings.coordinator, kind, about, path.stat().st_size, body, str(path))


def require_unchanged(item: Item) -> None:
    """Require that the file is unchanged since the question to the owner.

    Raises:
        MoergeError: it has changed or is missing.
    """
    path = Path(item.place)
    if item.is_use or item.kind == "expert":  # an expert has several files
        return
    if not (path.is_file() and file_sha256(path) == item.digest):
        todo = "run the worker again; it asks about the current file"
        raise MoergeError("the file has changed since the worker asked about it", where=item.place, todo=todo)
