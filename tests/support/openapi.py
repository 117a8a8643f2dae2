"""The OpenAPI document as the contract has it: without words for people, a line for each operation and field."""

import json
from typing import Any

_WORDS = {"description", "summary", "title", "tags", "operationId"}
_NAMED = {"properties", "schemas", "responses", "paths"}
"""Keys of objects whose own keys are names."""


def contract(document: dict[str, Any]) -> dict[str, Any]:
    """The document's operations, fields and types, for any release."""
    result: dict[str, Any] = _bare(document)
    del result["info"]
    return result


def written(contract: dict[str, Any]) -> str:
    """The contract as JSON, with a line for each operation and each property of a schema."""
    return _written(contract, 3, "") + "\n"


def _written(value: Any, levels: int, indent: str) -> str:
    if not isinstance(value, dict) or not (levels or "properties" in value) or not value:
        return json.dumps(value, sort_keys=True)
    inner = f"{indent} "
    rows = (
        f"{inner}{json.dumps(key)}: {_written(item, max(levels - 1, key == 'properties'), inner)}"
        for key, item in sorted(value.items())
    )
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def _bare(value: Any, *, named: bool = False) -> Any:
    if isinstance(value, list):
        return [_bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _bare(item, named=key in _NAMED) for key, item in value.items() if named or key not in _WORDS}
