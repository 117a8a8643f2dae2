"""Law 2: grams add up under one body only."""

from collections.abc import Iterator

import pytest

from moerge.errors import CoordinatorError
from moerge_proto.bodies import Body
from support.federation import Federation, federation_of, files_below, honest, send
from support.statistics import written


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("bodies"), "law", "art") as made:
        yield made


@pytest.fixture(scope="module")
def bodies(federation: Federation) -> tuple[Body, Body]:
    """A body of both experts, and the current one, of art's."""
    return federation.merge(), federation.merge("art")


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
    sent = federation.contribute(second)
    assert federation.merge() == first
    with pytest.raises(CoordinatorError, match="no expert has contributed yet"):
        federation.solve(partial=True)
    [art] = federation.contribute(first, "art")
    version = federation.solve(partial=True)
    assert (version.lineage.domains, version.lineage.contributions) == (["art"], [art.digest])
    assert federation.merge("art") == second
    assert set(federation.solve().lineage.contributions) == {item.digest for item in sent}
