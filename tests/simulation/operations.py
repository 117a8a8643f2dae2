"""Operations drawn by Hypothesis, applied to a world and to the model."""

import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import add
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.client.pull import pull
from moerge.errors import CoordinatorError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import expert_files
from moerge.progress import LogProgress
from moerge_proto.bodies import NewBody
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.experts import ExpertState, NewExpert
from moerge_proto.options import SolveOptions
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.statistics_file import RouterManifest, StatisticsSettings
from moerge_proto.uploads import Upload
from moerge_proto.versions import NewVersion
from simulation.faults import Fault
from simulation.model import SHARDS, Model, Part
from simulation.world import World
from support.models import expert
from support.statistics import LAYERS, honest_shards, written
from support.uploads import announced

DOMAINS = ("law", "art", "code")
HIDDEN = 16
SMALL = {"hidden_size": HIDDEN, "intermediate_size": 16, "num_hidden_layers": LAYERS}
Kind = Literal[
    "join", "merge", "contribute", "supersede", "stale", "together", "withdraw", "withdraw_part", "purge", "solve",
    "promote", "roll_back", "retire", "pull", "abandon", "jump", "restart",
]  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """An operation; `which` and `other` choose its objects."""

    kind: Kind
    which: int = 0
    other: int = 0
    fault: Fault | None = None


def faults(kinds: tuple[str, ...], most: int) -> st.SearchStrategy[Fault | None]:
    return st.none() | st.builds(Fault, kind=st.sampled_from(kinds), at=st.integers(1, most))


def schedules(fault: st.SearchStrategy[Fault | None]) -> st.SearchStrategy[list[Operation]]:
    """Up to thirty operations, usually with those that a version needs at the start."""
    often: tuple[Kind, ...] = ("contribute", "contribute", "solve", "solve", "promote", "withdraw", "join", "merge")
    every: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
    small = st.integers(0, 5)
    anything = st.builds(Operation, kind=st.sampled_from(often + every), which=small, other=small, fault=fault)
    joins = [st.builds(Operation, kind=st.just("join"), which=st.just(n), fault=fault) for n in range(2)]
    merge = st.builds(Operation, kind=st.just("merge"), fault=fault)
    parts = [st.builds(Operation, kind=st.just("contribute"), which=st.just(n), fault=fault) for n in range(2)]
    solve = st.builds(Operation, kind=st.just("solve"), fault=fault)
    opening = st.tuples(*joins, merge, *parts, solve).map(list)
    rest = st.sampled_from([1, 4, 10]).flatmap(lambda least: st.lists(anything, min_size=least, max_size=24))
    return st.tuples(st.just([]) | opening, rest).map(lambda two: two[0] + two[1])


@cache
def experts() -> dict[str, Path]:
    folder = Path(tempfile.mkdtemp(prefix="moerge-simulation-"))
    return {domain: expert(folder / domain, seed, **SMALL) for seed, domain in enumerate(DOMAINS, start=1)}  # type: ignore[arg-type]


@cache
def sums(domain: str, variant: int) -> Any:
    """Sums over the variant's shards: a shard is the same in all of its variants."""
    shards = honest_shards(HIDDEN, 1024, 4, HIDDEN, DOMAINS.index(domain))
    return reduce(add, [shards[n] for n in sorted(SHARDS[variant])])


