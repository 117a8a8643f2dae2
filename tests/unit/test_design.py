"""docs/design.md holds the laws that code, tests and docs cite; the docs' links lead somewhere."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design.md"
PAGES = (
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *sorted(page for folder in ("docs", "services/moerge_lab") for page in (ROOT / folder).rglob("*.md")),
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "examples").glob("*/README.md")),
)
SOURCES = tuple(
    path
    for folder in ("proto", "services", "workers", "coordinator", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)
)
CITATION = re.compile(r"(?<![a-z])laws?[ _](\d+(?:(?:, | and | or |, and )\d+)*)", re.IGNORECASE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def cited(text: str) -> set[int]:
    """Numbers of the laws that a text cites: "law 4", "laws 3 and 5", test_law_3."""
    return {int(number) for result in CITATION.findall(text) for number in re.findall(r"\d+", result)}


def laws() -> dict[int, str]:
    """Number -> text of each law in docs/design.md."""
    section = DESIGN.read_text().partition("\n## The laws\n")[2].partition("\n## ")[0]
    return {int(number): text for number, text in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", section, re.M | re.S)}


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^(```|~~~).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("Law 4 at home", {4}), ("laws 3 and 5", {3, 5}), ("def test_law_10_x", {10}), ("(laws 1, 2 and 9)", {1, 2, 9})],
)
def test_a_citation_is_read_in_each_spelling(text: str, numbers: set[int]) -> None:
    assert cited(text) == numbers


def test_design_defines_ten_laws_and_every_cited_law() -> None:
    assert [*laws()] == [*range(1, 11)]
    unknown = {
        str(path.relative_to(ROOT)): result
        for path in (*SOURCES, *PAGES)
        if (result := cited(path.read_text()) - laws().keys())
    }
    assert unknown == {}


@pytest.mark.parametrize("number", range(1, 11))
def test_each_law_links_tests_that_cite_it(number: int) -> None:
    links = [link for link in LINK.findall(laws()[number]) if link.startswith("../tests/")]
    assert links
    for link in links:
        assert number in cited((DESIGN.parent / link).read_text()), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_resolve(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_decision_and_every_page_is_linked() -> None:
    for decision in (ROOT / "docs" / "decisions").glob("*.md"):
        assert f"(decisions/{decision.name})" in DESIGN.read_text(), decision.name
    index = ROOT / "docs" / "README.md"
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert page == index or name.startswith("decisions/") or f"({name})" in index.read_text(), name


def test_security_names_the_newest_release() -> None:
    [newest, *_] = re.findall(r"(?m)^## (\d+\.\d+\.\d+) ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert f"The latest release only: {newest}." in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
