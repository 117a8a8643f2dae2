"""Law 4: a contribution sent again is a no-op, a shard counts once, and `supersedes` swaps atomically."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from contract.conftest import House
from support.contributions import Contributor, Party, checked, kept, problem_of, register, upload, upload_expert
from support.models import expert

from moerge.errors import CoordinatorError
from moerge_proto.contributions import NewContribution
from moerge_proto.owners import NewOwner
from moerge_proto.problems import ProblemType

Ready = Callable[[], Contributor]


def _active(contributor: Contributor) -> dict[str, bool]:
    return {row.digest: row.active for row in contributor.party.client.contributions()}


def test_a_contribution_sent_again_changes_nothing_and_answers_the_same(
    house: House, settled: Contributor, tmp_path: Path
) -> None:
    first = settled.send(tmp_path, "again")
    before = kept(house.home)
    assert settled.send(tmp_path, "again") == first
    with_software = NewContribution(sha256=first.digest, software={"torch": "another"})
    assert settled.party.client.contribute(with_software) == first
    assert kept(house.home) == before


def test_a_contribution_sent_several_times_at_once_counts_once_and_stays(
    house: House, settled: Contributor, tmp_path: Path
) -> None:
    for turn in range(5):
        path = settled.written(tmp_path / "file", settled.manifest(f"at once {turn}"))
        message = {"sha256": upload(settled.party, path)}
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _, m=message: settled.party.post("/v1/contributions", m), range(6)))
        assert [answer.status_code for answer in answers] == [201] * 6, [answer.text for answer in answers]
        assert len({answer.text for answer in answers}) == 1
        assert (house.home / "blobs" / message["sha256"][:2] / message["sha256"]).read_bytes() == path.read_bytes()


def test_a_shard_that_counts_already_is_refused_and_nothing_changes(
    house: House, settled: Contributor, tmp_path: Path
) -> None:
    first = settled.send(tmp_path, "counted", "counted too")
    before, active = kept(house.home), _active(settled)
    path = settled.written(tmp_path / "overlap", settled.manifest("new", "counted"))
    answer = settled.party.post("/v1/contributions", {"sha256": upload(settled.party, path)})
    problem = problem_of(answer, ProblemType.DUPLICATE_SHARD, "manifest.shards")
    assert first.digest in problem.detail
    assert kept(house.home) == before
    assert _active(settled) == active
    assert settled.send(tmp_path, "new").active


def test_the_same_shard_name_of_another_domain_counts_for_itself(ready: Ready, tmp_path: Path) -> None:
    first, other = ready(), ready()
    shards = {"shards": ["5" * 64]}
    for each in (first, other):
        path = each.written(tmp_path / each.party.name, each.manifest(**shards))
        assert each.party.client.contribute(NewContribution(sha256=upload(each.party, path))).active


def test_supersedes_frees_the_shards_of_the_one_that_it_names_and_of_no_other(
    settled: Contributor, tmp_path: Path
) -> None:
    first = settled.send(tmp_path, "a", "b")
    third = settled.send(tmp_path, "c")
    with pytest.raises(CoordinatorError, match=third.digest):
        settled.send(tmp_path, "a", "c", supersedes=first.digest)
    active = _active(settled)
    assert active[first.digest]
    assert active[third.digest]
    second = settled.send(tmp_path, "a", "d", supersedes=first.digest)
    assert second.active
    assert not _active(settled)[first.digest]
    assert settled.send(tmp_path, "b").active  # nobody claims it any more
    with pytest.raises(CoordinatorError, match=second.digest):
        settled.send(tmp_path, "d", "e")


@pytest.mark.parametrize("which", ["unknown", "foreign", "superseded"])
def test_only_an_active_contribution_of_the_own_domain_can_be_superseded(
    house: House, settled: Contributor, ready: Ready, tmp_path: Path, which: str
) -> None:
    old = settled.send(tmp_path, f"{which} old")
    settled.send(tmp_path, f"{which} old", f"{which} newer", supersedes=old.digest)
    named = {"unknown": "6" * 64, "superseded": old.digest}.get(which) or ready().send(tmp_path).digest
    before, active = kept(house.home), _active(settled)
    path = settled.written(tmp_path / "next", settled.manifest(f"{which} next"))
    message = {"sha256": upload(settled.party, path), "supersedes": named}
    problem_of(settled.party.post("/v1/contributions", message), ProblemType.CONFLICT, "supersedes")
    assert kept(house.home) == before
    assert _active(settled) == active


def test_a_contribution_refused_for_its_supersedes_can_be_sent_without(settled: Contributor, tmp_path: Path) -> None:
    with pytest.raises(CoordinatorError):
        settled.send(tmp_path, "mended", supersedes="7" * 64)
    assert settled.send(tmp_path, "mended").active


def test_an_expert_registered_again_changes_nothing_and_answers_the_same(
    house: House, newcomer: Callable[..., Party], tmp_path: Path
) -> None:
    party, folder = newcomer(), expert(tmp_path / "expert", seed=50)
    first = register(party, folder)
    before = kept(house.home)
    assert register(party, folder) == first
    assert kept(house.home) == before


def test_an_expert_registered_several_times_at_once_is_there_once_and_stays(
    house: House, newcomer: Callable[..., Party], tmp_path: Path
) -> None:
    party, folder = newcomer(), expert(tmp_path / "expert", seed=51)
    message = upload_expert(party, folder)
    before = kept(house.home)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: party.post("/v1/experts", message.model_dump()), range(6)))
    assert [answer.status_code for answer in answers] == [202] * 6, [answer.text for answer in answers]
    row = checked(party.client, next(iter(party.client.experts())))
    assert row.state == "ready"
    assert {file.name: file.sha256 for file in row.files} == message.files
    for digest in message.files.values():
        assert (house.home / "blobs" / digest[:2] / digest).is_file()
    assert before != kept(house.home)


def test_an_owner_added_again_changes_nothing_and_other_domains_are_a_conflict(house: House) -> None:
    new = NewOwner(name="repeated", domains=["repeated-a", "repeated-b"])
    first = house.operator.add_owner(new)
    assert house.operator.add_owner(new) == first
    for conflict in (NewOwner(name="repeated", domains=["repeated-a"]), NewOwner(name="other", domains=["repeated-a"])):
        with pytest.raises(CoordinatorError) as refused:
            house.operator.add_owner(conflict)
        assert refused.value.type == ProblemType.CONFLICT.urn
    assert "other" not in [owner.name for owner in house.operator.owners()]
