"""The site's menu, its templates, and its way to REST."""

from pathlib import Path

import pytest
from fastapi import FastAPI

from moerge_coordinator import dashboard
from moerge_coordinator.dashboard.pages import PAGES
from moerge_coordinator.dashboard.site import TOPICS, Site
from moerge_proto.owners import Role
from moerge_proto.problems import Problem, ProblemType

ROOT = Path(__file__).parents[4]
MENUS = {
    Role.OPERATOR: "versions experts owners contributions bodies workflows audit settings",
    Role.OWNER: "versions experts contributions bodies grants",
    Role.READER: "versions",
}


@pytest.mark.parametrize("role", MENUS)
def test_a_role_s_menu_has_the_pages_that_it_may_see(role: Role) -> None:
    places = [place for _, place in Site(FastAPI(), PAGES).menu(role)]
    assert places == [f"/dashboard/{name}" for name in MENUS[role].split()]


def test_templates_write_others_words_as_text() -> None:
    page = Site(FastAPI(), PAGES).problem(Problem.of(ProblemType.CONFLICT, "<script>&\"'"))
    assert b"&lt;script&gt;&amp;&#34;&#39;" in page.body


def test_pages_lead_to_the_documentation_if_there_is_a_site() -> None:
    problem = Problem.of(ProblemType.CONFLICT, "no")
    assert b"Help" not in Site(FastAPI(), PAGES).problem(problem).body
    site = Site(FastAPI(), PAGES, documentation="https://docs.example.org/")
    assert b'<a href="https://docs.example.org/docs/dashboard.html"' in site.problem(problem).body
    assert site.help("/dashboard/settings") == "https://docs.example.org/docs/reference/settings.html"
    assert site.help("/dashboard/versions/3") == site.help("/dashboard/versions")


def test_every_kind_of_page_has_a_page_in_the_documentation() -> None:
    assert {path.strip("/").partition("/")[0] for path in PAGES} == TOPICS.keys()
    assert all((ROOT / topic).with_suffix(".md").is_file() for topic in TOPICS.values())


def test_no_module_of_the_dashboard_has_a_path_of_rest() -> None:
    modules = list(Path(dashboard.__file__).parent.rglob("*.py"))
    assert len(modules) > 20
    assert [module.name for module in modules if "/v1/" in module.read_text()] == []
