"""Pieces of a text, and windows over what is longer than the context."""

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from moerge_lab.routing.text import pieces
from moerge_lab.routing.weights import routed
from support.models import expert
from support.versions import ROWS, published


def test_tokens_of_one_character_form_one_piece() -> None:
    assert pieces("a é b ", [(0, 1), (2, 3), (2, 3), (4, 5)]) == (["a", " é", " b "], [0, 2, 3])
    assert pieces("ab", [(0, 0), (0, 1), (0, 2)]) == (["a", "b"], [1, 2])
    assert pieces("  ", []) == ([], [])


@given(text=st.text(min_size=1, max_size=20), data=st.data())
def test_the_pieces_joined_give_the_text(text: str, data: st.DataObject) -> None:
    place = st.integers(0, len(text))
    offsets = data.draw(st.lists(st.tuples(place, place).map(lambda pair: (min(pair), max(pair)))))
    cut, speakers = pieces(text, offsets)
    assert "".join(cut) == (text if cut else "")
    assert all(cut)
    assert speakers == sorted(set(speakers))


def test_a_long_text_is_read_in_windows_that_overlap_by_half(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    model = AutoModelForCausalLM.from_pretrained(published(experts, tmp_path), dtype=torch.float32)
    ids = ROWS[0]
    logits = routed(model, ids, 16)
    assert logits.shape == (3, 40, 2)
    for start, first in ((0, 0), (8, 16), (16, 24), (24, 32)):
        alone = routed(model, ids[start : start + 16], 16)
        torch.testing.assert_close(logits[:, first : start + 16], alone[:, first - start :])
