"""Law 2: grams add up under one body only; heads don't matter to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.bodies.merge import DENSE_BODY_FILE, FolderFiles, MergedBody, seed_body
from moerge.errors import CoordinatorError
from moerge.fits.parts import write_parts
from moerge.models.dense_files import DenseFiles
from moerge.models.families.registry import FAMILIES
from moerge.progress import NoProgress
from moerge.statistics.passes import RouterPass
from moerge_proto.bodies import Body
from moerge_proto.statistics_file import Int64
from moerge_proto.versions import Version
from support.federation import Federation, federation_of, files_below, honest, parted, send
from support.models import expert, on_body, seed_model
from support.passes import sums_of
from support.statistics import written
from support.versions import ROWS


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("bodies"), "law", "art") as made:
        yield made


@pytest.fixture(scope="module")
def bodies(federation: Federation) -> tuple[Body, Body]:
    """The first seed's body, and the current one, of another seed."""
    return federation.body(), federation.reseed()


def test_law_2_contribution_under_another_body_is_refused(federation: Federation, bodies: tuple[Body, Body]) -> None:
    law = federation.members["law"]
    before, (manifest, sums) = files_below(federation.server), honest(federation.server, law, bodies[0])
    for body in (bodies[0].digest, "0" * 64):
        path = written(federation.folder / "file", manifest.model_copy(update={"body": body}), sums)
        with pytest.raises(CoordinatorError) as caught:
            send(law, path)
        assert (caught.value.type, caught.value.where) == ("urn:moerge:problem:wrong-body", "manifest.body")
    assert files_below(federation.server) == before
    assert not list(law.client.contributions())


def test_law_2_version_uses_contributions_of_its_own_body(federation: Federation, bodies: tuple[Body, Body]) -> None:
    """Contributions under the second body don't count under the first, and count again when the second is current."""
    first, second = bodies
    sent, art = federation.contribute(second), federation.members["art"]
    federation.register_seed(federation.seed)
    assert federation.body() == first
    with pytest.raises(CoordinatorError, match="no expert has contributed yet"):
        federation.solve(partial=True)
    federation.members["art"] = parted(federation.server, art, first, fitted=False)
    [early] = federation.contribute(first, "art")
    version = federation.solve(partial=True)
    assert (version.lineage.domains, version.lineage.contributions) == (["art"], [early.digest])
    federation.register_seed(federation.folder / "seed-1")
    assert federation.body() == second
    assert set(federation.solve().lineage.contributions) == {item.digest for item in sent}


SETTINGS: dict[str, dict[str, Any]] = {"qwen3": {"head_dim": 16}, "phi3": {"num_key_value_heads": 4}}


def with_another_head(folder: Path) -> Path:
    """Changes a model's last norm and head; returns its folder."""
    tensors = load_file(folder / "model.safetensors")
    for read in DenseFiles(folder).family.head_names:
        name = read if read in tensors else read.replace("model.", "backbone.")  # Nemotron-H's files
        tensors[name] = torch.randn(tensors[name].shape, generator=torch.Generator().manual_seed(7))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_law_2_contributions_do_not_depend_on_heads(tmp_path: Path, family: str) -> None:
    """A body has no head, and sums are the same integers under two heads and with an expert's parts alone."""
    settings = {"family": family, "num_hidden_layers": 2, **SETTINGS.get(family, {})}
    seed, own = seed_model(tmp_path / "seed", **settings), expert(tmp_path / "expert", 1, **settings)

    def body() -> MergedBody:
        return seed_body(DenseFiles(seed), FolderFiles(tmp_path / "body"), NoProgress())

    def sums(place: Path) -> dict[str, Int64]:
        work = RouterPass(*on_body(place, tmp_path / "body" / DENSE_BODY_FILE), first.exponents)
        return sums_of(work, ROWS).arrays

    first = body()
    expected = sums(own)
    for place in (write_parts(DenseFiles(own), tmp_path / "parts"), with_another_head(own)):
        result = sums(place)
        assert result.keys() == expected.keys()
        assert all((result[name] == expected[name]).all() for name in expected)
    with_another_head(seed)
    assert body().digest == first.digest


def test_law_2_new_head_takes_the_contributions_that_are_there(tmp_path: Path) -> None:
    """Two versions of one body differ in the head alone: nobody contributes to routers again."""

    def weights(version: Version) -> dict[str, str]:
        return {file.name: file.sha256 for file in version.files if file.name.startswith("model-")}

    with federation_of(tmp_path, "law", "art") as federation:
        sent = {item.digest for item in federation.contribute(federation.body())}
        seed, average = federation.solve(head="seed"), federation.solve()
        heads = [item.digest for item in federation.contribute_heads()]
        solved = federation.solve()
    assert [item.lineage.head.method for item in (seed, average, solved)] == ["seed", "average", "regmean"]
    assert solved.lineage.head.contributions == heads
    files = [weights(item) for item in (seed, average, solved)]
    assert len({made.pop("model-head.safetensors") for made in files}) == 3
    assert files[0] == files[1] == files[2]
    assert all(set(item.lineage.contributions) == sent for item in (seed, average, solved))
