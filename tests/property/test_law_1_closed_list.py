"""Law 1: what leaves is a closed list; no text, token id or hidden state is on it."""

import json
from pathlib import Path

from moerge_proto.statistics_file import RouterManifest, StatisticsSettings, TrunkManifest
from moerge_workers.identity import read_key, shard_name
from moerge_workers.shards import plan
from support.models import tokenizer


def test_law_1_a_manifest_has_these_fields_and_no_others() -> None:
    """A new field is a new thing that leaves: it needs the README's table and the owner's switch first."""
    assert set(RouterManifest.model_fields) == {
        "format", "kind", "owner", "expert", "domain", "trunk", "split", "settings", "hidden_size", "layers",
        "exponents", "tokens", "documents", "shards",
    }  # fmt: skip
    both = {"trunk"} ^ set(RouterManifest.model_fields)
    assert set(TrunkManifest.model_fields) == both | {"attention_size", "vocab_size", "rare_below"}
    assert set(StatisticsSettings.model_fields) == {"tokens_per_document", "context", "batch_tokens", "precision"}


def test_law_1_shard_names_tell_nothing_without_the_owner_s_key(tmp_path: Path) -> None:
    keys = [read_key(tmp_path / name) for name in ("one", "other")]
    names = [shard_name(key, [[1, 2, 3]]) for key in keys]
    assert names[0] != names[1]
    assert names[0] == shard_name(read_key(tmp_path / "one"), [[1, 2, 3]])
    assert (tmp_path / "one" / "key").stat().st_mode & 0o777 == 0o600


def test_law_1_equal_tokens_in_other_rows_have_another_name() -> None:
    assert shard_name(b"k", [[1, 2], [3]]) != shard_name(b"k", [[1], [2, 3]])


def test_law_1_nothing_of_a_text_stands_in_the_plan_s_names() -> None:
    encode = tokenizer()
    text = "the patient has a fever"
    settings = StatisticsSettings()
    [shard] = plan([text], lambda each: encode(each)["input_ids"], settings, 1, b"key")
    assert len(shard.name) == 64
    assert text not in json.dumps(shard.name)
