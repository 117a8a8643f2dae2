"""Law 5: removal is exact. The next version equals one without the withdrawn item."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.errors import CoordinatorError
from moerge_proto.experts import ExpertState
from moerge_proto.recipes import PAPER
from moerge_proto.versions import Version
from support.federation import Federation, federation_of, honest, send
from support.lineages import DOMAINS, Group, groupings, solved
from support.statistics import written


def files_of(version: Version) -> dict[str, str]:
    """Name -> SHA-256."""
    return {file.name: file.sha256 for file in version.files}


def routers(version: Version) -> str:
    """The routers' digest."""
    return next(file.sha256 for file in version.files if file.name == "model-router.safetensors")


def test_law_5_withdrawn_contribution_is_undone_and_resendable(tmp_path: Path) -> None:
    """Domains count by their statistics, so half of a domain's statistics gives other routers."""
    with federation_of(tmp_path, "law", "art") as federation:
        law, art = federation.members.values()
        body, options = federation.body(), PAPER.solve
        federation.contribute(body)
        without = routers(federation.solve(options=options))
        further = written(tmp_path / "further", *honest(federation.server, law, body, first=10))
        sent = send(law, further)
        both = routers(federation.solve(options=options))
        with pytest.raises(CoordinatorError, match="no contribution"):
            art.client.withdraw_contribution(sent.digest)
        assert law.client.withdraw_contribution(sent.digest).active is False
        assert law.client.withdraw_contribution(sent.digest).withdrawn is not None
        assert routers(federation.solve(options=options)) == without != both
        again = send(law, further)
        assert (again.digest, again.active, again.withdrawn) == (sent.digest, True, None)
        assert routers(federation.solve(options=options)) == both


def test_law_5_a_leaver_leaves_no_trace_in_the_next_version(tmp_path: Path) -> None:
    """Without anybody else's work; cards of earlier versions say so, and joining again gives the version before."""

    def joined(federation: Federation, *domains: str) -> Version:
        federation.contribute(federation.body(), *domains)
        federation.contribute_heads(*domains)
        return federation.solve()

    whole, alone = (federation_of(tmp_path / name) for name in ("whole", "alone"))
    with whole as federation, alone as fresh:
        for place, domains in ((federation, ("law", "art", "code")), (fresh, ("law", "code"))):
            for domain in domains:
                place.add(domain, seed=1 + ("law", "art", "code").index(domain))
        first, expected = joined(federation), joined(fresh)
        sent = federation.operator.contributions()
        left = [row.digest for row in sent if row.active and row.domain != "art"]
        art = federation.members["art"]
        gone = federation.expert("art").digest
        assert "withdrawn" not in federation.get("/versions/1/card").raise_for_status().text
        assert art.client.withdraw_expert(gone).versions == [1]
        second = federation.solve()
        assert f"art (`{gone}`)" in federation.get("/versions/1/card").text
        assert "Contains withdrawn experts: art" in federation.moerge("version", "show", 1)
        assert [row.digest for row in federation.operator.contributions() if row.active] == left
        assert (second.lineage, second.contains_withdrawn) == (expected.lineage, [])
        assert files_of(second) == files_of(expected)
        assert art.register().state is ExpertState.READY
        again = joined(federation, "art")
    assert (again.lineage, files_of(again)) == (first.lineage, files_of(first))


@settings(max_examples=20, deadline=None)
@given(groups=groupings(), gone=st.sampled_from(DOMAINS))
def test_law_5_a_domain_that_is_left_out_leaves_no_trace(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Group], gone: str
) -> None:
    """Leaving a domain out of sums and head equals a new coordinator without it."""
    folder = tmp_path_factory.mktemp("left-out")
    left = [domain for domain in DOMAINS if domain != gone]
    remaining = [group for group in groups if group[0] != gone]
    fresh: list[Group] = [(domain, range(4)) for domain in left]
    assert solved(folder, remaining, left) == solved(folder, fresh, left)
