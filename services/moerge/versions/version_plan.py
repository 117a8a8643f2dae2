"""The files of a version and their order: a pure function of its lineage and of the files that it names (law 3)."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from moerge.bodies.heads import HeadInputs, is_tied
from moerge.errors import ContributionError
from moerge.models.bounds import feature_gains
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.families.family import EMBEDDING, HEAD, mlp_layers
from moerge.models.reader import Checkpoint
from moerge.models.side_files import chat_model, chat_template
from moerge.routers.solve import solve_layers
from moerge.versions.card import ChatTemplates, Contributed, ExpertRecord, Model, Origin, SeedRecord, card_file
from moerge.versions.engines import engine_limits
from moerge.versions.file_plan import (
    FilePlan,
    body_files,
    config_files,
    head_file,
    index_file,
    mlp_files,
    record_file,
    report_file,
    router_file,
    version_config,
)
from moerge_proto.digests import digest_of
from moerge_proto.ranges import Source
from moerge_proto.statistics_file import Sums
from moerge_proto.versions import Lineage, SolveReport

BASE = "base"
"""The name of the base model in `chat_template`."""
_OF_ROUTERS = {"body", "experts", "domains", "contributions", "options", "solver"}
"""The fields of a lineage that its routers depend on."""
Solution = tuple[Sequence[Tensor], SolveReport]
"""One router [D, H] per layer, and the report of the solves."""


@dataclass(frozen=True)
class Slot:
    """An expert of a version.

    Attributes:
        weights: its MLPs.
        side_files: its config and tokenizer.
        head: its last norm and head; a tied head is the embedding. None: the seed's.
    """

    record: ExpertRecord
    weights: Checkpoint
    side_files: DenseFiles
    head: Checkpoint | None


@dataclass(frozen=True)
class Seed:
    """The seed of a body.

    Attributes:
        name: its name, for people.
        license: its SPDX identifier.
        side_files: its config and tokenizer, which versions under its body have.
        head: its last norm and head; a tied one has only the norm.
    """

    name: str | None
    license: str
    side_files: DenseFiles
    head: Checkpoint

    @property
    def is_tied(self) -> bool:
        """Tell whether its head is its embedding."""
        return HEAD not in self.head.specs


@dataclass(frozen=True)
class VersionInputs:
    """The files and facts of a lineage's digests.

    Attributes:
        slots: the version's experts, in order.
        body_sha256: the digest of the body's file.
        method: the body's method.
        merged: the experts in the body.
        contributed: facts of the router contributions, in the lineage's order; of a sum, of each domain.
        statistics: gives their files in that order.
        head_statistics: gives the files of the lineage's head contributions, in order.
        seed: of a seed's body.
        base: the base model's config and tokenizer, of a body that was merged with it.
    """

    slots: Sequence[Slot]
    body: DenseBody
    body_sha256: str
    method: str
    merged: Sequence[ExpertRecord]
    contributed: Sequence[Contributed]
    statistics: Callable[[], Sequence[Source]]
    head_statistics: Callable[[], Sequence[Source]] = tuple
    seed: Seed | None = None
    base: DenseFiles | None = None

    @property
    def head(self) -> HeadInputs:
        """The inputs of the head. A merged body's embedding is the mean of its own experts' tied heads."""
        same = {expert.digest for expert in self.merged} == {slot.record.dense for slot in self.slots}
        as_embedding = same and self.method == "average"
        heads = [slot.head for slot in self.slots]
        seed = None if self.seed is None else self.seed.head
        return HeadInputs(heads, self.head_statistics, seed, self.body, as_embedding)


Solve = Callable[[Lineage, VersionInputs], Solution]


@dataclass(frozen=True)
class VersionPlan:
    """The planned files of a version.

    Attributes:
        shared: body, head and experts; other versions may have them too.
        solved: routers and report; writing either solves, once.
        texts: index, configs, tokenizer, lineage and card.
    """

    shared: list[FilePlan]
    solved: list[FilePlan]
    texts: list[FilePlan]

    @property
    def files(self) -> list[FilePlan]:
        return [*self.shared, *self.solved, *self.texts]


def solve_lineage(
    lineage: Lineage, inputs: VersionInputs, solved: Callable[[int], None] = lambda layer: None
) -> Solution:
    """The routers of a lineage from its contributions (DUME eq. 6); `solved` is called after each layer.

    Raises:
        ContributionError, SolveError: a layer can't be solved.
    """
    with ExitStack() as stack:
        files = opened(stack, inputs)
        return solve_layers(files, lineage.domains, feature_gains(inputs.body), lineage.options, solved)


def opened(stack: ExitStack, inputs: VersionInputs) -> list[Sums]:
    """The opened router contributions of a version, and sums of such."""
    files = [stack.enter_context(Sums(source)) for source in inputs.statistics()]
    if masked := [file.name for file in files if file.manifest.is_masked]:
        raise ContributionError(f"{masked[0]} is masked", todo="solve from the sum: moerge coordinator unmask")
    return files


def plan_version(lineage: Lineage, inputs: VersionInputs, solve: Solve = solve_lineage) -> VersionPlan:
    """The files of a version; a pure function of its arguments (law 3). Nothing is computed until a file is written.

    Raises:
        IncompatibleExpertError: the head can't be made of these experts, or is not the embedding, but `tied`.
        MoergeError: a checkpoint can't be read, or the model of the lineage's `chat_template` has none.
    """
    body, config, family = inputs.body, inputs.body.config, inputs.body.family
    layers, count = mlp_layers(config), len(inputs.slots)
    solved = digest_of(lineage.model_dump(mode="json", include=_OF_ROUTERS))
    method, head = lineage.head.method, head_file(lineage, inputs.head, body)
    shared = [*body_files(body, lineage.body, inputs.body_sha256), head]
    mlps = mlp_files([(slot.weights, slot.record.digest) for slot in inputs.slots], family, layers)
    shared += mlps

    @cache
    def solution() -> Solution:
        return solve(lineage, inputs)

    dtype = body.checkpoint.specs[EMBEDDING].dtype
    routers = router_file(lambda: solution()[0], feature_gains(body), layers, count, family.host, dtype, solved)
    side_files, chat = small_files_of(lineage, inputs)
    records = [slot.record for slot in inputs.slots]
    total = sum(file.parameters for file in (*shared, routers))
    idle = (count - lineage.options.top_k) * sum(file.parameters for file in mlps) // count
    model = Model(family.host.class_name, str(dtype).removeprefix("torch."), total, total - idle, family.host.fused)
    seed = None if inputs.seed is None else SeedRecord(inputs.seed.name, inputs.seed.license)
    kept = [slot.record.domain for slot in inputs.slots if slot.head is None]
    origin = Origin(inputs.method, inputs.merged, seed, 0 if is_tied(method, inputs.head) else head.parameters, kept)
    configs = config, *(slot.side_files.config for slot in inputs.slots)
    context = min(int(item.max_position_embeddings) for item in configs)
    published = version_config(body, count, lineage.options.top_k, context, tied=lineage.tied)
    limits = engine_limits(published)
    texts = [
        index_file([*shared, routers]),
        *config_files(side_files, published),
        record_file(lineage),
        card_file(lineage, records, origin, inputs.contributed, chat, model, limits),
    ]
    return VersionPlan(shared, [routers, report_file(lambda: solution()[1], solved)], texts)


def small_files_of(lineage: Lineage, inputs: VersionInputs) -> tuple[DenseFiles, ChatTemplates]:
    """The model whose tokenizer and generation config are published, and all chat templates.

    Raises:
        MoergeError: the model of the lineage's `chat_template` has none.
    """
    experts = {slot.record.domain: slot.side_files for slot in inputs.slots}
    chats = {domain: chat_template(files) for domain, files in experts.items()}
    if (name := lineage.chat_template) is not None:
        taken = chat_model(name, experts if inputs.base is None else {BASE: inputs.base, **experts})
    elif inputs.seed is not None:
        taken = inputs.seed.side_files
    else:
        name = max(experts, key=lambda domain: int(experts[domain].config.vocab_size))
        taken = experts[name]
    return taken, ChatTemplates(name, chat_template(taken), chats)
