"""The expert is registered if its owner lets it leave, and so are its parts for a body."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.filesize import decimal

from moerge.errors import CoordinatorError, MoergeError
from moerge.models.adapters import WEIGHTS
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert, dense_folder
from moerge.trunk.merge import DENSE_BODY_FILE
from moerge_proto.experts import Expert, ExpertState, NewExpert
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.signatures import SignedInput
from moerge_workers.contributing import expert, parts
from moerge_workers.contributing.context import Context
from moerge_workers.contributing.expert import KeptError
from moerge_workers.leaving.owner_key import join_request, signature
from support.models import adapter
from support.stages import NOW, MemoryClient, body, context_of


def test_it_is_sent_once_and_redistribution_follows_the_policy(folder: Path, home: Path, client: MemoryClient) -> None:
    for redistribute in (False, True):
        with context_of(folder, home, client, policy={"redistribute": redistribute}) as context:
            expert.run(context)
        assert client.known[context.expert.digest].redistribute is redistribute
    assert len({path.name for path in client.uploaded}) == len(client.uploaded)


def test_a_known_expert_is_signed_once_its_owner_has_a_key(folder: Path, home: Path, client: MemoryClient) -> None:
    signed = []
    for _ in range(2):
        with context_of(folder, home, client) as context:
            expert.run(context)
        signed.append(client.known[context.expert.digest].signature)
        join_request(home / f"{context.expert.owner}.pem", context.expert.owner, ["law"])
    known, own = client.known[context.expert.digest], context.expert
    facts = SignedInput(kind="expert", owner=own.owner, domain="law", body=None, digest=own.digest)
    assert signed == [None, signature(home, facts)] == [None, known.signature]


def test_law_1_without_an_answer_or_in_a_dry_run_it_stays(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, policy={"mode": "ask"}) as context, pytest.raises(KeptError):
        expert.run(context)
    with context_of(folder, home, client, dry_run=True) as context:
        expert.run(context)  # so that the later stages can be shown
    with (
        context_of(folder, home, client, policy={"expert_weights": False}) as context,
        pytest.raises(MoergeError, match="the policy forbids sending expert weights"),
    ):
        expert.run(context)
    assert (client.uploaded, client.known) == ([], {})


class _OtherBits(MemoryClient):
    """A coordinator that merges adapters to other bytes."""

    def register_expert(self, new: NewExpert) -> Expert:
        row = super().register_expert(new)
        if new.adapter is not None:
            problem = Problem.of(ProblemType.WRONG_DIGEST, "other bytes")
            row = row.model_copy(update={"state": ExpertState.REFUSED, "problem": problem, "family": ""})
            self.known[row.digest] = row
        return row


def test_history_records_bytes_of_adapter_then_whole_expert(
    folder: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = _OtherBits(folder / DENSE_BODY_FILE)
    lora = adapter(home / "lora", folder / "expert", seed=3)
    with context_of(folder, home, client) as given:
        own = replace(given.expert, folder=dense_folder(DenseFiles(lora), home / "expert"), adapter=lora)
        expert.run(replace(given, expert=own))
        sent = {sending.item.about: (sending.item.bytes, sending.became) for sending in given.outbox.history.sendings()}
    whole = sum(path.stat().st_size for path in own.folder.iterdir())
    assert sent["law: adapter, 1 file"] == ((lora / WEIGHTS).stat().st_size, "arrived")
    assert sent[f"law: expert, {len(own.files)} files"] == (whole, "arrived")
    assert "or merges it to other bytes, so the whole expert leaves" in capsys.readouterr().err


class _NoBase(MemoryClient):
    """A coordinator without the bases of adapters."""

    def check_expert(self, expert: NewExpert) -> None:
        if expert.adapter is not None:
            raise CoordinatorError(Problem.of(ProblemType.NOT_FOUND, "no such base", field="adapter.base"))


def test_without_its_base_the_whole_expert_leaves(folder: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = _NoBase(folder / DENSE_BODY_FILE)
    lora = adapter(home / "lora", folder / "expert", seed=3)
    with context_of(folder, home, client) as given:
        own = replace(given.expert, folder=dense_folder(DenseFiles(lora), home / "expert"), adapter=lora)
        expert.run(replace(given, expert=own))
    assert client.known[own.digest].adapter is None
    assert lora / WEIGHTS not in client.uploaded
    assert f"the adapter alone has {decimal((lora / WEIGHTS).stat().st_size)}" in capsys.readouterr().err


def fit(context: Context, client: MemoryClient) -> DenseExpert | None:
    weights = context.settings.home / "bodies" / "body" / DENSE_BODY_FILE
    if not weights.is_file():
        client.download("", [], weights.parent, context.events, title="")
    return parts.run(context, body(), DenseBody(weights, context.expert.config))


def test_fitted_mlps_replace_the_expert_unless_refused(folder: Path, home: Path, client: MemoryClient) -> None:
    ask = {"mode": "ask", "min_documents": 5, "min_tokens": 1}
    with context_of(folder, home, client, policy=ask, fit=True) as context:
        assert fit(context, client) is None
        [item] = context.outbox.history.asked()
        context.outbox.history.note(item, "refused")
        assert fit(context, client) is context.expert
        assert client.known == {}
        context.outbox.history.note(item, "approved")
        result = fit(context, client)
        assert result is not None
        assert client.known[result.digest].dense == context.expert.digest
        gone = {"state": ExpertState.WITHDRAWN, "withdrawn": NOW}
        client.known[result.digest] = client.known[result.digest].model_copy(update=gone)
        assert fit(context, client) is context.expert


def test_with_too_little_text_the_expert_stays_as_it_is(folder: Path, home: Path, client: MemoryClient) -> None:
    with context_of(folder, home, client, policy={"min_documents": 100}, fit=True) as context:
        assert fit(context, client) is context.expert
    assert client.uploaded == []
