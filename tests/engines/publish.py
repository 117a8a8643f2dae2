"""Small random experts, far apart, and their versions by `moerge merge`."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engines.cases import Case
from moerge.documents.corpus import Corpus
from moerge.merging.local_lineages import local_body, local_version
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.models.expert_folder import DenseExpert
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version
from moerge_proto.recipes import RECOMMENDED, VersionRecipe
from support.models import expert, texts
from support.wrappers import wrapper

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "initializer_range": 0.1,  # answers depend on every part: log-probabilities have a deviation of 1
}
_DOCUMENTS = 20


def experts(case: Case, home: Path) -> list[Path]:
    """Folders of a case's dense experts, made unless they exist."""
    return [_expert(case, _experts(case, home) / str(seed), seed) for seed in range(1, case.experts + 1)]


def _experts(case: Case, home: Path) -> Path:
    return home / "experts" / "-".join((case.family, case.setting.replace(" ", "_"), case.head, case.dtype))


def _expert(case: Case, folder: Path, seed: int) -> Path:
    if not (folder / "complete").exists():
        if case.wrapper:
            tied = {"tie_word_embeddings": case.head != "own"}  # in a wrapper's config.json its own decides
            wrapper(folder, case.wrapper, seed, {**SIZES, **case.settings}, **tied)
        else:
            expert(folder, seed, case.family, apart=0.02, **SIZES, **case.settings)
        if case.dtype != "float32":
            _rounded(folder, getattr(torch, case.dtype))
        texts(folder / "texts.jsonl", seed, _DOCUMENTS)
        (folder / "complete").touch()
    return folder


def _rounded(folder: Path, dtype: torch.dtype) -> None:
    """Stores the weights in `dtype`."""
    path, config = folder / "model.safetensors", folder / "config.json"
    save_file({name: item.to(dtype) for name, item in load_file(path).items()}, path, metadata={"format": "pt"})
    content = json.loads(config.read_text(encoding="utf-8")) | {"dtype": str(dtype).removeprefix("torch.")}
    config.write_text(json.dumps(content), encoding="utf-8")


def version(case: Case, home: Path) -> Path:
    """The folder of a case's version, made unless it exists."""
    folder = home / "versions" / case.name
    if not folder.exists():
        own = [DenseExpert(f"d{number}", item) for number, item in enumerate(experts(case, home))]
        sources = [Source(item, Corpus([str(item.folder / "texts.jsonl")], item)) for item in own]
        solve = RECOMMENDED.solve.model_copy(update={"top_k": case.top_k})
        head, is_seed = "average" if case.body == "average" else "regmean", case.body == "seed"
        fit = is_seed and own[0].family.is_fittable
        recipe = VersionRecipe.model_validate({"body": case.body, "head": head, "fit": fit, "solve": solve})
        base = DenseExpert("seed", _expert(case, _experts(case, home) / "seed", 0)) if is_seed else None
        whole = folder.with_name(f"{case.name}-whole") if case.head == "omitted" else folder
        merge(sources, whole, MergeSettings(recipe, base=base, scored_tokens=0, keep_statistics=True))
        if whole != folder:
            _without_head(own, whole, folder, solve)
    return folder


def _without_head(own: list[DenseExpert], whole: Path, folder: Path, solve: Any) -> None:
    """Publishes the merged version again, as `version solve --tied` does."""
    work = whole.with_name(f"{whole.name}.work")
    body = local_body(own, work / "body", "average")
    routers = sorted(work.glob("router-*.safetensors"))
    write_folder(plan_version(*local_version(own, body, routers, solve, head="average", tied=True)).files, folder)
