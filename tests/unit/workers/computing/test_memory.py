"""What doesn't fit is an error that says which setting to change, whoever finds out."""

import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ByteSize
from transformers import LlamaConfig

from moerge.errors import MoergeError
from moerge.statistics.memory import Free, free_bytes, need
from moerge.statistics.passes import Input, Pass, RouterPass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.actors import Slots
from moerge_workers.computing.memory import free_memory, require_gpus, room_of
from moerge_workers.settings import Settings
from support.models import expert


def large(folder: Path) -> RouterPass:
    """An 8B model's config; no weights are made."""
    sizes: dict[str, Any] = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    LlamaConfig(**sizes, vocab_size=128256, num_attention_heads=32, num_key_value_heads=8).save_pretrained(folder)
    return RouterPass(folder, folder, [0] * 32)


LAYER = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336 + 2 * 4096  # parameters
GRAM = 4096 * 4096
SHARD = 64 * 4096 * 4096  # numbers in its hidden states


def test_an_8b_model_needs_two_layers_a_gram_and_a_shard_s_hidden_states(tmp_path: Path) -> None:
    work, settings = large(tmp_path), StatisticsSettings()
    own = need(work, settings)
    assert own.weights == 2 * 4 * LAYER
    assert own.sums == 8 * GRAM // 2 + 8 * 4096 * 64  # blocks of 128 rows
    assert own.least == 4 * SHARD
    half = need(replace(work, precision="bfloat16"), settings.model_copy(update={"precision": "bfloat16"}))
    assert (half.weights, half.least) == (2 * 2 * LAYER, 2 * SHARD)
    assert need(TrunkPass(tmp_path, []), settings).sums == 3 * own.sums  # the last layer's, and the head's


def settings_of(work: Pass, **given: Any) -> Settings:
    return Settings(coordinator="", token="", domain="law", expert=work.expert, data=["a"], home=work.expert, **given)


@pytest.mark.parametrize("kind", [RouterPass, TrunkPass])
def test_half_of_what_nothing_else_needs_is_for_hidden_states_or_as_much_as_is_wished(
    tmp_path: Path, kind: type
) -> None:
    router = large(tmp_path)
    work = router if kind is RouterPass else TrunkPass(tmp_path, [])
    own = need(work, StatisticsSettings())
    taken = 3 * own.host() + own.journal
    settings = settings_of(work, slots=3)
    assert room_of(work, settings, Free(taken + 24 * own.least, None)).states == 4 * own.least
    assert room_of(work, settings, Free(taken + 6 * own.least, None)).states == own.least
    with pytest.raises(MoergeError, match=r"each of 3 slots needs .* this machine has"):
        room_of(work, settings, Free(taken + 6 * own.least - 1, None))
    wished = settings_of(work, slots=3, host_memory=ByteSize(3 * own.least))
    assert room_of(work, wished, Free(taken + 3 * own.least, None)).states == own.least
    with pytest.raises(MoergeError, match="--host-memory is"):
        room_of(work, wished, Free(taken + 3 * own.least - 1, None))
    assert room_of(work, wished, Free(None, None)).states == own.least


def test_on_gpus_weights_and_sums_are_in_their_memory(tmp_path: Path) -> None:
    work = replace(large(tmp_path), device="cuda")
    own, settings = need(work, StatisticsSettings()), settings_of(work, slots=2, device="cuda")
    host = 2 * 3 * own.integers + own.journal + 4 * own.least
    assert room_of(work, settings, Free(host, own.device())).states == own.least
    for free in (Free(host, own.device() - 1), Free(host - 1, own.device())):
        with pytest.raises(MoergeError, match="of GPU memory"):
            room_of(work, settings, free)


def test_what_can_t_fit_is_refused_with_the_settings_to_change(tmp_path: Path) -> None:
    work = large(tmp_path)
    with pytest.raises(MoergeError) as caught:
        room_of(work, settings_of(work, slots=2, host_memory=ByteSize(10**9)), Free(1, None))
    ways = (
        "--host-memory 8590MB",
        "--slots 1",
        "--precision bfloat16",
        "--batch-tokens 512",
        "--context",
        "--device cuda",
    )
    for way in ways:
        assert way in caught.value.todo
    with pytest.raises(MoergeError, match="--host-memory 4295MB or little more"):
        room_of(work, settings_of(work, host_memory=ByteSize(10**15)), Free(10**11, None))
    coarse = StatisticsSettings(precision="bfloat16")
    with pytest.raises(MoergeError) as caught:
        room_of(work, settings_of(work, statistics=coarse), Free(1, None))
    for way in ("--precision", "--slots", "--host-memory"):  # nothing is left to win with them
        assert way not in caught.value.todo


def test_of_a_cluster_the_nodes_memory_is_not_known_here(tmp_path: Path) -> None:
    work = large(tmp_path)
    settings = settings_of(work, ray_address="10.0.0.1:6379", host_memory=ByteSize(30 * 10**9))
    assert free_memory(settings).device is None
    assert room_of(work, settings, Free(1, None)).states == 30 * 10**9


def test_without_enough_gpus_torch_s_count_is_told(tmp_path: Path) -> None:
    work, gpus = large(tmp_path), torch.cuda.device_count()
    with pytest.raises(MoergeError, match=f"--device: .*torch finds {gpus or 'no'}"):
        require_gpus(settings_of(work, device="cuda", slots=10**6))
    require_gpus(settings_of(work, device="cuda", slots=10**6, ray_address="10.0.0.1:6379"))
    require_gpus(settings_of(work, slots=10**6))


def test_this_machine_tells_its_memory() -> None:
    free = free_bytes("cpu")
    assert free is None or 2**20 < free < 2**50


@pytest.mark.parametrize("end", ["refused", pytest.param("killed", marks=pytest.mark.slow)])
def test_the_probe_finds_an_actor_that_has_not_enough_before_any_window_is_given(tmp_path: Path, end: str) -> None:
    """A real actor that may have 64 MB more than it has at its start, or that the system kills when it takes more."""
    folder, said = expert(tmp_path / "expert", 1, intermediate_size=8192), list[str]()

    class Cramped(RouterPass):
        def inputs(self) -> list[list[Input]]:
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            lines = Path("/proc/self/status").read_text().splitlines()
            [has] = [1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:")]
            resource.setrlimit(resource.RLIMIT_DATA, (has + 2**26, has + 2**26))
            return super().inputs()

    settings = StatisticsSettings(batch_tokens=8192)  # 8192 tokens by 8192 float32 are 256 MB
    slots = Slots(None, 1, settings, said.append)
    with pytest.raises(MoergeError, match="each of 1 slots needs") as caught:
        slots.probe(Cramped(folder, folder, [0] * 3))
    assert "--batch-tokens 2048" in caught.value.todo
    assert caught.value.where == "memory"
    assert len([line for line in said if "still start" not in line]) == (3 if end == "killed" else 0)
