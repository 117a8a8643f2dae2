"""The example of an operator's and two owners' machines, each a clone of its own, by the commands of its page."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moerge.files import cache_folder
from support.containers import Containers
from support.expected import require_lines
from support.terminal import Shell
from support.transcripts import ROOT, blocks, typed

pytestmark = [pytest.mark.images, pytest.mark.timeout(3600)]
PAGE = "examples/two-machines/README.md"
HERE = Path(PAGE).parent
OWNERS = ("code", "geography")
ADDRESS = "192.0.2.1"
"""The page's, of the operator's machine."""


@pytest.fixture
def machines(made: Containers, tmp_path: Path) -> Iterator[dict[str, Shell]]:
    """The operator's and each owner's shell in a clone. Only the operator's has more of the examples."""
    ignored = shutil.ignore_patterns("demo", "out", "__pycache__")
    for name in ("operator", *OWNERS):
        shutil.copytree(ROOT / "deploy", tmp_path / name / "deploy")
        copied = HERE.parent if name == "operator" else HERE
        shutil.copytree(ROOT / copied, tmp_path / name / copied, ignore=ignored)
    with ExitStack() as stack:
        shells = {
            name: stack.enter_context(made.shell(tmp_path / name, XDG_CACHE_HOME=str(cache_folder().parent)))
            for name in ("operator", *OWNERS)
        }
        shells["operator"].types(f"ip address add {ADDRESS} dev lo")
        yield shells


def carry(machines: dict[str, Shell]) -> None:
    """What people bring from one machine to another, as far as it exists."""
    for owner in OWNERS:
        packed, there = machines["operator"].folder / HERE / "out" / owner, machines[owner].folder / HERE / "out"
        shutil.copytree(packed, there, dirs_exist_ok=True)
        if (there / "request").exists():
            shutil.copy(there / "request", packed)


@pytest.mark.usefixtures("trained")
def test_the_commands_on_each_machine_lead_to_a_version_over_tls(machines: dict[str, Shell]) -> None:
    said = [""]
    for block in blocks(PAGE):
        if block.language == "text":
            for text in said:
                require_lines(block, text)
        else:
            here = ["operator"] if "operator" in block.section.lower() else OWNERS
            lines = {name: [line.replace("DOMAIN=code", f"DOMAIN={name}") for line in typed(block)] for name in here}
            said = ["\n".join(machines[name].types(line) for line in lines[name]) for name in here]
            carry(machines)
    for owner in OWNERS:
        assert not [*machines[owner].folder.rglob("key.pem")]
    others = "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"
    assert "CERTIFICATE_VERIFY_FAILED" in machines["operator"].types(f"{others} moerge expert list", status=1)
