"""Law 3: a part of a version is what a coordinator with these experts alone publishes, to the byte."""

from pathlib import Path

import pytest

from moerge_proto.recipes import PAPER
from moerge_proto.versions import Version
from support.federation import Federation, federation_of

DOMAINS = "law", "art", "code"


def _files_of(version: Version) -> dict[str, str]:
    return {file.name: file.sha256 for file in version.files}


@pytest.mark.parametrize(("family", "stored"), [("llama", [True, False]), ("granite", [False])])
def test_a_part_is_the_version_of_a_coordinator_with_its_experts_alone(
    tmp_path: Path, family: str, stored: list[bool]
) -> None:
    """Under both recipes; a second reader of the same experts gets the same bytes, and no MLP file is written again.

    `stored`: law's MLPs are the version's file, code's are composed of it, as is the only file of fused ones.
    """
    places = (federation_of(tmp_path / name, family=family) for name in ("whole", "fresh"))
    with next(places) as whole, next(places) as fresh:
        for place, domains in ((whole, DOMAINS), (fresh, ("law", "code"))):
            for domain in domains:
                place.add(domain, seed=1 + DOMAINS.index(domain), family=family)
            place.contribute(place.body(), *domains)
            place.contribute_heads(*domains)
        whole.members["art"].client.grant("art", "nobody")
        for number, options in ((1, {}), (2, {"options": PAPER.solve, "head": "average"})):
            version, expected = whole.solve(**options), fresh.solve(**options)
            parts = [_part_for(whole, name, number) for name in ("anna", "ben")]
            assert parts[0] == parts[1]
            assert (parts[0].number, parts[0].lineage) == (number, expected.lineage)
            assert _files_of(parts[0]) == _files_of(expected) != _files_of(version)
            assert not any("expert" in file.name for file in parts[0].files if file.new)
            blobs = {path.name for path in (whole.server.home / "blobs").glob("??/*")}
            mlps = [file.sha256 in blobs for file in parts[0].files if "expert" in file.name]
            assert mlps == stored


def _part_for(federation: Federation, name: str, number: int) -> Version:
    token = federation.reader(name)
    with federation.server.client(token) as reader:
        return reader.version(reader.wait(reader.make_part(number)))
