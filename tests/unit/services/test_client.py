"""What the client refuses before it sends anything."""

import pytest

from moerge.client import Client
from moerge.errors import MoergeError
from moerge_proto.digests import content_digest, sha256_hex


@pytest.mark.parametrize("url", ["http://example.org", "http://10.0.0.1:8080", "ftp://localhost", "localhost:8080"])
def test_plain_http_to_another_machine_is_refused(url: str) -> None:
    with pytest.raises(MoergeError, match="not encrypted"):
        Client(url, "token")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://example.org"])
def test_loopback_and_https_are_accepted(url: str) -> None:
    with Client(url, "token"):
        pass


def test_an_unreachable_coordinator_is_an_error_that_says_what_to_do() -> None:
    with Client("http://127.0.0.1:1", "token", patience=0.2) as client, pytest.raises(MoergeError) as caught:
        client.identity()
    assert "check that the coordinator runs" in caught.value.todo


def test_content_digest_is_rfc_9530_s_example() -> None:
    """RFC 9530, section 2: the digest of {"hello": "world"} and a newline."""
    body = b'{"hello": "world"}\n'
    assert content_digest(sha256_hex(body)) == "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
