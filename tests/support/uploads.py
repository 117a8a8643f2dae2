"""Raw calls of the REST API for uploads, without the client's retries."""

from dataclasses import dataclass
from typing import Any, Literal

import httpx

from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.uploads import Chunk, NewUpload, Upload

_HTTP = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))  # coordinators restart


def announced(data: bytes, *pieces: bytes, encoding: Literal["identity", "zstd"] = "identity") -> NewUpload:
    """An upload of `data` in these chunks, by default in one."""
    chunks = [Chunk(sha256=sha256_hex(piece), size=len(piece)) for piece in pieces or (data,)]
    return NewUpload(sha256=sha256_hex(data), size=len(data), encoding=encoding, chunks=chunks)


@dataclass(frozen=True)
class RawClient:
    """Calls with a token, without retries."""

    url: str
    token: str

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **kwargs.pop("headers", {})}
        return _HTTP.request(method, f"{self.url}/v1{path}", headers=headers, **kwargs)

    def post(self, new: NewUpload) -> httpx.Response:
        return self.request("POST", "/uploads", json=new.model_dump())

    def open(self, new: NewUpload) -> Upload:
        return Upload.model_validate_json(self.post(new).raise_for_status().content)

    def put(self, upload: Upload, chunk: bytes, name: str = "") -> httpx.Response:
        """Sends a chunk, by default under its digest."""
        name = name or sha256_hex(chunk)
        headers = {"Content-Digest": content_digest(name)}
        return self.request("PUT", f"/uploads/{upload.id}/chunks/{name}", content=chunk, headers=headers)

    def commit(self, upload: Upload) -> httpx.Response:
        return self.request("POST", f"/uploads/{upload.id}/commit")
