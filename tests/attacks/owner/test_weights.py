"""An owner whose text for a merged body, on one machine, would take over everyone's embedding."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from moerge.documents.shards import enough
from moerge.merging.local_lineages import local_body
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import EMBEDDING
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import body_contribution
from support.models import VOCAB, expert
from support.versions import contributed_rows

ONE_TOKEN = [[5]]
EVENLY_SPREAD = torch.arange(VOCAB).repeat(7).reshape(-1, 30).tolist()  # 64 H tokens, each as often as any other


def shares(folder: Path, text: Sequence[list[int]], own_text: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """[V] the attacker's share of each row of the merged embedding, and how often two others use the row."""
    experts = [DenseExpert(name, expert(folder / name, seed)) for seed, name in enumerate(("attacker", "law", "art"))]
    rows = [text, own_text, own_text]
    assert sum(map(len, own_text)) >= enough(32)
    sent = [body_contribution(item, all_counted(rows[slot]), folder / f"{slot}") for slot, item in enumerate(experts)]
    merged = load_file(local_body(experts, folder / "body", "regmean", sent).path)[EMBEDDING]
    own = torch.stack([load_file(item.folder / "model.safetensors")[EMBEDDING] for item in experts], dim=-1)
    result = torch.linalg.lstsq(own.double(), merged.double()[:, :, None]).solution[:, 0, 0]
    return result, torch.bincount(torch.tensor(own_text).flatten(), minlength=VOCAB) / sum(map(len, own_text))


def test_one_token_of_text_takes_no_rows_of_the_others(tmp_path: Path) -> None:
    """It had nearly all of every row."""
    result, use = shares(tmp_path, ONE_TOKEN, contributed_rows(0) * 7)
    assert float(result @ use.double()) < 1 / 3
    assert float(result.max()) < 0.7, "of the row of its token, too"


def test_evenly_spread_text_does_not_dominate_rows_of_others(tmp_path: Path) -> None:
    """Of rows that others use seldom it had nearly all."""
    often, seldom = [[token] * 40 for token in range(60)], torch.arange(60, VOCAB).reshape(-1, 40).tolist()
    result, use = shares(tmp_path, EVENLY_SPREAD, [*often, *seldom])
    assert float(result @ use.double()) < 1 / 3 + 0.01
    assert float(result.max()) < 0.7
