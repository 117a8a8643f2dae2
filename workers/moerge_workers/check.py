"""`moerge worker check`: one line per check of an obstacle to a run."""

import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.filesize import decimal

from moerge.client.client import Client
from moerge.documents.files import silent
from moerge.documents.fitting_sample import fitting_tokens
from moerge.errors import MoergeError
from moerge.fits.fitted_files import fitted_bytes
from moerge.fits.fitting import require_fittable
from moerge.fits.parts import part_bytes
from moerge.fits.sample import need_of as fitting_need
from moerge.memory.messages import described, machine
from moerge.memory.room import Room
from moerge.memory.shapes import Shape
from moerge.models.adapters import WEIGHTS
from moerge.models.dense import body_names
from moerge.models.expert_folder import DenseExpert, check_expert
from moerge.models.families.family import mlp_layers, module_of
from moerge.models.keeping import Keeping, is_on, keeping
from moerge.models.rows import described as described_rows
from moerge.progress import NoProgress
from moerge.statistics.estimate import estimate
from moerge.statistics.membership import expected_auc
from moerge.statistics.passes import RouterPass
from moerge_proto.bodies import Body
from moerge_proto.experts import Expert
from moerge_workers.computing.actors import Slots
from moerge_workers.computing.finishing import Finishing
from moerge_workers.computing.memory import free_memory, require_gpus, room_of
from moerge_workers.contributing.evaluation import require_memory
from moerge_workers.contributing.expert import require_allowed
from moerge_workers.contributing.parts import FITTED
from moerge_workers.contributing.seed import own_body, own_seed, require_expert_of_seed, require_same_body
from moerge_workers.data.documents import Data
from moerge_workers.data.first_documents import read_first
from moerge_workers.finishing import finishing_of
from moerge_workers.outgoing import version_limit
from moerge_workers.outgoing.history import History
from moerge_workers.outgoing.owner_key import own_identity, require_approved
from moerge_workers.settings import Settings
from moerge_workers.watching.events import ActorEvents

_FILES = 3  # statistics files in the home at once: the journal, its replacement, and a sent one
_MOST_SKEW = 60.0  # seconds
_PATIENCE = 5.0
_KEPT = "its MLPs aren't fitted"
_KEPT_ALL = "its MLPs aren't fitted, and no head or head contribution leaves"


@dataclass(frozen=True)
class Line:
    """The result of one check: a summary, or the problem."""

    name: str
    text: str
    problem: MoergeError | None = None

    def __str__(self) -> str:
        return f"{'ok' if self.problem is None else 'no':3}{self.name:<12} {self.problem or self.text}"


def checks(settings: Settings) -> Iterator[Line]:
    """The lines of all checks, one by one. A failed check stops only the checks that depend on it.

    Without a coordinator in the settings, checks only this machine.
    """
    own = DenseExpert(settings.domain, settings.expert)
    finishing = finishing_of(settings)
    machine = _Machine(settings, own, finishing)
    yield (expert := _line("expert", machine.expert))
    yield _line("data", machine.data)
    yield from (Line("data", remark) for remark in machine.remarks)
    if expert.problem is None:
        yield _line("seed", machine.seed)
        yield _line("disk", machine.disk)
        if finishing.name and machine.documents:
            yield _line(finishing.name, machine.finished)
        yield (memory := _line("memory", machine.memory))
        if memory.problem is None:
            yield (ray := _line("Ray", machine.ray))
            if ray.problem is None and machine.tokens and machine.rate:
                yield _line("pass", machine.estimate)
    if not settings.coordinator:
        return
    try:
        client = Client(settings.coordinator, settings.token, patience=_PATIENCE)
    except MoergeError as error:
        yield Line("coordinator", "", error)
        return
    with client:
        fleet = _Fleet(settings, own, client, finishing, machine.has_own_head)
        yield (reached := _line("coordinator", fleet.greeting))
        if reached.problem is not None:
            return
        yield _line("clock", fleet.clock)
        yield (token := _line("token", fleet.token))
        if token.problem is None:
            yield _line("key", fleet.key)
            if expert.problem is None:
                yield (body := _line("body", fleet.body))
                if body.problem is None:
                    yield _line("fleet", fleet.expert)
            if expert.problem is None and settings.policy.evaluation_sums:
                yield _line("evaluation", fleet.evaluation)
            yield _line("budget", fleet.budget)


def _line(name: str, look: Callable[[], str]) -> Line:
    try:
        return Line(name, look())
    except MoergeError as error:
        return Line(name, "", error)
    except OSError as error:
        problem = MoergeError(
            str(error.strerror or error), where=str(error.filename or name), todo="repair the file or its permissions"
        )
        return Line(name, "", problem)


