"""An owner whose gram of one direction takes a share of a solved head: it isn't prevented, but measured."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moerge.documents.shards import enough
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import HEAD
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import head_manifest
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.version_files import HEAD_FILE
from support.federation import Federation, federation_of, parted, registered, send
from support.models import SMALL, keeping_expert
from support.statistics import shard_of, written

DOMAINS = ("law", "art", "code", "eve")
SIZE = int(SMALL["hidden_size"])
MEAN, UNUSED, *OTHERS = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)))[0]
TEXT = torch.stack([(1 / 3) ** 0.5 * MEAN + sign * (2 / 3) ** 0.5 * other for other in OTHERS for sign in (1, -1)])
"""Inputs of a head with a third of their energy along their mean, and none in one direction."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Four owners with heads of their own; law, art and code have contributed. No gain changes a direction."""
    folder = tmp_path_factory.mktemp("heads")
    with federation_of(folder, settings="publication_max_rise = inf", apart=0.0) as made:
        for number, domain in enumerate(DOMAINS):
            member = made.join(domain, with_head(keeping_expert(folder / domain, made.seed, number), number))
            made.enter(parted(made.server, member, made.body(), fitted=False)).register()
        made.contribute(made.body())
        for domain in DOMAINS[:3]:
            contribute(made, domain, TEXT)
        yield made


def with_head(folder: Path, number: int) -> Path:
    tensors = load_file(folder / "model.safetensors")
    tensors[HEAD] += 0.02 * torch.randn(tensors[HEAD].shape, generator=torch.Generator().manual_seed(number))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def contribute(federation: Federation, domain: str, rows: Tensor, *supersedes: str) -> tuple[str, float | None]:
    """A head contribution of these inputs, repeated; its digest and effective rank."""
    member, inputs = federation.members[domain], rows.repeat(-(-enough(SIZE) // len(rows)), 1) * SIZE**0.5
    manifest = head_manifest(
        member.name, DenseExpert(domain, member.folder), registered(member).digest, StatisticsSettings(), domain
    )
    counts = {"tokens": len(inputs), "documents": 1, "shards": [sha256_hex(domain.encode())]}
    gram = shard_of(inputs).arrays["layers.0.gram"]
    sums = ShardSums({"head_input": gram}, tokens=len(inputs), documents=1)
    sent = send(member, written(federation.folder / "head", manifest.model_copy(update=counts), sums), *supersedes)
    return sent.digest, sent.effective_rank


def shares(federation: Federation, direction: Tensor) -> list[float]:
    """The owners' shares of the solved head along a direction."""
    version = federation.solve(head="regmean").number
    solved = load_file(federation.version(version) / HEAD_FILE)[HEAD].double() @ direction.double()
    owners = [federation.members[domain].folder / "model.safetensors" for domain in DOMAINS]
    own = torch.stack([load_file(path)[HEAD].double() @ direction.double() for path in owners], dim=1)
    return [float(share) for share in torch.linalg.lstsq(own, solved[:, None]).solution]


def test_a_gram_of_one_direction_takes_the_share_that_the_page_says(federation: Federation) -> None:
    """Along it, of four owners, 1 / (1 + the sum of the others' fractions of energy there)."""
    sent, _ = contribute(federation, "eve", TEXT)
    assert shares(federation, MEAN) == pytest.approx([1 / 4] * 4, abs=0.01)
    for direction, elsewhere, expected in ((MEAN, OTHERS[0], 1 / 2), (UNUSED, MEAN, 1)):
        sent, rank = contribute(federation, "eve", direction[None], sent)
        assert rank == pytest.approx(1, abs=0.01), "the operator sees it"
        assert shares(federation, direction)[3] == pytest.approx(expected, abs=0.01)
        assert shares(federation, elsewhere)[3] < 0.01, "it gives up its share elsewhere"
