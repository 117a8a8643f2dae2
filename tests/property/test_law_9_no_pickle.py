"""Law 9: nothing is ever unpickled."""

import ast
from pathlib import Path

import pytest
from dbos import DBOSPortableJSONSerializer

from moerge_coordinator.bootstrap import dbos_config
from moerge_coordinator.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for part in ("proto", "services", "workers", "coordinator") for path in (ROOT / part).rglob("*.py")
)
FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_law_9_no_source_imports_a_pickler_or_loads_a_pickle(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {name.name.split(".")[0] for name in node.names} & FORBIDDEN_MODULES
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES
            assert node.module not in ("torch", "numpy") or "load" not in {name.name for name in node.names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("torch", "load"), ("np", "load"), ("numpy", "load")}


def test_law_9_workflows_are_kept_as_json(tmp_path: Path) -> None:
    assert isinstance(dbos_config(Settings(home=tmp_path))["serializer"], DBOSPortableJSONSerializer)
