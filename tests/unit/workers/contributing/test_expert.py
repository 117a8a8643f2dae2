"""The expert is registered if its owner lets it leave, and so is the one fitted to a trunk."""

from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.models.expert_folder import DenseExpert
from moerge.trunk.merge import DENSE_TRUNK_FILE
from moerge_proto.experts import ExpertState
from moerge_workers.contributing import expert, fitted
from moerge_workers.contributing.context import Context
from support.stages import NOW, MemoryClient, context_of, trunk


def test_it_is_sent_once_and_redistribution_follows_the_policy(folder: Path, home: Path, client: MemoryClient) -> None:
    for redistribute in (False, True):
        with context_of(folder, home, client, policy={"redistribute": redistribute}) as context:
            assert expert.run(context)
        assert client.known[context.expert.digest].redistribute is redistribute
    assert len({path.name for path in client.uploaded}) == len(client.uploaded)


def test_law_1_without_an_answer_or_in_a_dry_run_it_stays(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, policy={"mode": "ask"}) as context:
        assert not expert.run(context)
    with context_of(folder, home, client, dry_run=True) as context:
        assert expert.run(context)  # so that the later stages can be shown
    with (
        context_of(folder, home, client, policy={"expert_weights": False}) as context,
        pytest.raises(MoergeError, match="the policy forbids sending expert weights"),
    ):
        expert.run(context)
    assert (client.uploaded, client.known) == ([], {})


def fit(context: Context, client: MemoryClient) -> DenseExpert | None:
    weights = context.settings.home / "trunks" / "trunk" / DENSE_TRUNK_FILE
    if not weights.is_file():
        client.download("", [], weights.parent, context.events, title="")
    return fitted.run(context, trunk(), weights)


def test_a_fitted_expert_takes_the_expert_s_place_unless_it_may_not(
    folder: Path, home: Path, client: MemoryClient
) -> None:
    ask = {"mode": "ask", "min_documents": 5, "min_tokens": 1}
    with context_of(folder, home, client, policy=ask) as context:
        assert fit(context, client) is None
        [item] = context.outbox.history.asked()
        context.outbox.history.note(item, "refused")
        assert fit(context, client) is context.expert
        assert client.known == {}
        context.outbox.history.note(item, "approved")
        found = fit(context, client)
        assert found is not None
        assert found.trained is context.expert
        assert client.known[found.digest].trained == context.expert.digest
        gone = {"state": ExpertState.WITHDRAWN, "withdrawn": NOW}
        client.known[found.digest] = client.known[found.digest].model_copy(update=gone)
        assert fit(context, client) is context.expert


def test_with_too_little_text_the_expert_stays_as_it_is(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, policy={"min_documents": 100}) as context:
        assert fit(context, client) is context.expert
    assert client.uploaded == []
