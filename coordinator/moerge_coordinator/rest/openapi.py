"""Additions to FastAPI's OpenAPI document: the commit, each route's roles, its errors as problem documents."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.routing import RouteContext, iter_route_contexts

from moerge.build import build
from moerge_proto.owners import Role
from moerge_proto.problems import MEDIA_TYPE, Problem, ProblemType

_BODY_ERRORS = (ProblemType.NOT_FOUND, ProblemType.CONFLICT, ProblemType.GONE)
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}


def describe(app: FastAPI) -> None:
    """Makes `app.openapi()` include roles, errors and commit."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            for route in iter_route_contexts(app.routes):
                for method in route.methods or ():
                    if (operation := document["paths"].get(route.path_format, {}).get(method.lower())) is not None:
                        _complete(operation, route, method)
            schemas = document["components"]["schemas"]
            schemas["Problem"] = Problem.model_json_schema(mode="serialization")
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            document["info"]["x-commit"] = build().commit
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # recommended by FastAPI's documentation


def _complete(operation: dict[str, Any], route: RouteContext, method: str) -> None:
    roles = next(
        (dependency.call.roles for dependency in route.dependant.dependencies if hasattr(dependency.call, "roles")), ()
    )
    if not roles:
        return
    operation["x-roles"] = [role.value for role in roles]
    operation["description"] += f" Role: {'any' if len(roles) == len(Role) else ' or '.join(roles)}."
    kinds = {
        ProblemType.UNAUTHENTICATED, ProblemType.FORBIDDEN, ProblemType.INVALID_REQUEST, ProblemType.UNAVAILABLE,
    }  # fmt: skip
    if method != "GET":
        kinds |= {ProblemType.CONFLICT, ProblemType.TOO_LARGE}
    if "requestBody" in operation:
        kinds |= set(_BODY_ERRORS)
        operation["responses"].setdefault("408", {"description": "The body stalled, or was slower than 4 KiB/s"})
    if any(item["in"] == "path" for item in operation.get("parameters", ())):
        kinds |= {ProblemType.NOT_FOUND, ProblemType.GONE}
    answers = operation["responses"]
    for status in {str(kind.status) for kind in kinds}:
        answers.setdefault(status, {})
    for status in sorted(answers):
        answer = answers.pop(status)
        if status[0] in "45":
            names = ", ".join(kind.value for kind in ProblemType if str(kind.status) == status)
            answer = {"description": answer.get("description") or names, "content": _PROBLEM}
        answers[status] = answer
    if isinstance(route.response_class, type) and issubclass(route.response_class, FileResponse):
        answers["307"] = {"description": "The file's address in the store"}
        answers["206"] = {"description": "The requested range"}
        answers["400"] = {"description": "The range is invalid", **_TEXT}
        answers["416"] = {"description": "The range is beyond the file", **_TEXT}