class _Devices(ActorEvents):
    """Counts the actors of each device, with its node in a cluster."""

    def __init__(self) -> None:
        self.actors = Counter[str]()

    def ready(self, slot: int, device: str) -> None:
        self.actors[device] += 1


@dataclass
class _Machine:
    """The checks of this machine; `remarks`: about the data."""

    settings: Settings
    own: DenseExpert
    finishing: Finishing
    remarks: list[str] = field(default_factory=list)
    keeping: Keeping | None = None
    tokens: int = 0
    documents: int = 0
    _room: Room = field(init=False)
    rate: float = 0.0

    @property
    def _work(self) -> RouterPass:
        """The run's pass, under the expert's own body."""
        exponents = [0] * len(mlp_layers(self.own.config))
        statistics = self.settings.statistics
        return RouterPass(self.own, self.own, exponents, statistics.precision, self.settings.device, statistics.before)

    def expert(self) -> str:
        check_expert(self.own, None, str(self.own.folder))
        config, size = self.own.config, sum(spec.bytes for spec in self.own.checkpoint.specs.values())
        shape = f"{config.model_type}, H {config.hidden_size}, {config.num_hidden_layers} layers, {decimal(size)}"
        return "; ".join(filter(None, (shape, _mlps(self.own), self.own.left_out, described_rows(self.own))))

    def data(self) -> str:
        key = None if self.settings.home.is_dir() else secrets.token_bytes(32)  # only a run makes the home
        data = Data(self.settings, self.own, self.remarks.append, key)
        limits = self.finishing.settings(self.settings.statistics)
        first = read_first(self.settings, data, self.own.config.hidden_size, limits)
        self.tokens, self.documents = first.tokens, first.documents
        auc = expected_auc(first.documents)
        return f"{first.summary}; in a trial, sums over as many showed with {auc} whether a known one is among them"

    def finished(self) -> str:
        """The facts of router contributions that aren't plain."""
        if self.keeping is not None:
            self.finishing.require_alone(self.settings, self.own.family, self.keeping)
        return self.finishing.report(self.settings)

    @property
    def _is_kept(self) -> bool:
        """Tell whether the expert keeps the seed's body, and isn't fitted."""
        return self.keeping is not None and self.keeping.keeps_body and self.settings.fit is not True

    @property
    def has_own_head(self) -> bool:
        """Tell whether last norm and head leave with the expert's parts, as they do with fitted MLPs."""
        return self.keeping is None or not self.keeping.keeps_all or not self._is_kept

    def seed(self) -> str:
        """The own copy of the seed fits the expert."""
        own = own_seed(self.settings.seed)
        check_expert(own, None, str(own.folder))
        replaced = require_expert_of_seed(self.own, own, self._texts())
        self.keeping = keeping(self.own, own)
        kept = _KEPT if self.has_own_head else _KEPT_ALL
        follows = kept if self._is_kept else FITTED if self.settings.fit is not False else ""
        text = f"{own.folder}: config and tokenizer are the expert's; the expert {self.keeping}"
        return "; ".join(filter(None, (text, follows, replaced)))

    def _texts(self) -> Iterator[str]:
        """The first documents, with which tokenizers are compared."""
        yield from Data(self.settings, self.own, silent, secrets.token_bytes(32)).first_texts()

    def disk(self) -> str:
        """The home has room for a body, a few statistics files and the expert's parts."""
        home = _existing(self.settings.home)
        with tempfile.TemporaryFile(dir=home):
            pass
        specs = self.own.checkpoint.specs
        body = sum(specs[name].bytes for name in body_names(self.own))
        needed = body + _FILES * Shape.of(self.own.config, torch.float32).contribution(body=False)
        needed += self.own.is_adapter * sum(spec.bytes for spec in specs.values())
        is_fitted = self.settings.fit is not False and not self._is_kept
        needed += fitted_bytes(self.own) if is_fitted else part_bytes(self.own)
        free = shutil.disk_usage(home).free
        if free < needed:
            problem = f"{decimal(free)} free; body, parts and sums need {decimal(needed)}"
            raise MoergeError(problem, where=str(home), todo="free space, or choose a home on a larger disk")
        return f"{self.settings.home}: {decimal(free)} free, {decimal(needed)} needed"

    def memory(self) -> str:
        require_gpus(self.settings)
        settings, free = self.settings, free_memory(self.settings)
        self._room = room_of(self._work, settings, free)
        need = self._room.need
        lines = [
            described(need, processes=settings.slots),
            f"each slot has {decimal(self._room.states)} of host memory for hidden states",
            f"the journal needs {decimal(need.journal)}",
        ]
        if settings.fit:
            require_fittable(self.own)
        if settings.fit is not False and self.own.family.is_fittable and not self._is_kept:
            tokens = fitting_tokens(self.own.config.hidden_size)
            lines.append(described(fitting_need(self.own, settings.statistics, settings.device), tokens))
        return "; ".join([*lines, *machine(free)])

    def ray(self) -> str:
        settings, devices = self.settings, _Devices()
        if settings.ray_address is not None and self.own.is_adapter:
            return "not started: `run` merges the adapter first"
        slots = Slots(settings.ray_address, settings.slots, settings.statistics, self.remarks.append, devices)
        self.rate = slots.probe(self._work)
        counted = ", ".join(f"{number} on {device}" for device, number in sorted(devices.actors.items()))
        done = f"{settings.slots} actors computed a layer of a micro-batch each: {counted}"
        return f"{done}, at about {self.rate:,.0f} tokens/s through all layers"

    def estimate(self) -> str:
        return str(estimate(self._work, self._room, self.tokens, self.rate, self.settings.slots))


