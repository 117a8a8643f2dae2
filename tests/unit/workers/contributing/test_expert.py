"""The expert's parts are registered if its owner lets them leave."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.filesize import decimal

from moerge.client.register import WithdrawnError
from moerge.errors import CoordinatorError, MoergeError
from moerge.models.adapters import WEIGHTS
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import dense_folder
from moerge_proto.bodies import Body
from moerge_proto.experts import Expert, ExpertState, NewExpert
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.signatures import SignedInput
from moerge_workers.contributing.expert import KeptError
from moerge_workers.outgoing.owner_key import join_request, signature
from support.models import adapter
from support.stages import NOW, MemoryClient, run_of


def test_they_are_sent_once_and_redistribution_follows_the_policy(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    for redistribute in (False, True):
        with run_of(folder, home, client, policy={"redistribute": redistribute}) as run:
            run.register(body)
        [known] = client.known.values()
        assert known.redistribute is redistribute
    assert len({path.name for path in client.uploaded}) == len(client.uploaded)


def test_known_parts_are_signed_once_their_owner_has_a_key(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    signed = []
    for _ in range(2):
        with run_of(folder, home, client) as run:
            digest = run.register(body).digest
        signed.append(client.known[digest].signature)
        join_request(home / "owner.pem", "owner", ["law"])
    facts = SignedInput(kind="expert", owner="owner", domain="law", body=body.digest, digest=digest)
    assert signed == [None, signature(home, facts)] == [None, client.known[digest].signature]


def test_law_1_without_an_answer_or_in_a_dry_run_they_stay(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    with run_of(folder, home, client, policy={"mode": "ask"}) as run, pytest.raises(KeptError):
        run.register(body)
    with run_of(folder, home, client, dry_run=True) as run:
        run.register(body)  # so that the later stages can be shown
    with (
        run_of(folder, home, client, policy={"expert_weights": False}) as run,
        pytest.raises(MoergeError, match="the policy forbids sending expert weights"),
    ):
        run.register(body)
    assert (client.uploaded, client.known) == ([], {})


def test_withdrawn_parts_join_again_only_if_it_is_set(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    with run_of(folder, home, client) as run:
        digest = run.register(body).digest
        gone = {"state": ExpertState.WITHDRAWN, "withdrawn": NOW}
        client.known[digest] = client.known[digest].model_copy(update=gone)
        with pytest.raises(WithdrawnError, match="withdrawn 2026-01-01"):
            run.register(body)
    with run_of(folder, home, client, rejoin=True) as run:
        run.register(body)
    assert client.known[digest].state is ExpertState.READY


class _OtherBits(MemoryClient):
    """A coordinator that merges adapters to other bytes."""

    def register_expert(self, new: NewExpert) -> Expert:
        row = super().register_expert(new)
        if new.adapter is not None:
            problem = Problem.of(ProblemType.WRONG_DIGEST, "other bytes")
            row = row.model_copy(update={"state": ExpertState.REFUSED, "problem": problem, "family": ""})
            self.known[row.digest] = row
        return row


class _NoBase(MemoryClient):
    """A coordinator that merges no adapters."""

    def check_expert(self, expert: NewExpert) -> None:
        if expert.adapter is not None:
            raise CoordinatorError(Problem.of(ProblemType.NOT_FOUND, "no such base", field="adapter.base"))


@pytest.mark.parametrize("kind", [_OtherBits, _NoBase])
def test_where_an_adapter_does_not_serve_the_merged_mlps_leave(
    folder: Path, home: Path, body: Body, kind: type[MemoryClient], capsys: pytest.CaptureFixture[str]
) -> None:
    client = kind(body)
    lora = adapter(home / "lora", folder / "seed", 3, "up_proj", "down_proj")
    with run_of(folder, home, client, fit=None) as given:
        own = replace(given.expert, folder=dense_folder(DenseFiles(lora), home / "expert"), adapter=lora)
        made = given.of(own).register(body)
        sendings = given.history.sendings()
    sent = {sending.item.about: (sending.item.bytes, sending.became) for sending in sendings}
    size, under = (lora / WEIGHTS).stat().st_size, f"for body {body.digest[:12]}"
    whole = sum(path.stat().st_size for path in made.folder.iterdir())
    assert sent[f"law: MLPs {under}, {len(made.files)} files"] == (whole, "arrived")
    assert sent.get(f"law: adapter {under}, 1 file") == ((size, "arrived") if kind is _OtherBits else None)
    assert (lora / WEIGHTS in client.uploaded) == (kind is _OtherBits)
    assert client.known[made.digest].adapter is None
    assert f"and not the adapter, {decimal(size)}" in " ".join(capsys.readouterr().err.split())


def test_with_too_little_text_the_mlps_stay_as_they_are(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    with run_of(folder, home, client, policy={"min_documents": 100}, fit=True) as run:
        run.register(body)
    [known] = client.known.values()
    assert not known.parts.fitted
