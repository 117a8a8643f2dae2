"""Law 9: nothing is ever unpickled."""

import ast
import base64
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import dbos
import pytest
from dbos import DBOSPortableJSONSerializer
from dbos._serialization import deserialize_args, deserialize_exception, deserialize_value

from moerge.errors import MoergeError
from moerge_coordinator.bootstrap import dbos_config
from moerge_coordinator.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for part in ("proto", "services", "workers", "coordinator") for path in (ROOT / part).rglob("*.py")
)
FORBIDDEN_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def picklers(path: Path) -> Iterator[str]:
    """The places where a source imports a pickler or loads a pickle."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        result = False
        if isinstance(node, ast.Import):
            result = bool({name.name.split(".")[0] for name in node.names} & FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            loads = node.module in ("torch", "numpy") and "load" in {name.name for name in node.names}
            result = loads or (node.module or "").split(".")[0] in FORBIDDEN_MODULES
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            result = (node.value.id, node.attr) in {("torch", "load"), ("np", "load"), ("numpy", "load")}
        if result:
            yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_law_9_no_source_imports_a_pickler_or_loads_a_pickle() -> None:
    assert len(SOURCES) > 100
    assert [place for path in SOURCES for place in picklers(path)] == []


def test_law_9_workflows_are_kept_as_json(tmp_path: Path) -> None:
    assert isinstance(dbos_config(Settings(home=tmp_path))["serializer"], DBOSPortableJSONSerializer)


class Payload:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("read", [deserialize_value, deserialize_args, deserialize_exception])
def test_law_9_a_row_that_says_pickle_is_not_unpickled(tmp_path: Path, read: Callable[..., object]) -> None:
    """The attack on a real coordinator is in tests/attacks/test_database.py."""
    serializer = dbos_config(Settings(home=tmp_path))["serializer"]
    pickled = base64.b64encode(pickle.dumps(Payload(tmp_path / "ran"))).decode()
    with pytest.raises(MoergeError, match="a pickle"):
        read(pickled, "py_pickle", serializer)
    assert not (tmp_path / "ran").exists()


def test_law_9_dbos_has_one_place_that_unpickles() -> None:
    """`refuse_pickle` replaces it."""
    sources = Path(dbos.__file__).parent
    text = {path.name: path.read_text(encoding="utf-8") for path in sources.rglob("*.py")}
    loads = {name: item.count("pickle.load") for name, item in text.items() if "pickle.load" in item}
    assert loads == {"_serialization.py": 1}
    assert {name for name, item in text.items() if "import pickle" in item} == {"_serialization.py"}
