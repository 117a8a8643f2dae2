"""Results of engines: what is measured of each case, and whether that is as documented."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.cases import Case
from engines.compare import AS_DENSE, Answers, Difference, difference
from engines.engine import Engine, Model
from engines.publish import experts, version
from engines.reference import answers, load
from moerge.versions.engines import engine_limits
from moerge_proto.versions import EngineLimit


@dataclass(frozen=True)
class Result:
    """One case in one engine.

    Attributes:
        case: the version.
        limits: of this engine, by the version's config.json.
        error: if the engine can't run it.
        exact: the difference from transformers, both in float32; None if the engine has no float32 for the class.
        rounded: the median difference in bfloat16, for a version in bfloat16.
        rounded_dense: its first dense expert's.
        remedied: the difference in float32 after the limits' remedy, if an option is one.
    """

    case: Case
    limits: Sequence[EngineLimit]
    error: str = ""
    exact: Difference | None = None
    rounded: float | None = None
    rounded_dense: float | None = None
    remedied: Difference | None = None

    @property
    def right(self) -> bool:
        """Whether it answers as transformers does."""
        return not self.error and (self.exact is None or self.exact.exact) and self.as_dense

    @property
    def as_dense(self) -> bool:
        """Whether rounding changes it no more than its dense expert."""
        if self.rounded is None or self.rounded_dense is None:
            return True
        return self.rounded <= AS_DENSE * self.rounded_dense

    @property
    def fault(self) -> str:
        """What contradicts the documentation; empty if nothing does."""
        if not self.right and not self.limits:
            return f"{self.case.name}: {self._found}, and no warning"
        if self.right and self.limits:
            return f"{self.case.name}: right, but warned of: {self.limits[0].happens}"
        if self.remedied is not None and not self.remedied.exact:
            return f"{self.case.name}: the remedy {self.limits[0].remedy!r} leaves {self.remedied.most:.1e}"
        return ""

    @property
    def _found(self) -> str:
        if self.error:
            return self.error
        if self.exact is not None and not self.exact.exact:
            return f"off by {self.exact.most:.1e}"
        return f"in bfloat16 off by {self.rounded:.1e}, its dense expert by {self.rounded_dense:.1e}"


def results(
    engine: Engine, every: Sequence[Case], home: Path, expected: "Expected", said: Callable[[str], None]
) -> list[Result]:
    """Runs all cases, and the first dense expert of each, in an engine."""
    wanted: dict[Model, None] = {}
    plans = []
    for case in every:
        folder, dense = version(case, home), experts(case, home)[0]
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        limits = [limit for limit in engine_limits(config) if limit.engine == engine.name]
        options = next(
            (o for text, o in engine.remedies.items() if any(text in limit.remedy for limit in limits)), None
        )
        in_float32 = [limit for limit in engine_limits({**config, "dtype": "float32"}) if limit.engine == engine.name]
        is_only_rounded = case.dtype != "float32" and len(in_float32) > len(limits)
        models = {} if is_only_rounded else {"exact": Model(folder, "float32")}
        if case.dtype != "float32":
            models |= {"rounded": Model(folder, case.dtype), "rounded_dense": Model(dense, case.dtype)}
        if options is not None:
            models["remedied"] = Model(folder, "float32", tuple(options.items()))
        plans.append((case, limits, models))
        wanted |= dict.fromkeys(models.values())
    result = dict(zip(wanted, engine.answers(list(wanted), said), strict=True))
    return [_result(case, limits, models, result, expected) for case, limits, models in plans]


def _result(
    case: Case,
    limits: Sequence[EngineLimit],
    models: Mapping[str, Model],
    found: Mapping[Model, Answers],
    expected: "Expected",
) -> Result:
    apart = {
        name: None if found[model].error else difference(found[model], expected(model.folder))
        for name, model in models.items()
    }
    rounded, rounded_dense = apart.get("rounded"), apart.get("rounded_dense")
    return Result(
        case,
        limits,
        found[models.get("exact") or models["rounded"]].error,
        apart.get("exact"),
        None if rounded is None else rounded.typical,
        None if rounded_dense is None else rounded_dense.typical,
        apart.get("remedied"),
    )


class Expected:
    """Transformers' answers in float32, computed once for each folder."""

    def __init__(self) -> None:
        self._known: dict[Path, Answers] = {}

    def __call__(self, folder: Path) -> Answers:
        if folder not in self._known:
            self._known[folder] = answers(load(folder))
        return self._known[folder]
