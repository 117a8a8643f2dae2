"""Law 9: nothing is ever unpickled."""

import ast
from collections.abc import Iterator
from pathlib import Path

from dbos import DBOSPortableJSONSerializer

from moerge_coordinator.bootstrap import dbos_config
from moerge_coordinator.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for part in ("proto", "services", "workers", "coordinator") for path in (ROOT / part).rglob("*.py")
)
FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def picklers(path: Path) -> Iterator[str]:
    """Where a source imports a pickler or loads a pickle."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found = False
        if isinstance(node, ast.Import):
            found = bool({name.name.split(".")[0] for name in node.names} & FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            loads = node.module in ("torch", "numpy") and "load" in {name.name for name in node.names}
            found = loads or (node.module or "").split(".")[0] in FORBIDDEN_MODULES
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = (node.value.id, node.attr) in {("torch", "load"), ("np", "load"), ("numpy", "load")}
        if found:
            yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_law_9_no_source_imports_a_pickler_or_loads_a_pickle() -> None:
    assert len(SOURCES) > 100
    assert [place for path in SOURCES for place in picklers(path)] == []


def test_law_9_workflows_are_kept_as_json(tmp_path: Path) -> None:
    assert isinstance(dbos_config(Settings(home=tmp_path))["serializer"], DBOSPortableJSONSerializer)
