"""A receiver of webhooks, which verifies signatures as its specification says, not with the sender's code."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.http_server import serving

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@dataclass
class Receiver:
    """Verified notices in order of arrival: id and content. `answer` gives the status for the next one."""

    url: str = ""
    answer: Callable[[], int] = lambda: 204
    notices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)

    def events(self) -> list[str]:
        return [content["type"] for _, content in self.notices]

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        name, stamp = headers["webhook-id"], headers["webhook-timestamp"]
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        made = hmac.new(key, f"{name}.{stamp}.{body.decode()}".encode(), hashlib.sha256)
        signature = f"v1,{base64.b64encode(made.digest()).decode()}"
        if not any(hmac.compare_digest(given, signature) for given in headers["webhook-signature"].split()):
            return 401
        self.notices.append((name, json.loads(body)))
        self.stamps.append(int(stamp))
        return self.answer()


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(receiver.take(dict(self.headers), body))
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as url:
        receiver.url = f"{url}/hooks/private-path"
        yield receiver
