"""Scores of a merge, in limited memory."""

from pathlib import Path
from typing import Any

import pytest

from moerge.merging.scores import scores
from moerge.models.config import read_config
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.scoring.perplexity import BATCH_TOKENS, windows
from moerge.scoring.streamed import StreamedModel, streamed_model
from moerge.statistics.contribution import Computing
from support.models import expert
from support.versions import published


def test_scores_keep_hidden_states_within_the_given_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = [expert(tmp_path / str(seed), seed, num_hidden_layers=1) for seed in (1, 2)]
    version, given, make = published(experts, tmp_path), list[int](), streamed_model

    def noted(*arguments: Any) -> StreamedModel:
        model = make(*arguments)
        given.append(model._states)
        return model

    monkeypatch.setattr("moerge.merging.scores.streamed_model", noted)
    held_out = [(DenseExpert("law", folder), windows([Tokens([5] * 40)] * 3, 40, 20)) for folder in experts]
    least = 4 * int(read_config(version).hidden_size) * BATCH_TOKENS
    result = [scores(held_out, version, Computing(host_memory=item), print) for item in (1, 2 * least, None)]
    assert given[:8] == [least] * 4 + [2 * least] * 4
    assert min(given[8:]) > 2 * least
    assert result[0] == result[1] == result[2]