def _mlps(expert: DenseExpert) -> str:
    """The names of the linear modules of its MLPs, as trainers take them."""
    modules = [module_of(name).format(layer="*") for name in expert.family.mlp]
    folders = {module.rpartition(".")[0] for module in modules}
    return f"MLPs: {', '.join(module.rpartition('.')[2] for module in modules)} of {', '.join(sorted(folders))}"


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _has_parts(row: Expert, dense: str, body: Body | None) -> bool:
    """Tell whether a registered expert is parts of a dense one for a body, and not withdrawn."""
    return body is not None and (row.parts.expert, row.parts.body, row.withdrawn) == (dense, body.digest, None)


@dataclass
class _Fleet:
    """The checks with the coordinator."""

    settings: Settings
    own: DenseExpert
    client: Client
    finishing: Finishing
    has_own_head: bool = True
    _body: Body | None = None

    def greeting(self) -> str:
        self._greeting = self.client.greeting()
        certificate = self._greeting.certificate
        way = f"TLS, certificate of {certificate}" if certificate else "plain HTTP on this machine"
        return f"{self.settings.coordinator}: moerge {self._greeting.version}, {way}"

    def clock(self) -> str:
        ahead = self._greeting.ahead
        if abs(ahead) > _MOST_SKEW:
            problem = f"the coordinator's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this one"
            raise MoergeError(
                problem, where="clock", todo="set both clocks by NTP, or ask the operator which one is wrong"
            )
        return f"within {max(2.0, abs(ahead)):.0f} s of the coordinator's"

    def token(self) -> str:
        identity = own_identity(self.client, self.settings.domain)
        return f"{identity.owner}'s, for {', '.join(identity.domains)}"

    def key(self) -> str:
        if require_approved(self.client, self.settings.home):
            return "approved by the operator; contributions are signed"
        return self.finishing.without_key(self.settings.home)

    def evaluation(self) -> str:
        newest = max(self.client.versions(), key=lambda version: version.number, default=None)
        if newest is None:
            return "no version yet; the memory depends on its number of experts"
        need, experts = require_memory(self.own, self.settings, newest), len(newest.lineage.experts)
        return f"version {newest.number} has {experts} experts; {described(need)}"

    def budget(self) -> str:
        policy, used = self.settings.policy, "none"
        if self.settings.home.is_dir():
            with closing(History(self.settings.home)) as history:
                used = version_limit.summary(history)
        allowed = f"{policy.versions_per_month} are allowed, further ones need your approval"
        return f"new in the last 30 days: {used}; {allowed}"

    def body(self) -> str:
        """The coordinator's body is the own copy's."""
        body = self._body = self.client.current_body()
        if body is None:
            return "no seed yet"
        own, made = own_seed(self.settings.seed, body.source), self.settings.home / "seed"
        require_expert_of_seed(self.own, own)
        with tempfile.TemporaryDirectory(dir=_existing(self.settings.home)) as folder:
            require_same_body(own_body(own, made if made.is_dir() else Path(folder), NoProgress()), body)
        return f"{body.digest[:12]}, your seed's, byte for byte"

    def expert(self) -> str:
        own = self.own
        if any(_has_parts(row, own.digest, self._body) for row in self.client.experts()):
            return "its parts are already registered"
        require_allowed(self.settings)
        if own.is_adapter and not self.has_own_head and is_on(own.folder, own_seed(self.settings.seed)):
            size = decimal((own.folder / WEIGHTS).stat().st_size)
            return f"only the adapter leaves, {size}; the coordinator merges it with the seed"
        what = "MLPs, last norm and head" if self.has_own_head else "MLPs"
        return f"only the expert's parts leave, {decimal(part_bytes(own, own_head=self.has_own_head))}: {what}"
