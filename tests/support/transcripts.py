"""The commands of README and docs, read from their pages to be typed in their order."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
_OF_FOLDERS = [path for at in ("docs", "services/moerge_lab/figures") for path in sorted((ROOT / at).rglob("*.md"))]
PAGES = ("README.md", "SECURITY.md", *(str(path.relative_to(ROOT)) for path in _OF_FOLDERS))
EXAMPLES = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*/README.md")))
NOT_TYPED = {
    "pip install *": "no index has a release yet, and torch is gigabytes",
    "make *": "installs, and runs the tests themselves, the benchmark or the demo, which tests/e2e/test_demo.py runs",
    "moerge keeper *": "another party's; tests/e2e/test_masks.py has two",
    "moerge coordinator cohort *": "needs masked contributions of three owners, likewise",
    "moerge coordinator unmask *": "likewise",
    "moerge verify * && hf upload *": "needs an account of the hub; tests/contract/test_hub.py has a stand-in of it",
    "hf download *": "likewise",
    "moerge export *": "needs llama.cpp; tests/engines runs it",
    "git clone *": "the network",
    "kubectl *": "needs a cluster; tests/unit/test_kubernetes.py renders and validates deploy/kubernetes",
    "python3 -m venv /opt/moerge": "writes outside of the tests' folders",
    "/opt/moerge/bin/pip install *": "likewise",
    "cp deploy/systemd/*": "likewise; tests/unit/test_samples.py validates the units",
    "systemctl *": "needs systemd as the first process, likewise",
    "journalctl *": "likewise",
    "umask 077": "of the `ray` commands below",
    "mkdir -p ~/.ray *": "likewise",
    "chmod 600 ~/.ray/*": "likewise",
    "export RAY_AUTH_MODE=token *": "likewise",
    "ray *": "fixed ports, on several machines; tests/kills starts two nodes with Ray's own functions",
    "moerge worker run * --ray-address *": "needs these nodes; tests/kills runs a worker on two",
    "moerge merge --device cuda *": "needs a GPU",
    "llama-server *": "needs llama.cpp",
    "ollama *": "needs ollama",
    "python -m llama_cpp.server *": "needs llama.cpp; tests/engines runs it",
    "pg_dump *": "needs servers; tests/e2e/test_postgres_backup.py runs the same",
    "createdb *": "likewise",
    "createuser *": "likewise",
    "pg_restore *": "likewise",
    "aws s3 sync *": "likewise, with another client of S3",
    "moerge coordinator inputs *": "needs the consent of every owner; tests/contract/test_rebuild.py runs it",
    "moerge version rebuild *": "likewise",
    "moerge version sign * --from made": "likewise; tests/attacks/test_swap.py runs it",
    "moerge demo *": "tests/e2e/test_demo.py runs it",
    "moerge table *--preset *": "trains experts, for minutes to hours; moerge_lab/figures has them",
    "vllm serve *": "`make test-engines` runs it, where vLLM is installed",
    "lm_eval --model vllm *": "likewise",
    "moerge benchmark * --backend vllm *": "likewise",
    "curl --fail --silent http://127.0.0.1:8000/*": "asks that server",
    "python -m moerge_lab.trials *": "trains and measures for minutes to an hour, likewise",
    "PYTHONPATH=tests python -m bench.sizes *": "needs a GPU; tests/bench runs it on a tiny shape",
    "PYTHONPATH=tests python -m simulation *": "tests/simulation runs fewer of the same",
    "PYTHONPATH=tests python -m kills *": "tests/kills runs fewer of the same",
    "PYTHONPATH=tests .venv/bin/python -m mutations": "breaks everything, for minutes",
    ".venv/bin/pytest -m slow *": "`make test-slow` runs them",
}
"""Pattern of commands that no journey types -> the reason."""


@dataclass(frozen=True)
class Command:
    """A line of a shell block.

    Attributes:
        page: its path.
        section: the heading above it.
        line: without its comment.
    """

    page: str
    section: str
    line: str

    @property
    def reason(self) -> str | None:
        """The reason for leaving it out of the journeys; None if one must type it."""
        return next((why for pattern, why in NOT_TYPED.items() if fnmatchcase(self.line, pattern)), None)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        section: the heading above it.
        above: prose between it and the block or heading before.
        language: empty if it has none.
        lines: a backslash continues a line.
    """

    section: str
    above: str
    language: str
    lines: list[str]


def blocks(page: str) -> Iterator[Block]:
    """Every fenced block of a page, in order."""
    text = re.sub(r"\\\n\s*", "", (ROOT / page).read_text(encoding="utf-8"))
    section, above, lines = "", list[str](), list[str]()
    language: str | None = None
    for line in text.splitlines():
        if line.startswith("```") and language is None:
            language, lines = line[3:].strip(), []
        elif line.startswith("```") and language is not None:
            yield Block(section, " ".join(above), language, lines)
            language, above = None, []
        elif language is not None:
            lines.append(line)
        elif line.startswith("#"):
            section, above = line.lstrip("# "), []
        else:
            above.append(line)


def typed(block: Block) -> list[str]:
    """The commands of a block, without comments; none if it is no shell."""
    if block.language not in ("", "sh"):
        return []
    return [line for text in block.lines if not text.startswith("#") and (line := text.partition(" #")[0].strip())]


def commands(page: str) -> list[Command]:
    """Every command in the blocks of a page that are shell or have no language."""
    return [Command(page, block.section, line) for block in blocks(page) for line in typed(block)]


def block(page: str, language: str) -> str:
    """The only block of a language on a page."""
    [text] = re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(text)


class Part:
    """The commands of a section; a context that ends well only when all were typed.

    `names` are what a reader replaces everywhere: text of the page -> the reader's own.
    """

    def __init__(self, page: str, section: str) -> None:
        self._left = [command for command in commands(page) if command.section == section and command.reason is None]
        assert self._left, f"{page} has no commands in its section {section!r}"
        self.names: dict[str, str] = {}

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert kind or not self._left, f"not typed: {[item.line for item in self._left]}"

    def next(self, begins: str, here: Mapping[str, str] | None = None) -> str:
        """The next command, which must begin so, as a reader types it; `here` are names replaced in this line alone."""
        line = self._left.pop(0).line if self._left else "nothing"
        assert line.startswith(begins), f"expected {begins!r} next; found {line!r}"
        for old, new in (here or {}).items():
            assert old in line, f"{old!r} is not in {line!r}"
            line = line.replace(old, new)
        for old, new in self.names.items():
            line = line.replace(old, new)
        return line

    def rest(self) -> list[str]:
        """All commands that are left, as the page has them."""
        lines, self._left = [item.line for item in self._left], []
        return lines


class Header(Part):
    """The commands in the comments of a file: lines behind `indent` spaces. A backslash continues a line."""

    def __init__(self, page: str, indent: int) -> None:
        text = re.sub(r"\\\n# *", "", (ROOT / page).read_text(encoding="utf-8"))
        lines = re.findall(rf"^# {{{indent}}}(\S.*)$", text, re.MULTILINE)
        assert lines, f"{page} has no commands behind {indent} spaces"
        self._left = [Command(page, "header", line) for line in lines]
        self.names = {}