@dataclass
class Run:
    """One schedule on one world, compared with the model."""

    world: World
    folder: Path
    model: Model = field(default_factory=Model)
    digests: dict[str, str] = field(default_factory=dict)
    body_digests: dict[Any, str] = field(default_factory=dict)
    part_digests: dict[Part, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    abandoned: int = 0

    def do(self, operation: Operation) -> None:
        """Applies one operation, and compares its result with the model's."""
        getattr(self, operation.kind)(operation)

    # --- how an operation is tried

    def _as(self, domain: str | None) -> Client:
        return self.world.client(self.tokens[domain] if domain else self.world.operator_token)

    def _attempt(self, operation: Operation, domain: str | None, call: Callable[[Client], str]) -> str:
        """The call's answer, or the problem that refuses it. After a full disk it is repeated, as by a user."""

        def attempt() -> str:
            with self._as(domain) as client:
                try:
                    return call(client)
                except CoordinatorError as error:
                    return error.type.removeprefix("urn:moerge:problem:")

        answer: str = self.world.apply(operation.fault, attempt)
        if answer == "storage-full":
            assert operation.fault is not None
            assert operation.fault.kind == "full", f"{operation}: its disk is not full"
            answer = self.world.apply(None, attempt)
        return answer

    def _expect(self, operation: Operation, answer: str, expected: str) -> None:
        assert answer == expected, f"{operation}: the coordinator says {answer}, the model {expected}"

    # --- experts

    def _domain(self, operation: Operation) -> str:
        return DOMAINS[operation.which % len(DOMAINS)]

    def join(self, operation: Operation) -> None:
        domain = self._domain(operation)

        def add_owner(client: Client) -> str:
            client.add_owner(NewOwner(name=f"{domain}-owner", domains=[domain]))
            return client.add_token(NewToken(role=Role.OWNER, owner=f"{domain}-owner")).secret

        if domain not in self.tokens:
            with self._as(None) as client:
                self.tokens[domain] = add_owner(client)

        def register(client: Client) -> str:
            paths = expert_files(DenseFiles(experts()[domain]))
            files = {name: client.upload(path, SILENT, title=name).sha256 for name, path in paths.items()}
            made = client.register_expert(NewExpert(domain=domain, files=files))
            self.digests[domain] = made.digest
            while made.state is ExpertState.RECEIVED:
                made = client.expert(made.digest)
            return made.state.value

        self._expect(operation, self._attempt(operation, domain, register), self.model.join(domain))

    def withdraw(self, operation: Operation) -> None:
        domain = self._domain(operation)
        if domain not in self.digests:
            return
        serve = operation.other != 5

        def withdraw(client: Client) -> str:
            done = client.withdraw_expert(self.digests[domain], serve=serve)
            with self._as(None) as operator:
                if done.remerge is not None:
                    wait(operator, done.remerge)
            return done.expert.state.value

        self._expect(operation, self._attempt(operation, domain, withdraw), self.model.withdraw(domain, serve=serve))
        self._await_remerge()

    def _await_remerge(self) -> None:
        """Waits for the current body, because the lost answer may have had the workflow's name."""
        if self.model.body is None or self.model.body in self.model.retired:
            return
        with self._as(None) as client:
            while (body := client.current_body()) is None or self._domains(body.experts) != self.model.body:
                threading.Event().wait(0.02)

    def purge(self, operation: Operation) -> None:
        domain = self._domain(operation)
        if domain not in self.digests:
            return
        retire = operation.other % 2 == 1
        expected = self.model.purge(domain, retire=retire)

        def purge(client: Client) -> str:
            client.purge_expert(self.digests[domain], retire=retire)
            return "purged"

        self._expect(operation, self._attempt(operation, None, purge), expected)

    # --- bodies and contributions

    def merge(self, operation: Operation) -> None:
        def merge(client: Client) -> str:
            wait(client, client.merge_body(NewBody()))
            return "merged"

        self._expect(operation, self._attempt(operation, None, merge), self.model.merge())

    def _file(self, part: Part) -> Path:
        path = self.folder / f"{part.domain}-{part.variant}-{len(part.body)}"
        if part.body not in self.body_digests:
            with self._as(None) as client:
                for row in client.bodies():
                    self.body_digests[self._domains(row.experts)] = row.digest
        content = sums(part.domain, part.variant)
        manifest = RouterManifest(
            owner=f"{part.domain}-owner",
            expert=self.digests[part.domain],
            domain=part.domain,
            body=self.body_digests[part.body],
            settings=StatisticsSettings(),
            hidden_size=HIDDEN,
            layers=LAYERS,
            exponents=[16] * LAYERS,
            tokens=content.tokens,
            documents=content.documents,
            shards=sorted(sha256_hex(f"{part.domain} {n}".encode()) for n in SHARDS[part.variant]),
        )
        written(path, manifest, content)
        self.part_digests[part] = sha256_hex(path.read_bytes())
        return path

    def _domains(self, digests: list[str]) -> tuple[str, ...]:
        names = {digest: domain for domain, digest in self.digests.items()}
        return tuple(names[digest] for digest in digests)

    def _part(self, operation: Operation) -> Part | None:
        domain = self._domain(operation)
        if self.model.body is None or domain not in self.digests:
            return None
        return Part(self.model.body, domain, operation.other % len(SHARDS))

    def _send(self, part: Part, supersedes: int | None = None) -> Callable[[Client], str]:
        path = self._file(part)
        old = None if supersedes is None else part._replace(variant=supersedes)
        if old is not None and old not in self.part_digests:
            self._file(old)

        def send(client: Client) -> str:
            stored = client.upload(path, SILENT, title="contribution", compress=True)
            named = [] if old is None else [self.part_digests[old]]
            made = client.contribute(NewContribution(sha256=stored.sha256, supersedes=named))
            return "active" if made.active else "superseded"

        return send

    def contribute(self, operation: Operation) -> None:
        part = self._part(operation)
        if part is not None:
            answer = self._attempt(operation, part.domain, self._send(part))
            self._expect(operation, answer, self.model.contribute(part))

    def supersede(self, operation: Operation) -> None:
        part = self._part(operation)
        if part is not None:
            old = (part.variant + 1) % len(SHARDS)
            answer = self._attempt(operation, part.domain, self._send(part, old))
            self._expect(operation, answer, self.model.contribute(part, old))

    def stale(self, operation: Operation) -> None:
        """A contribution under a body that is not the current one."""
        part = self._part(operation)
        others = sorted(self.model.bodies - {self.model.body})
        if part is not None and others:
            part = part._replace(body=others[operation.other % len(others)])
            answer = self._attempt(operation, part.domain, self._send(part))
            self._expect(operation, answer, self.model.contribute(part))

    def together(self, operation: Operation) -> None:
        """Two owners at once; their order makes no difference."""
        parts = [self._part(operation), self._part(Operation("contribute", operation.which + 1, operation.other))]
        result = [part for part in parts if part is not None]
        sends = [(part, self._send(part)) for part in result]

        def both(client: Client) -> str:
            answers: dict[str, str] = {}

            def one(part: Part, send: Callable[[Client], str]) -> None:
                with self._as(part.domain) as own:
                    try:
                        answers[part.domain] = send(own)
                    except CoordinatorError as error:
                        answers[part.domain] = error.type.removeprefix("urn:moerge:problem:")

            threads = [threading.Thread(target=one, args=item) for item in sends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if "storage-full" in answers.values():
                return "storage-full"
            return " ".join(answers[part.domain] for part in result)

        expected = " ".join(self.model.contribute(part) for part in result)
        self._expect(operation, self._attempt(operation, None, both), expected)

    def withdraw_part(self, operation: Operation) -> None:
        part = self._part(operation)
        if part is None or part not in self.model.parts:
            return

        def withdraw(client: Client) -> str:
            return "withdrawn" if client.withdraw_contribution(self.part_digests[part]).withdrawn else "counts"

        expected = self.model.withdraw_contribution(part)
        self._expect(operation, self._attempt(operation, part.domain, withdraw), expected)

    # --- versions

    def solve(self, operation: Operation) -> None:
        ridge_lambda = (0.01, 1.0)[operation.which % 2]

        def solve(client: Client) -> str:
            new = NewVersion(options=SolveOptions(ridge_lambda=ridge_lambda), partial=True)
            return wait(client, client.solve_version(new))

        self._expect(operation, self._attempt(operation, None, solve), self.model.solve(ridge_lambda))

    def _number(self, operation: Operation) -> int | None:
        count = len(self.model.versions)
        return 1 + operation.which % count if count else None

    def promote(self, operation: Operation) -> None:
        number = self._number(operation)
        if number is not None:
            answer = self._attempt(operation, None, lambda client: str(client.promote("champion", number).version))
            self._expect(operation, answer, self.model.promote(number))

    def roll_back(self, operation: Operation) -> None:
        if not self.model.champion:
            return
        at = self.model.champion[-1]
        answer = self._attempt(operation, None, lambda client: str(client.roll_back("champion", at).version))
        self._expect(operation, answer, self.model.roll_back())

    def retire(self, operation: Operation) -> None:
        number = self._number(operation)
        if number is None:
            return

        def retire(client: Client) -> str:
            client.retire_version(number)
            return "retired"

        self._expect(operation, self._attempt(operation, None, retire), self.model.retire(number))

    def pull(self, operation: Operation) -> None:
        number = self._number(operation)
        if number is None:
            return
        folder = self.folder / "pulled"
        served = number in self.model.served()
        before = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}

        def fetch(client: Client) -> str:
            pull(client, client.version(number), folder, SILENT)
            return "pulled"

        self._expect(operation, self._attempt(operation, None, fetch), "pulled" if served else "gone")
        after = {path.name: sha256_hex(path.read_bytes()) for path in folder.iterdir()} if folder.is_dir() else {}
        if served:
            with self._as(None) as client:
                whole = {file.name: file.sha256 for file in client.version(number).files}
            assert after.pop("README.md"), operation  # completed with number and date
            assert after == {name: digest for name, digest in whole.items() if name != "README.md"}, operation
        else:
            assert after == {name: sha256_hex(data) for name, data in before.items()}, operation

    # --- what users do besides

    def abandon(self, operation: Operation) -> None:
        """An upload with some chunks that is never committed."""
        domain = self._domain(operation)
        if domain not in self.tokens:
            return
        self.abandoned += 1
        chunks = [f"{domain} {self.abandoned} {n}".encode() for n in range(3)]
        new = announced(b"".join(chunks), *chunks)

        def leave(client: Client) -> str:
            upload = client.post(Upload, "/v1/uploads", new)
            for chunk in chunks[: operation.other % 3]:
                name = sha256_hex(chunk)
                headers = {"Content-Digest": content_digest(name)}
                client.send("PUT", f"/v1/uploads/{upload.id}/chunks/{name}", content=chunk, headers=headers)
            return "left"

        self._expect(operation, self._attempt(operation, domain, leave), "left")

    def jump(self, operation: Operation) -> None:
        self.world.jump((-48.0, -1.0, 1.0, 24.0, 48.0, 200.0)[operation.other])

    def restart(self, operation: Operation) -> None:
        self.world.stop()
        self.world.start()


class _Silent(LogProgress):
    """Silent progress."""

    def track(self, title: str, total: int, unit: str) -> Any:
        class Nothing:
            def advance(self, n: int) -> None:
                pass

        return nullcontext(Nothing())


SILENT = _Silent()
