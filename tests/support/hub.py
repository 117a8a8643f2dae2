"""A stand-in of the hub's HTTP API: the calls of `hf upload` and `hf download`.

It is written after huggingface_hub's client and the documents of the hub, not after the hub itself. Files of at least
`LARGE` bytes and safetensors go by Git LFS, others with the commit. Not here: Xet, which the library prefers if
`HF_HUB_DISABLE_XET` isn't set, pull requests, branches and quotas.
"""

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import yaml
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

TOKEN, OWNER, LARGE = "hf_of_the_tests", "org", 10_000_000
_LICENSES = {"apache-2.0", "mit", "unknown", "other"}  # some of the hub's


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"*.safetensors filter=lfs\n"})
    commits: list[str] = field(default_factory=lambda: ["initial commit"])

    @property
    def sha(self) -> str:
        return hashlib.sha1(str(self.commits).encode(), usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """Its address, and what it has."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    @property
    def uploads(self) -> int:
        return sum(call.startswith("PUT /lfs/") for call in self.calls)


def _refused(status: int, code: str, message: str) -> JSONResponse:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    return JSONResponse({"error": message}, status, headers)


def _is_large(name: str, size: int) -> bool:
    return size >= LARGE or name.endswith(".safetensors")


def _oid(name: str, data: bytes) -> str:
    """Of a large file its SHA-256, of another git's name of its content."""
    if _is_large(name, len(data)):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _card_errors(content: str) -> list[str]:
    """Some of the hub's rules for a card's metadata."""
    try:
        fields = yaml.safe_load(content.split("---\n")[1])
    except (IndexError, yaml.YAMLError) as error:
        return [str(error)]
    bases = fields.get("base_model") or []
    errors = [] if fields.get("license") in _LICENSES else ['"license" must be one of the licences']
    return errors + [f'"base_model" has no owner: {base}' for base in bases if base.count("/") != 1]


def _app(hub: Hub) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def authenticated(request: Request, call: Any) -> Response:
        hub.calls.append(f"{request.method} {request.url.path}")
        known = request.headers.get("authorization") == f"Bearer {TOKEN}"
        if not known and request.url.path != "/api/validate-yaml" and not request.url.path.startswith("/lfs/"):
            return _refused(401, "", "Invalid username or password.")
        return await call(request)  # type: ignore[no-any-return]

    @app.post("/api/validate-yaml")
    async def validate(request: Request) -> Response:
        asked = await request.json()
        assert asked["repoType"] == "model"
        errors = [{"message": text} for text in _card_errors(asked["content"])]
        return JSONResponse({"errors": errors, "warnings": []}, 400 if errors else 200)

    @app.get("/api/models/{owner}/{name}/revision/main")
    def info(owner: str, name: str) -> Response:
        row = hub.repositories[f"{owner}/{name}"]
        siblings = [{"rfilename": file} for file in row.files]
        about = {"id": f"{owner}/{name}", "sha": row.sha, "private": row.private, "siblings": siblings}
        return JSONResponse({**about, "tags": [], "downloads": 0, "likes": 0})

    @app.get("/api/models/{owner}/{name}/tree/{revision}")
    def tree(owner: str, name: str, revision: str) -> Response:
        files = hub.repositories[f"{owner}/{name}"].files
        rows = [
            {"type": "file", "path": path, "size": len(data), "oid": _oid(path, data)} for path, data in files.items()
        ]
        return JSONResponse(rows)

    @app.api_route("/{owner}/{name}/resolve/{revision}/{path:path}", methods=["GET", "HEAD"])
    def resolve(owner: str, name: str, revision: str, path: str) -> Response:
        row = hub.repositories[f"{owner}/{name}"]
        return Response(row.files[path], headers={"ETag": _oid(path, row.files[path]), "X-Repo-Commit": row.sha})

    @app.post("/api/repos/create")
    async def create(request: Request) -> Response:
        asked = await request.json()
        if asked["organization"] != OWNER:
            return _refused(403, "", f'You don\'t have the rights to create a model under "{asked["organization"]}"')
        name = f"{OWNER}/{asked['name']}"
        if name in hub.repositories:
            return JSONResponse({"error": "You already created this model repo", "url": f"{hub.url}/{name}"}, 409)
        hub.repositories[name] = Repository(asked["visibility"] == "private")
        return JSONResponse({"url": f"{hub.url}/{name}", "name": name, "id": secrets.token_hex(12)})

    @app.post("/api/models/{owner}/{name}/preupload/main")
    async def preupload(request: Request, owner: str, name: str) -> Response:
        files = hub.repositories[f"{owner}/{name}"].files
        answers = []
        for file in (await request.json())["files"]:
            path, large = file["path"], _is_large(file["path"], file["size"])
            oid = _oid(path, files[path]) if path in files else None
            mode = "lfs" if large else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return JSONResponse({"files": answers})

    @app.post("/{owner}/{name}.git/info/lfs/objects/batch")
    async def batch(request: Request, owner: str, name: str) -> Response:
        objects = []
        for asked in (await request.json())["objects"]:
            upload = {"href": f"{hub.url}/lfs/{asked['oid']}", "header": {}}
            actions = {} if asked["oid"] in hub.stored else {"actions": {"upload": upload}}
            objects.append({**asked, **actions})
        return JSONResponse({"transfer": "basic", "objects": objects})

    @app.put("/lfs/{oid}")
    async def store(request: Request, oid: str) -> Response:
        data = await request.body()
        assert hashlib.sha256(data).hexdigest() == oid
        hub.stored[oid] = data
        return Response()

    @app.post("/api/models/{owner}/{name}/commit/main")
    async def commit(request: Request, owner: str, name: str) -> Response:
        row = hub.repositories[f"{owner}/{name}"]
        lines = [json.loads(line) for line in (await request.body()).splitlines()]
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    row.commits.append(value["summary"])
                case "file":
                    row.files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    row.files[value["path"]] = hub.stored[value["oid"]]
                    assert len(row.files[value["path"]]) == value["size"]
                case "deletedFile":
                    del row.files[value["path"]]
        return JSONResponse({"commitUrl": f"{hub.url}/{owner}/{name}/commit/{row.sha}", "commitOid": row.sha})

    return app


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()
    server = uvicorn.Server(uvicorn.Config(_app(hub), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    with server.config.bind_socket() as listening:
        hub.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.config.load()
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield hub
        finally:
            server.should_exit = True
            thread.join()
