"""Contributions without an owner's worker: the same passes over texts that are here, into the same files."""

from collections.abc import Sequence
from pathlib import Path

from moerge.files import atomic_file, file_sha256
from moerge.models.batches import batches
from moerge.models.bounds import attention_size, feature_exponents, input_exponents
from moerge.models.config import read_config
from moerge.models.families import family_of
from moerge.models.reader import Checkpoint
from moerge.models.tokens import Tokens
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsSettings, TrunkManifest, write

Rows = Sequence[Tokens]
"""Documents."""


def router_contribution(
    domain: str, expert: Path, trunk: Path, rows: Rows, path: Path, precision: str = "float32", device: str = "cpu"
) -> Path:
    """Writes the grams and sums of what each MLP of the expert reads behind the trunk."""
    config = read_config(expert)
    exponents = feature_exponents(Checkpoint(trunk), family_of(config), config)
    work = RouterPass(expert, trunk, exponents, precision, device)
    return _written(RouterManifest, work, domain, rows, path, trunk=file_sha256(trunk))


def trunk_contribution(
    domain: str, expert: Path, rows: Rows, path: Path, precision: str = "float32", device: str = "cpu"
) -> Path:
    """Writes the grams of what attention and head of the dense expert read, and how often each token stood."""
    config = read_config(expert)
    exponents = input_exponents(Checkpoint(expert), family_of(config), config)
    sizes = {"attention_size": attention_size(config), "vocab_size": config.vocab_size, "rare_below": 0}
    return _written(TrunkManifest, TrunkPass(expert, exponents, precision, device), domain, rows, path, **sizes)


def _written(
    kind: type[Manifest], work: RouterPass | TrunkPass, domain: str, rows: Rows, path: Path, **more: object
) -> Path:
    config, settings = read_config(work.expert), StatisticsSettings()
    sums = work.load()(batches(rows, settings.batch_tokens), len(rows))
    manifest = kind.model_validate(
        {
            "owner": f"{domain}-owner",
            "expert": digest_of({"expert": str(work.expert.resolve())}),
            "domain": domain,
            "settings": settings,
            "hidden_size": config.hidden_size,
            "layers": config.num_hidden_layers,
            "exponents": list(work.exponents),
            "tokens": sums.tokens,
            "documents": sums.documents,
            "shards": [digest_of({"rows": [[*row.signed] for row in rows]})],
            **more,
        }
    )
    with atomic_file(path) as out:
        write(out, manifest, sums.arrays.values())
    return path
