"""The main road through real servers: contributions, a version, its promotion, the dashboard, a pull."""

from pathlib import Path

from support.dashboard import signed_in
from support.federation import federation_of

PAGES = ("/versions", "/versions/1", "/compare?before=1&version=2", "/contributions", "/workflows", "/settings")


def test_versions_are_solved_promoted_shown_and_pulled(tmp_path: Path) -> None:
    with federation_of(tmp_path, "law", "art") as federation:
        federation.contribute(federation.body())
        for experts in federation.digests("law"), federation.digests("law", "art"):
            federation.solve(experts=experts)
        for number in (1, 2):
            federation.operator.promote("champion", number)
        with signed_in(federation.server) as browser:
            assert {page: browser.get(page).status_code for page in PAGES} == dict.fromkeys(PAGES, 200)
        assert "Version 2" in federation.operator.version_card(2)
        federation.moerge("pull", "champion", str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()
