"""What doesn't fit is an error that says which setting to change, whoever finds out."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ByteSize
from transformers import LlamaConfig

from moerge.errors import MoergeError
from moerge.memory.machine import Free
from moerge.models.dense_files import DenseFiles
from moerge.statistics.passes import Input, Pass, RouterPass, need_of
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.actors import Slots
from moerge_workers.computing.memory import free_memory, require_gpus, room_of
from moerge_workers.settings import Settings
from support.models import expert


def large(folder: Path) -> RouterPass:
    """An 8B model's config; no weights are made."""
    sizes: dict[str, Any] = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    LlamaConfig(**sizes, vocab_size=128256, num_attention_heads=32, num_key_value_heads=8).save_pretrained(folder)
    return RouterPass(DenseFiles(folder), DenseFiles(folder), [0] * 32)


def settings_of(work: Pass, **given: Any) -> Settings:
    folder = work.expert.folder
    return Settings(coordinator="", token="", domain="law", expert=folder, data=["a"], home=folder, **given)


def test_slots_share_the_host_memory_of_the_settings(tmp_path: Path) -> None:
    work = large(tmp_path)
    need, settings = need_of(work, StatisticsSettings()), settings_of(work, slots=3)
    free = Free(3 * need.in_host + need.journal + 24 * need.least, None)
    assert room_of(work, settings, free).states == 4 * need.least
    wanted = settings_of(work, slots=3, host_memory=ByteSize(6 * need.least))
    assert room_of(work, wanted, free).states == 2 * need.least


def test_a_pass_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    work = large(tmp_path)
    with pytest.raises(MoergeError, match="each of 2 slots needs") as caught:
        room_of(work, settings_of(work, slots=2, host_memory=ByteSize(10**9)), Free(1, None))
    assert "`slots` 1" in caught.value.todo


def test_of_a_cluster_the_nodes_memory_is_not_known_here(tmp_path: Path) -> None:
    work = large(tmp_path)
    settings = settings_of(work, ray_address="10.0.0.1:6379", host_memory=ByteSize(30 * 10**9))
    assert free_memory(settings).device is None
    assert room_of(work, settings, Free(1, None)).states == 30 * 10**9


def test_without_enough_gpus_torch_s_count_is_told(tmp_path: Path) -> None:
    work, gpus = large(tmp_path), torch.cuda.device_count()
    with pytest.raises(MoergeError, match=f"device: .*torch finds {gpus or 'no'}"):
        require_gpus(settings_of(work, device="cuda", slots=10**6))
    require_gpus(settings_of(work, device="cuda", slots=10**6, ray_address="10.0.0.1:6379"))
    require_gpus(settings_of(work, slots=10**6))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["refused", "killed"])
def test_probe_detects_insufficient_memory_before_any_window(tmp_path: Path, end: str) -> None:
    """A real actor that may have 64 MB more than it has at its start, or that the system kills when it takes more."""
    own, said = DenseFiles(expert(tmp_path / "expert", 1, intermediate_size=8192)), list[str]()

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
        slots.probe(Cramped(own, own, [0] * 3))
    assert "`batch_tokens` 2048" in caught.value.todo
    assert caught.value.where == "memory"
    assert len([line for line in said if "still start" not in line]) == (3 if end == "killed" else 0)
