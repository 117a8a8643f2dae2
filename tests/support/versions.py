"""A version's folder with every planned file, without a coordinator."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from moerge.merging.local_lineages import local_body, local_version
from moerge.models.dense import dense_model, mlp_names
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.hosts import HOSTS
from moerge.models.tokens import all_counted
from moerge.statistics.contribution import router_contribution
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.version_files import HEAD_FILE

ROWS = [[(7 * row + 3 * column) % 256 for column in range(40)] for row in range(8)]


def contributed_rows(slot: int) -> list[list[int]]:
    """The contributed rows of a slot's domain in `published`."""
    return [[(id_ + 31 * slot) % 256 for id_ in row] for row in ROWS]


def published(
    experts: Sequence[Path],
    folder: Path,
    top_k: int = 1,
    *,
    tied: bool = False,
    rows: Sequence[list[list[int]]] | None = None,
    precision: str = "float32",
) -> Path:
    """The version of `experts` with domains d0, d1, …; each contributes its `rows`, by default fixed ones.

    `precision` is the statistics' number format.
    """
    dense = [DenseExpert(f"d{slot}", expert) for slot, expert in enumerate(experts)]
    body = local_body(dense, folder / "body", "average")
    settings = StatisticsSettings.model_validate({"precision": precision})
    sent = [
        router_contribution(
            item,
            body,
            all_counted(rows[slot] if rows else contributed_rows(slot)),
            folder / f"{item.domain}.safetensors",
            settings,
        )
        for slot, item in enumerate(dense)
    ]
    inputs = local_version(
        dense, body, sent, SolveOptions(top_k=top_k), head="average", head_contributions=(), tied=tied
    )
    return write_folder(plan_version(*inputs).files, folder / "version")


def behind(expert: Path, body: Path, version: Path) -> PreTrainedModel:
    """The dense model of a version's tokens that have this expert: body, the expert's MLPs, and the version's head."""
    dense = DenseFiles(expert)
    mlps = {name: dense.checkpoint.tensor(name) for name in mlp_names(dense)}
    head, norm = load_file(version / HEAD_FILE), dense.family.final_norm
    if norm in dense.family.pieces:
        head[norm] -= 1  # published as factors
    return dense_model(dense.config, load_file(body) | head | mlps, torch.float32)


def body_file(experts: Sequence[Path], folder: Path) -> Path:
    """The experts' average body."""
    dense = [DenseExpert(f"d{slot}", expert) for slot, expert in enumerate(experts)]
    return local_body(dense, folder, "average").path


def logits(model: torch.nn.Module) -> torch.Tensor:
    """Logits [8, 40, V] of the fixed rows."""
    with torch.inference_mode():
        result: torch.Tensor = model(torch.tensor(ROWS), use_cache=False).logits
    return result


def loaded(folder: Path) -> PreTrainedModel:
    """A version loaded by a consumer; fails on missing tensors, for which transformers only warns."""
    answer: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    model: PreTrainedModel = answer[0]
    assert not any(answer[1].values()), answer[1]
    assert type(model).__name__ == HOSTS[model.config.model_type].class_name
    return model
