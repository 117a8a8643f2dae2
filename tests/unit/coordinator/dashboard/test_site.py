"""The site's menu, its templates, and its way to REST."""

from pathlib import Path

import pytest
from fastapi import FastAPI

from moerge_coordinator import dashboard
from moerge_coordinator.dashboard.pages import PAGES
from moerge_coordinator.dashboard.site import Site
from moerge_proto.owners import Role
from moerge_proto.problems import Problem, ProblemType

MENUS = {
    Role.OPERATOR: "versions experts owners contributions bodies workflows audit settings",
    Role.OWNER: "versions experts contributions bodies",
    Role.READER: "versions",
}


@pytest.mark.parametrize("role", MENUS)
def test_a_role_s_menu_has_the_pages_that_it_may_see(role: Role) -> None:
    places = [place for _, place in Site(FastAPI(), PAGES).menu(role)]
    assert places == [f"/dashboard/{name}" for name in MENUS[role].split()]


def test_templates_write_others_words_as_text() -> None:
    page = Site(FastAPI(), PAGES).problem(Problem.of(ProblemType.CONFLICT, "<script>&\"'"))
    assert b"&lt;script&gt;&amp;&#34;&#39;" in page.body


def test_no_module_of_the_dashboard_has_a_path_of_rest() -> None:
    modules = list(Path(dashboard.__file__).parent.rglob("*.py"))
    assert len(modules) > 20
    assert [module.name for module in modules if "/v1/" in module.read_text()] == []
