"""The parts of moerge under benchmark.

Code for models is imported at its use, so that the process that publishes doesn't load it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from moerge.blobs.local import LocalBlobs
from moerge.bodies.heads import HeadInputs, head_plan
from moerge.bodies.lineage import BodyLineage, BodyOptions
from moerge.bodies.merge import BodyInputs, merge_body
from moerge.files import atomic_file, sync_folder
from moerge.models.bounds import feature_gains
from moerge.models.config import read_config
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.families.family import mlp_layers
from moerge.models.reader import Checkpoint
from moerge.models.writer import write_safetensors
from moerge.progress import NoProgress
from moerge.routers.solve import solve_layers
from moerge.statistics.integers import pack, to_integers
from moerge.versions.file_plan import (
    FilePlan,
    body_files,
    config_files,
    index_file,
    mlp_files,
    report_file,
    router_file,
    version_config,
)
from moerge_proto.digests import digest_of, sha256_hex
from moerge_proto.messages import FileEntry
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import RouterManifest, StatisticsFile, StatisticsSettings, exponent, write
from moerge_proto.version_files import HEAD_FILE
from moerge_proto.versions import SolveReport

if TYPE_CHECKING:
    from moerge.documents.shards import Shard
    from moerge.statistics.passes import RouterPass
    from moerge.statistics.streamed import Streamed

__all__ = ["Store", "compressed_chunks", "merge", "publish", "router_pass", "statistics_pass", "write_statistics"]


def router_pass(expert: Path, precision: str = "float32", device: str = "cpu") -> "RouterPass":
    """The pass of an expert under its own body."""
    from moerge.statistics.passes import RouterPass

    config = read_config(expert)
    bits = [exponent(config.hidden_size)] * config.num_hidden_layers
    return RouterPass(DenseFiles(expert), DenseFiles(expert), bits, precision, device)


def statistics_pass(streamed: "Streamed", shards: Sequence["Shard"]) -> None:
    """The integer sums of a window of shards, layer by layer."""
    names = {shard.name for shard in shards}
    for _ in range(streamed.begin(shards), streamed.layers):
        streamed.sums(names, names)


def write_statistics(path: Path, gram: Tensor, cross: Tensor, *, domain: str, tokens: int, shard: int = 0) -> None:
    """A statistics file of gram [L, H, H] and cross [L, H], float64."""
    layers, hidden = cross.shape
    bits = exponent(hidden)
    manifest = RouterManifest(
        owner="owner",
        expert=sha256_hex(domain.encode()),
        domain=domain,
        body="7" * 64,
        settings=StatisticsSettings(),
        hidden_size=hidden,
        layers=layers,
        exponents=[bits] * layers,
        tokens=tokens,
        documents=1,
        shards=[sha256_hex(str(shard).encode())],
    )
    arrays = []
    for square, column in zip(gram.numpy(), cross.numpy(), strict=True):
        arrays += [to_integers(pack(square), bits), to_integers(column, bits)]
    with atomic_file(path) as out:
        write(out, manifest, arrays)


def compressed_chunks(path: Path) -> list[bytes]:
    """The bodies that the client sends for a file."""
    from moerge.client.uploads import compressed, plain_chunks

    return [compressed(plain) for _, plain in plain_chunks(path)]


class Store:
    """A coordinator's blobs, and the blob of each planned file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, FileEntry] = {}
        self.blobs = LocalBlobs(folder / "blobs")

    def file(self, plan: FilePlan) -> FileEntry:
        """The planned file, written only if missing."""
        if plan.sha256 is not None and self.blobs.has(plan.sha256):
            size = self.blobs.path(plan.sha256).stat().st_size
            return FileEntry(name=plan.name, sha256=plan.sha256, size=size)
        if plan.key not in self._files:
            self._files[plan.key] = self.blobs.put(plan.name, plan.write)
        entry = self._files[plan.key]
        return FileEntry(name=plan.name, sha256=entry.sha256, size=entry.size)

    def show(self, version: str, files: Sequence[FileEntry]) -> None:
        """The version's folder, as hard links."""
        target = self._folder / "versions" / version
        for file in files:
            self.blobs.link(file.sha256, target / file.name)
        sync_folder(target)
        sync_folder(target.parent)


def merge(store: Store, experts: Sequence[Path]) -> FileEntry:
    """The experts' average body."""
    named = [digest_of(slot) for slot in range(len(experts))]
    lineage = BodyLineage(method="average", options=BodyOptions(), experts=named, contributions=[])
    inputs = BodyInputs(dict(zip(named, map(DenseFiles, experts), strict=True)), {digest: digest for digest in named})
    return merge_body(lineage, inputs, store.blobs, NoProgress()).files[0]


def publish(
    store: Store,
    version: str,
    body: Path,
    experts: Sequence[Path],
    statistics: Sequence[Path],
    ridge_lambda: float = 0.01,
) -> None:
    """A version: body, one file per expert, solved routers, index, config. Domains are d0, d1, …

    `body` is a blob, named by its digest.
    """
    dense = DenseBody(body, DenseFiles(experts[0]).config)
    config, family, checkpoint = dense.config, dense.family, dense.checkpoint
    layers, sha256 = mlp_layers(config), body.name
    domains, lineage = [f"d{slot}" for slot in range(len(experts))], digest_of(version)
    options = SolveOptions(ridge_lambda=ridge_lambda)
    gains = feature_gains(dense)

    @cache
    def solution() -> tuple[list[Tensor], SolveReport]:
        with ExitStack() as stack:
            files = [stack.enter_context(StatisticsFile(path)) for path in statistics]
            return solve_layers(files, domains, gains, options)

    weights = body_files(dense, sha256, sha256)
    slots = [Checkpoint(expert) for expert in experts]
    head = head_plan("average", HeadInputs(slots, tuple, None, dense, as_embedding=True))
    sizes = {plan.name: plan.bytes for plan in head}
    weights.append(FilePlan(HEAD_FILE, lineage, lambda out: write_safetensors(out, head), sizes))
    digests = [digest_of(str(expert)) for expert in experts]
    weights += mlp_files(list(zip(slots, digests, strict=True)), family, layers)
    dtype = checkpoint.specs["model.embed_tokens.weight"].dtype
    weights.append(router_file(lambda: solution()[0], gains, layers, len(domains), family.host, dtype, lineage))
    published = version_config(dense, len(experts), options.top_k, tied=False)
    texts = config_files(DenseFiles(experts[0]), published)
    texts.append(report_file(lambda: solution()[1], lineage))
    store.show(version, [store.file(plan) for plan in [*weights, index_file(weights), *texts]])
