"""A stranger, without a token."""

from collections.abc import Iterator

import httpx
import pytest

from support.processes import Coordinator, coordinator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("stranger") / "home") as made:
        yield made


@pytest.mark.parametrize(
    "path", ["/", "/dashboard", "/dashboard/versions/", "/dashboard/", "/v1/versions/", "/metrics/"]
)
def test_no_redirect_names_the_host_of_the_call(server: Coordinator, path: str) -> None:
    answer = httpx.get(f"{server.url}{path}", headers={"Host": "evil.example"})
    assert "evil.example" not in answer.headers.get("Location", "")
    assert answer.status_code != 500


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_no_page_loads_scripts_of_other_hosts(server: Coordinator, path: str) -> None:
    answer = httpx.get(f"{server.url}{path}")
    assert answer.status_code == 404
    assert "http" not in answer.text
