"""`python -m messages`: every command's help, then every other text of the code, in the order of the files.

A text is a string of three words or more that is no docstring. Values that are put into it are shown as {…}.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from typer import Context

from moerge.cli.app import every_command

ROOT = Path(__file__).parents[2]
PACKAGES = ("proto", "services", "workers", "coordinator")


def helps() -> Iterator[str]:
    """The help of every command, from the root down."""
    for path, command in every_command():
        yield command.get_help(Context(command, info_name=path))


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that people may read."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    result = [
        (node.lineno, _text(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in alone | parts
    ]
    return (item for item in sorted(result) if len(item[1].split()) >= 3)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def main() -> None:
    for text in helps():
        print(text)
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if result := list(texts(path.read_text(encoding="utf-8"))):
            print(f"\n{path.relative_to(ROOT)}")
            for line, text in result:
                print(f"{line:5}  {text}")


if __name__ == "__main__":
    main()
