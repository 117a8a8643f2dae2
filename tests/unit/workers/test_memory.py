"""What doesn't fit is an error that says which setting to change, whoever finds out."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from moerge.errors import MoergeError
from moerge.statistics.passes import Compute, RouterPass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.actors import Slots
from moerge_workers.memory import free_bytes, need, require_room
from support.models import expert


def large(folder: Path) -> RouterPass:
    """An 8B model's config; no weights are made."""
    sizes: dict[str, Any] = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    LlamaConfig(**sizes, vocab_size=128256, num_attention_heads=32, num_key_value_heads=8).save_pretrained(folder)
    return RouterPass(folder, folder, [0] * 32)


def test_an_8b_model_needs_its_weights_and_layers_times_hidden_squared_float64(tmp_path: Path) -> None:
    work, settings = large(tmp_path), StatisticsSettings()
    assert need(work, settings).weights == pytest.approx(4 * 8.03e9, rel=0.01)
    assert need(work, settings).sums == 8 * 32 * (4096 * 4096 + 4096)
    assert need(work, settings.model_copy(update={"precision": "bfloat16"})).weights == pytest.approx(
        2 * 8.03e9, rel=0.01
    )
    assert need(TrunkPass(tmp_path, [0] * 65), settings).sums == 8 * 65 * (4096 * 4096 + 4096)


def test_what_can_t_fit_is_refused_with_the_settings_to_change(tmp_path: Path) -> None:
    work, settings = large(tmp_path), StatisticsSettings()
    one = need(work, settings).total
    require_room(work, settings, 2, 2 * one)
    require_room(work, settings, 2, None)
    with pytest.raises(MoergeError, match=r"each of 2 slots takes at least .* this machine has") as caught:
        require_room(work, settings, 2, 2 * one - 1)
    for way in ("--slots 1", "--precision bfloat16", "--batch-tokens 512", "--context", "--device cuda"):
        assert way in caught.value.todo
    with pytest.raises(MoergeError) as caught:
        require_room(work, settings.model_copy(update={"precision": "bfloat16"}), 1, 1)
    assert "--precision" not in caught.value.todo
    assert "--slots" not in caught.value.todo


def test_this_machine_tells_its_memory() -> None:
    free = free_bytes("cpu")
    assert free is None or 2**20 < free < 2**50


@pytest.mark.parametrize("end", ["refused", pytest.param("killed", marks=pytest.mark.slow)])
def test_the_probe_finds_an_actor_that_has_not_enough_before_any_shard_is_given(tmp_path: Path, end: str) -> None:
    """A real actor that may have 64 MB more than the model takes, or that the system kills when it takes more."""
    folder, said = expert(tmp_path / "expert", 1, intermediate_size=8192), list[str]()

    class Cramped(RouterPass):
        def load(self) -> Compute:
            compute = super().load()
            if end == "killed":
                return lambda batches, documents: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[return-value]
            lines = Path("/proc/self/status").read_text().splitlines()
            [has] = [1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:")]
            resource.setrlimit(resource.RLIMIT_DATA, (has + 2**26, has + 2**26))
            return compute

    settings = StatisticsSettings(batch_tokens=8192)  # 8192 tokens by 8192 float32 are 256 MB
    slots = Slots(None, 1, Cramped(folder, folder, [0] * 3), settings, said.append)
    with pytest.raises(MoergeError, match="each of 1 slots takes at least") as caught:
        slots.probe()
    assert "--batch-tokens 2048" in caught.value.todo
    assert caught.value.where == "memory"
    assert len(said) == (3 if end == "killed" else 0)
