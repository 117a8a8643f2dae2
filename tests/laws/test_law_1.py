"""Law 1: outgoing data is a closed list without text, token ids or hidden states."""

import json
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.documents.shards import plan, shard_name
from moerge.errors import MoergeError
from moerge.fits.parts import write_parts
from moerge.models.dense_files import DenseFiles
from moerge.models.families.family import EMBEDDING, FINAL_NORM, HEAD
from moerge.models.tokens import Tokens, all_counted
from moerge_proto.evaluations import NewEvaluation, Perplexity, Scored, TaskResult
from moerge_proto.experts import Parts
from moerge_proto.masks import MaskedPart
from moerge_proto.progress import Obstacle, Progress
from moerge_proto.statistics_file import HeadManifest, Privacy, RouterManifest, StatisticsSettings
from moerge_workers.data.documents import read_key
from moerge_workers.outgoing.history import Decision, History
from moerge_workers.policy import Kind
from support.models import expert, tokenizer
from support.outbox import item_of, outbox_of

SWITCHES: dict[Kind, str] = {
    "expert": "expert_weights",
    "head": "head_contributions",
    "router": "router_contributions",
    "evaluation": "evaluation_sums",
    "task": "task_results",
}


def test_law_1_outgoing_messages_have_only_the_listed_fields() -> None:
    """A new field is new outgoing data: it first needs a row in docs/outgoing.md and the owner's switch."""
    assert set(RouterManifest.model_fields) == {
        "format", "kind", "owner", "expert", "domain", "body", "split", "settings", "hidden_size", "layers",
        "exponents", "tokens", "documents", "shards", "keepers",
    }  # fmt: skip
    assert set(HeadManifest.model_fields) == {"body", "keepers"} ^ set(RouterManifest.model_fields)
    assert set(Parts.model_fields) == {"expert", "body", "fitted", "own_head"}
    assert set(NewEvaluation.model_fields) == {"number", "part", "scores"}
    assert set(Perplexity.model_fields) == {
        "kind", "domain", "expert", "documents", "context", "stride", "dense", "version", "oracle", "routed",
        "software",
    }  # fmt: skip
    assert set(Scored.model_fields) == {"nll", "tokens"}
    assert set(TaskResult.model_fields) == {
        "kind", "task", "metric", "value", "higher_is_better", "standard_error", "questions", "task_version", "limit",
        "seed", "data", "harness",
    }  # fmt: skip
    assert set(Progress.model_fields) == {
        "domain", "stage", "shards_done", "shards_total", "tokens_per_second", "seconds_left", "obstacle",
    }  # fmt: skip
    words = ["body-refused", "version-altered", "log-differs", "asks-owner", "owner-refused"]
    assert set(Obstacle) == {*words}
    assert set(StatisticsSettings.model_fields) == {
        "tokens_per_document",
        "context",
        "batch_tokens",
        "precision",
        "before",
        "privacy",
    }
    assert set(Privacy.model_fields) == {"epsilon", "delta", "sums", "public"}
    assert set(MaskedPart.model_fields) == {
        "owner", "domain", "body", "contribution", "hidden_size", "layers", "seals",
    }  # fmt: skip


def test_law_1_shard_names_tell_nothing_without_the_owner_s_key(tmp_path: Path) -> None:
    keys = [read_key(tmp_path / name) for name in ("one", "other")]
    names = [shard_name(key, [Tokens([1, 2, 3])]) for key in keys]
    assert names[0] != names[1]
    assert names[0] == shard_name(read_key(tmp_path / "one"), [Tokens([1, 2, 3])])
    assert (tmp_path / "one" / "key").stat().st_mode & 0o777 == 0o600


def test_law_1_equal_tokens_in_other_rows_have_another_name() -> None:
    assert shard_name(b"k", all_counted([[1, 2], [3]])) != shard_name(b"k", all_counted([[1], [2, 3]]))


def test_law_1_nothing_of_a_text_stands_in_the_plan_s_names() -> None:
    encode = tokenizer()
    text = "the patient has a fever"
    [shard] = plan([text], lambda item: Tokens(encode(item)["input_ids"]), StatisticsSettings(), 1, b"key")
    assert len(shard.name) == 64
    assert text not in json.dumps(shard.name)


@pytest.mark.parametrize("tied", [False, True])
def test_law_1_parts_have_neither_attention_nor_embedding(tmp_path: Path, tied: bool) -> None:
    """The head of a tied expert is its embedding, so that its rows leave as a head."""
    own = DenseFiles(expert(tmp_path / "expert", 1, tie_word_embeddings=tied))
    parts = DenseFiles(write_parts(own, tmp_path / "parts"))
    outside = [name for name in parts.checkpoint.specs if ".mlp." not in name]
    assert sorted(outside) == [HEAD, FINAL_NORM]
    assert torch.equal(parts.checkpoint.tensor(HEAD), own.checkpoint.tensor(EMBEDDING if tied else HEAD))
    assert not parts.config.tie_word_embeddings


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("law"), seed=1)


@given(
    kind=st.sampled_from(get_args(Kind)),
    off=st.sets(st.sampled_from(list(SWITCHES.values()))),
    dry_run=st.booleans(),
    decision=st.sampled_from([None, "approved", "refused"]),
)
@settings(max_examples=60, deadline=None)
def test_law_1_nothing_is_sent_when_off_refused_or_in_dry_run(
    tmp_path_factory: pytest.TempPathFactory,
    law: Path,
    kind: Kind,
    off: set[str],
    dry_run: bool,
    decision: Decision | None,
) -> None:
    switch = SWITCHES[kind]
    with closing(History(tmp_path_factory.mktemp("home"))) as history:
        policy = {entry: entry not in off for entry in SWITCHES.values()}
        outbox = outbox_of(history, law, dry_run=dry_run, **policy)
        item = item_of("expert" if dry_run else kind, law)
        switch = "expert_weights" if dry_run else switch
        if decision is not None:
            history.note(item, decision)
        may = switch not in off and not dry_run and decision != "refused"
        assert outbox.may_leave(item) is may
        if switch in off or dry_run:
            with pytest.raises(MoergeError), outbox.sending(item):
                raise AssertionError("it left")
            assert not history.sendings()
