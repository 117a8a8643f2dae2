"""What doesn't fit is an error that says which setting to change, whoever finds out."""

import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from moerge.errors import MoergeError
from moerge.statistics.memory import Free, free_bytes, need, too_large
from moerge.statistics.passes import Compute, RouterPass, TrunkPass, described
from moerge_proto.statistics_file import StatisticsSettings
from moerge_workers.computing.actors import Slots
from moerge_workers.computing.memory import free_memory, require_gpus, that_fit
from moerge_workers.settings import Settings
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


def settings_of(work: RouterPass | TrunkPass, **given: Any) -> Settings:
    return Settings(coordinator="", token="", domain="law", expert=work.expert, data=["a"], home=work.expert, **given)


def test_what_can_t_fit_is_refused_with_the_settings_to_change(tmp_path: Path) -> None:
    work = large(tmp_path)
    settings = settings_of(work, slots=2, layer_groups=1)
    own = need(work, settings.statistics)
    asked = 2 * own.total + own.journal
    assert that_fit(work, settings, Free(asked, asked)) == [work]
    assert that_fit(work, settings, Free(None, None)) == [work]
    with pytest.raises(MoergeError, match=r"each of 2 slots needs at least .* this machine has") as caught:
        that_fit(work, settings, Free(asked - 1, asked - 1))
    ways = "--layer-groups 2", "--slots 1", "--precision bfloat16", "--batch-tokens 512", "--context", "--device cuda"
    for way in ways:
        assert way in caught.value.todo
    coarse = StatisticsSettings(precision="bfloat16")
    with pytest.raises(MoergeError) as caught:
        that_fit(work, settings_of(work, statistics=coarse), Free(1, 1))
    for way in ("--precision", "--slots", "--layer-groups"):  # nothing is left to win with them
        assert way not in caught.value.todo
    with pytest.raises(MoergeError, match="33 groups for 32 layers") as caught:
        that_fit(work, settings_of(work, layer_groups=33), Free(None, None))
    assert caught.value.where == "--layer-groups"
    assert "--layer-groups 16" in too_large("", replace(work, layers=range(28, 32)), coarse, 1).todo


@pytest.mark.parametrize(("slots", "device"), [(3, "cpu"), (4, "cuda")])
@pytest.mark.parametrize("kind", [RouterPass, TrunkPass])
def test_the_fewest_layer_groups_that_fit_are_chosen_and_the_journal_counts(
    tmp_path: Path, kind: type, slots: int, device: str
) -> None:
    router = replace(large(tmp_path), device=device)
    work = router if kind is RouterPass else TrunkPass(tmp_path, [0] * 65, device=device)
    settings, gram = settings_of(work, slots=slots, device=device), 8 * (4096 * 4096 + 4096)
    own = need(work, settings.statistics)
    rest = own.total - own.sums
    for groups, most in ((1, 32), (3, 11), (32, 1)):
        sums = (most if kind is RouterPass else 2 * most + 1) * gram
        host = (slots * (rest + sums) if device == "cpu" else 0) + sums
        passes = that_fit(work, settings, Free(host, rest + sums))
        assert len(passes) == groups
        assert [layer for each in passes for layer in each.layers or range(32)] == list(range(32))
        assert max(need(each, settings.statistics).sums for each in passes[-2:]) == sums
        if groups < 32:
            assert len(that_fit(work, settings, Free(host - 1, rest + sums))) > groups
            if device == "cuda":
                assert len(that_fit(work, settings, Free(host, rest + sums - 1))) > groups


def test_groups_are_named_by_their_layers(tmp_path: Path) -> None:
    work = large(tmp_path)
    for groups, said in ((1, "1 layer group"), (2, "2 layer groups: 0-15, 16-31")):
        assert described(that_fit(work, settings_of(work, layer_groups=groups), Free(None, None))) == said


def test_of_a_cluster_only_the_worker_s_own_memory_is_known(tmp_path: Path) -> None:
    work = large(tmp_path)
    settings = settings_of(work, ray_address="10.0.0.1:6379")
    journal = need(work, settings.statistics).journal
    assert free_memory(settings).slot is None
    assert that_fit(work, settings, Free(journal, None)) == [work]
    assert len(that_fit(work, settings, Free(journal - 1, None))) == 2


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
    slots = Slots(None, 1, settings, said.append)
    with pytest.raises(MoergeError, match="each of 1 slots needs at least") as caught:
        slots.probe(Cramped(folder, folder, [0] * 3))
    assert "--batch-tokens 2048" in caught.value.todo
    assert caught.value.where == "memory"
    assert len([line for line in said if "still start" not in line]) == (3 if end == "killed" else 0)
