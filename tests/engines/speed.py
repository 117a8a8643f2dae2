"""What serving a version costs, against its dense expert in the same engine, measured by turns."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engines.engine import HOME, Engine, Model
from moerge.errors import MoergeError
from support.models import expert
from support.versions import published

SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 8}
EXPERTS = 4


@dataclass(frozen=True)
class Cost:
    """The median ratio, version to dense expert, of seconds or bytes."""

    what: str
    ratio: float


def costs(engine: Engine, script: str, first: Path, top_k: int) -> list[Cost]:
    """Costs of a version with `top_k` experts per token, by a script that first loads the version `first`."""
    work = HOME / "speed" / str(top_k)
    version = work / "version"
    dense = [work / str(seed) for seed in range(EXPERTS)]
    if not version.exists():
        for seed, folder in enumerate(dense):
            expert(folder, seed, **SIZES)  # type: ignore[arg-type]  # no family
        published(dense, work, top_k)
    job, result = work / "job.json", work / f"{engine.environment}.json"
    models = {"first": first, "version": version, "dense": dense[0]}
    content = {name: str(engine.prepared(Model(folder, "float32"))) for name, folder in models.items()}
    job.write_text(json.dumps({**content, "answers": str(result)}), encoding="utf-8")
    if code := engine.run(script, job, work / "log.txt"):
        raise MoergeError(f"ended with {code}", where=engine.name, todo=f"read {work / 'log.txt'}")
    pairs = json.loads(result.read_text(encoding="utf-8"))
    return [Cost(what, median(ours / theirs for theirs, ours in rows)) for what, rows in pairs.items()]
