"""A worker with a privacy budget: what leaves has noise, and no document's budget is exceeded."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from moerge.errors import MoergeError
from moerge.noise.accountant import rho_of
from moerge_proto.bodies import Body
from moerge_proto.contributions import Contribution
from moerge_proto.statistics_file import RouterManifest, StatisticsFile
from moerge_workers.noise.finishing import Noise
from moerge_workers.outgoing.ledger import Ledger, Sent, spending, spent_file
from moerge_workers.policy import PrivacyBudget
from support.models import texts
from support.stages import POLICY, MemoryClient, another, contributed, run_of

BUDGET = {"epsilon": 2.0, "delta": 1e-6}
TWICE = {**BUDGET, "contributions": 2}


def ran(
    folder: Path, home: Path, client: MemoryClient, under: Body | None = None, **settings: Any
) -> list[Contribution]:
    """One run under a body, by default the coordinator's."""
    client.current = under or client.current
    return contributed(folder, home, client, **settings)


def ran_elsewhere(
    folder: Path, home: Path, client: MemoryClient, number: int = 1, **settings: Any
) -> list[Contribution]:
    """One run under the body of another seed."""
    return ran(folder, home, client, another(home, number), seed=home / f"seed-{number}", **settings)


def manifest_of(path: Path) -> RouterManifest:
    with StatisticsFile(path) as file:
        assert isinstance(file.manifest, RouterManifest)
        return file.manifest


def spent(home: Path, budget: dict[str, Any]) -> tuple[int, int]:
    whole = Noise(PrivacyBudget.model_validate(budget))
    return spending(spent_file(home), whole.cost, whole.most)


def test_new_documents_alone_pay_and_leave(folder: Path, home: Path, client: MemoryClient) -> None:
    assert spent(home, BUDGET) == (0, 0)
    [first] = ran(folder, home, client, privacy=BUDGET)
    manifest = manifest_of(client.uploaded[-1])
    assert manifest.settings.privacy == Noise(PrivacyBudget.model_validate(BUDGET)).privacy
    assert manifest.tokens == manifest.documents * (manifest.settings.tokens_per_document or 0)
    assert spent(home, BUDGET) == (manifest.documents, manifest.documents)
    assert {path.suffix for path in (home / "contributions").iterdir()} == {".sqlite", ".safetensors"}
    assert ran(folder, home, client, privacy=BUDGET) == [first]
    texts(home / "texts.jsonl", 1, 60)
    _, second = ran(folder, home, client, privacy=BUDGET)
    assert second.documents == 60 - first.documents
    assert spent(home, BUDGET) == (60, 60)


def test_a_spent_budget_is_refused_before_a_pass(folder: Path, home: Path, client: MemoryClient) -> None:
    ran(folder, home, client, privacy=TWICE)
    assert spent(home, TWICE) == (40, 0)
    ran_elsewhere(folder, home, client, privacy=TWICE)
    assert spent(home, TWICE) == (40, 40)
    sent = len(client.uploaded)
    with pytest.raises(MoergeError, match="40 documents have spent their privacy budget, epsilon 2") as caught:
        ran_elsewhere(folder, home, client, 2, privacy=TWICE)
    assert caught.value.where == "[privacy]"
    assert len(client.uploaded) == sent
    assert not list((home / "contributions").glob("*.part"))


def test_the_contributions_of_a_budget_cost_no_more_than_it() -> None:
    for contributions in (1, 3, 10):
        noise = Noise(PrivacyBudget.model_validate({**BUDGET, "contributions": contributions}))
        assert contributions * noise.cost <= noise.most
        assert contributions * noise.cost == pytest.approx(rho_of(2.0, 1e-6))


def test_sums_without_noise_exclude_a_budget(folder: Path, home: Path, client: MemoryClient) -> None:
    ran(folder, home, client)
    with pytest.raises(MoergeError, match="were sent without noise"):
        ran_elsewhere(folder, home, client, privacy=BUDGET)
    [last] = (home / "contributions").glob("*.last.sqlite")
    last.rename(last.with_name("0.last.sqlite"))  # as if it were another domain's
    with pytest.raises(MoergeError, match="were sent without noise"):
        ran_elsewhere(folder, home, client, privacy=BUDGET)


def test_an_older_copy_of_what_was_spent_is_refused(folder: Path, home: Path, client: MemoryClient) -> None:
    ran(folder, home, client, privacy=TWICE)
    older = spent_file(home).read_bytes()
    ran_elsewhere(folder, home, client, privacy=TWICE)
    spent_file(home).write_bytes(older)
    with pytest.raises(MoergeError, match="lacks the cost of a contribution"):
        ran_elsewhere(folder, home, client, privacy=TWICE)


def test_policy_and_progress_take_documents_as_equally_long(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    """The tokens of the documents would tell of their lengths, by a refusal or by the seconds that are left."""
    given: dict[str, Any] = {"privacy": BUDGET, "statistics": {"context": 64}}
    with run_of(folder, home, client, policy={**POLICY, "min_tokens": 40 * 64}, **given) as run:
        run.documents.look(run.expert, run.statistics.finishing)
        [sent] = run.contribute(body)
        assert run.documents.events.status.state.tokens == sent.tokens == 40 * 64
    given["policy"] = {**POLICY, "min_tokens": 40 * 64 + 1}
    with run_of(folder, home, client, **given) as run, pytest.raises(MoergeError, match="too little data"):
        run.documents.look(run.expert, run.statistics.finishing)


def test_a_budget_excludes_sums_without_noise(folder: Path, home: Path, client: MemoryClient) -> None:
    ran(folder, home, client, privacy=BUDGET, dry_run=True)
    ran(folder, home, client, dry_run=True)  # nothing was spent
    ran(folder, home, client, privacy=BUDGET)
    with pytest.raises(MoergeError, match="without noise would exceed"):
        ran(folder, home, client)


def test_noise_is_drawn_once_for_a_file_that_waits_for_the_owner(
    folder: Path, home: Path, client: MemoryClient
) -> None:
    asked = set()
    for _ in range(2):
        assert ran(folder, home, client, privacy=BUDGET, policy={**POLICY, "mode": "ask"}) == []
        [file] = (home / "contributions").glob("*.safetensors")
        asked.add(file.read_bytes())
        assert not list((home / "contributions").glob("*.exact"))
        file.with_suffix(".exact").touch()  # as a kill leaves it
    assert len(asked) == 1
    assert spent(home, BUDGET) == (0, 0)


def test_copies_of_a_document_count_once(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "a.sqlite", spent=tmp_path / "spent.sqlite")) as ledger:
        for documents in ([b"a", b"a", b"b"], [b"a", b"b", b"b"]):
            ledger.begin()
            wanted = [mac for mac in documents if ledger.see(mac)]
            assert wanted == ([] if ledger.files() else [b"a", b"b"])
            if wanted:
                ledger.send(Sent("1", "0" * 64, 2, 2, "0" * 64), "how", replace=False, cost=0.5)
    assert spending(tmp_path / "spent.sqlite", 0.5, 0.9) == (2, 2)


@pytest.mark.parametrize("changed", [{"delta": 0.1}, {"epsilon": 0}, {"budget": 1}])
def test_other_promises_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PrivacyBudget.model_validate({**BUDGET, **changed})
