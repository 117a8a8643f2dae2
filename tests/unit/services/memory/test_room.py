"""The hidden states that work has room for; work that doesn't fit is refused with the settings to change."""

from dataclasses import replace

import pytest
import torch

from moerge.errors import MoergeError
from moerge.memory.machine import Free
from moerge.memory.needs import Need, passing
from moerge.memory.room import Slots, require_room, room_for, states_for, tokens_for
from moerge.memory.shapes import Shape
from moerge_proto.statistics_file import StatisticsSettings
from support.sizes import preset

NEED = Need("scoring", {"two layers": 700, "head and logits": 300}, token=10, tokens=20)
SHAPE = Shape.of(preset("8b"), torch.float32)
SETTINGS = StatisticsSettings()


def pass_need(*, body: bool = False, device: str = "cpu") -> Need:
    return passing(SHAPE, SETTINGS.batch_tokens, body=body, device=device)


@pytest.mark.parametrize("body", [False, True])
def test_hidden_states_of_a_pass_have_half_of_the_rest(body: bool) -> None:
    need, slots = pass_need(body=body), Slots(3)
    taken = 3 * need.in_host + need.journal
    assert room_for(need, SETTINGS, Free(taken + 24 * need.least, None), slots).states == 4 * need.least
    assert room_for(need, SETTINGS, Free(taken + 6 * need.least, None), slots).states == need.least
    with pytest.raises(MoergeError, match=r"each of 3 slots needs .* this machine has"):
        room_for(need, SETTINGS, Free(taken + 6 * need.least - 1, None), slots)


def test_host_memory_is_taken_in_place_of_the_half() -> None:
    need, slots = pass_need(), Slots(3)
    taken, wanted = 3 * need.in_host + need.journal, 3 * need.least
    assert room_for(need, SETTINGS, Free(taken + wanted, None), slots, wanted).states == need.least
    assert room_for(need, SETTINGS, Free(None, None), slots, wanted).states == need.least
    with pytest.raises(MoergeError, match="`host_memory` is"):
        room_for(need, SETTINGS, Free(taken + wanted - 1, None), slots, wanted)


def test_a_short_text_needs_room_for_its_own_tokens() -> None:
    need = pass_need()
    taken = need.in_host + need.journal
    free = Free(taken + 2 * 100 * need.token, None)
    assert room_for(need, SETTINGS, free, Slots(), tokens=100).states == 100 * need.token
    with pytest.raises(MoergeError, match="hidden states of 100 tokens"):
        room_for(need, SETTINGS, replace(free, host=taken), Slots(), tokens=100)


def test_on_a_gpu_weights_and_sums_are_in_its_memory() -> None:
    need = pass_need(device="cuda")
    host = 2 * need.in_host + need.journal + 4 * need.least
    assert room_for(need, SETTINGS, Free(host, need.on_device), Slots(2)).states == need.least
    for free in (Free(host, need.on_device - 1), Free(host - 1, need.on_device)):
        with pytest.raises(MoergeError, match="of GPU memory") as caught:
            room_for(need, SETTINGS, free, Slots(2))
        assert "`device` cpu" in caught.value.todo


def test_other_machines_need_no_memory_here() -> None:
    assert room_for(pass_need(), SETTINGS, Free(1, None), Slots(2, here=False), 30 * 10**9).states == 15 * 10**9


def test_a_refused_pass_names_the_settings_to_change() -> None:
    with pytest.raises(MoergeError) as caught:
        room_for(pass_need(), SETTINGS, Free(1, None), Slots(2), 10**9)
    fields = ("`host_memory` 8590MB or more", "`slots` 1", "`precision` bfloat16", "`batch_tokens` 512", "`context`")
    assert [way for way in (*fields, "`device` cuda") if way not in caught.value.todo] == []
    with pytest.raises(MoergeError, match="`host_memory` 4295MB or little more"):
        room_for(pass_need(), SETTINGS, Free(10**11, None), Slots(), 10**15)


def test_settings_that_change_nothing_are_not_named() -> None:
    coarse = SETTINGS.model_copy(update={"precision": "bfloat16"})
    with pytest.raises(MoergeError) as caught:
        room_for(pass_need(), coarse, Free(1, None), Slots())
    assert [way for way in ("precision", "slots", "host_memory") if way in caught.value.todo] == []


def test_hidden_states_of_scoring_have_half_of_the_rest() -> None:
    free = Free(1000 + 2000, None)
    assert states_for(NEED, free) == 1000
    assert states_for(NEED, free, 400) == 400
    assert states_for(NEED, free, 10**9) == 2000
    assert states_for(NEED, free, 1) == states_for(NEED, Free(1200, None)) == 200
    assert states_for(replace(NEED, gpu=True), Free(2000, 1000)) == 1000
    assert states_for(NEED, Free(None, None)) > 200


@pytest.mark.parametrize(("free", "gpu"), [(Free(1199, None), False), (Free(2000, 999), True), (Free(199, 1000), True)])
def test_scoring_that_does_not_fit_is_refused(free: Free, gpu: bool) -> None:
    with pytest.raises(MoergeError, match=r"scoring needs 1\.0 kB of .* \(two layers 700 bytes, head and logits"):
        states_for(replace(NEED, gpu=gpu), free)


def test_the_tokens_that_fit_are_those_of_the_rest() -> None:
    assert tokens_for(NEED, Free(1000 + 95, None)) == 9
    assert tokens_for(NEED, Free(None, None)) is None
    on_gpu = replace(NEED, gpu=True)
    assert [tokens_for(on_gpu, Free(95, device)) for device in (1000, 999)] == [9, 0]


def test_work_without_hidden_states_fits_or_is_refused() -> None:
    need = Need("writing texts of law", {"the model": 1000})
    require_room(need, Free(1000, None), ["a larger machine"])
    with pytest.raises(MoergeError, match=r"writing texts of law needs 1\.0 kB .* has 999 bytes") as caught:
        require_room(need, Free(999, None), ["a larger machine"])
    assert caught.value.todo == "change one of these: a larger machine"
