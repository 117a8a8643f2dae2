"""MkDocs' hook: the site's files have the paths of the repository, so that a page's links are those on a forge.

Links to other files lead to the repository at this commit, if MOERGE_REPOSITORY has its address.
"""

import os
import re
from logging import getLogger
from pathlib import Path
from posixpath import dirname, join, normpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from moerge.build import build

LOG = getLogger("mkdocs.hooks.pages")
ROOT = Path(__file__).parents[1]
OUTSIDE = ("README.md", "SECURITY.md", "CHANGELOG.md", "examples/**/README.md", "services/moerge_lab/**/*.md")
"""Pages outside of docs/."""
ASSETS = (".svg", ".png", ".css")
_FOREIGN = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\s\">]+)")
_FENCED = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the site, with their paths in the repository."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    inside = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", *ASSETS)]
    paths = sorted([*inside, *(path for pattern in OUTSIDE for path in ROOT.glob(pattern))])
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return Files([*theme, *(File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names)])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page in the dialect of Python-Markdown, with its links out of the site."""

    def led(link: re.Match[str]) -> str:
        name = normpath(join(dirname(page.file.src_uri), link[2]))
        if files.get_file_from_path(name) is not None or not (ROOT / name).exists():
            return link[0]  # MkDocs warns of a missing file
        repository = os.environ.get("MOERGE_REPOSITORY", "").rstrip("/")
        address = f"{repository}/blob/{build().commit or 'HEAD'}/{name}{link[3] or ''}"
        return f"[{link[1]}]({address})" if repository else link[1]

    result, at = "", 0
    for fenced in [*_FENCED.finditer(markdown), None]:
        prose = markdown[at : fenced.start() if fenced else None]
        result += _LINK.sub(led, _in_dialect(prose)) + (fenced[0] if fenced else "")
        at = fenced.end() if fenced else at
    return result


def _in_dialect(prose: str) -> str:
    """An item of a list indents its blocks by four, with an empty line behind; code in a table has no escapes."""
    indented = re.sub(r"^ {2,3}(?=\S)", "    ", prose, flags=re.MULTILINE)
    apart = re.sub(r"(\n\n(?: {4}.*\n)+)(?=- |\d+\. )", r"\1\n", indented)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), apart)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> None:
    """Warn of what a reader's browser would request from another host."""
    for address in _FOREIGN.findall(output):
        LOG.warning("%s loads %s", page.file.src_uri, address)
