"""Programs of models are confined."""

import os
import socket
from pathlib import Path

import pytest

from moerge.benchmarks import confined


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("def f(): return 1\nassert f() == 1", True),
        ("open('a', 'w').write('b'); assert open('a').read() == 'b'", True),
        ("assert False", False),
        ("def f(", False),
        ("raise SystemExit", False),
        ("import os; os._exit(0)", False),
        ("x = bytes(5 * 2**30)", False),
    ],
)
def test_a_program_passes_if_it_ends_without_an_error(program: str, expected: bool) -> None:
    assert confined.passes(program) == expected


def test_what_it_is_said_to_hold_holds(tmp_path: Path) -> None:
    said = confined.described()
    kept = tmp_path / "kept"
    kept.write_text("text")
    with socket.create_server(("127.0.0.1", 0)) as server:
        attacks = {
            "no network": [
                f"import socket; socket.create_connection({server.getsockname()!r})",
                f"import os; os.kill({os.getpid()}, 0)",
            ],
            "no writing": [
                f"open({str(kept)!r}, 'w')",
                f"import os; os.truncate({str(kept)!r}, 0)",
                f"import os; os.remove({str(kept)!r})",
                f"open({str(tmp_path / 'new')!r}, 'w')",
            ],
        }
        held = said.partition("can't enforce")[0]
        for name, programs in attacks.items():
            if name in held:
                assert not any(map(confined.passes, programs)), name
    assert "limits of time" in held
    assert kept.read_text() == "text"


def test_a_program_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "SECONDS", 0.5)
    assert not confined.passes("while True: pass")
