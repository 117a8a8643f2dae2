"""A program in a child with limits, without network and without a place to write, as far as the system can.

Run as a script by `passes`: it needs the standard library alone.
"""

import ctypes
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

SECONDS = 15.0
"""Wall time of a program."""
_LIMITS = {
    resource.RLIMIT_CPU: 10,
    resource.RLIMIT_AS: 4 * 2**30,
    resource.RLIMIT_FSIZE: 2**24,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_NPROC: 0,  # no effect for root
    resource.RLIMIT_CORE: 0,
}
_NEW_USER, _NEW_OTHERS = 0x10000000, 0x40000000 | 0x20000000 | 0x08000000  # network, processes, IPC
_DIE_WITH_PARENT, _NO_NEW_PRIVILEGES = 1, 38
_RULESET, _RULE, _RESTRICT = 444, 445, 446  # Landlock's system calls, the same on every architecture
_ABI, _WRITES = 3, 0b100_1111_1111_0010  # truncate, make, remove and write files of every kind
_STEPS = (
    "limits of time, memory and file sizes",
    "no network, and no signals to other processes",
    "no writing outside a temporary folder",
)


def passes(program: str) -> bool:
    """Tell whether a program runs to its end without an error."""
    return _confined(program) is not None


def described() -> str:
    """A sentence on what confines programs on this system, and what doesn't."""
    places = _confined("") or ""
    held = [text for place, text in enumerate(_STEPS) if str(place) in places]
    lacking = [text for text in _STEPS if text not in held]
    end = f" This system can't enforce: {'; '.join(lacking)}." if lacking else ""
    return f"Programs of models are executed with: {'; '.join(held)}. They can read what you can read.{end}"


def _confined(program: str) -> str | None:
    """The indices in `_STEPS` of what confined a program; None if it failed."""
    end = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(  # noqa: S603  # the program is in a child for this
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": os.defpath, "HOME": folder},
            start_new_session=True,
        )
        with process:
            try:
                said, _ = process.communicate(f"{end}\n{program}".encode(errors="replace"), timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    held, _, last = said.decode(errors="replace").strip().partition(" ")
    return held if process.returncode == 0 and last == end else None


# --- in the child


def _main() -> int:
    end, _, program = sys.stdin.buffer.read().decode().partition("\n")
    out = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    steps = [_unplug(), _lock()]
    if steps[0] and (first := os.fork()):  # the first process of the new namespace
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    _limit()
    held = "".join(str(place) for place, step in enumerate([True, *steps]) if step)
    code = compile(program, "program", "exec")
    exec(code, {"__name__": "__main__"})  # noqa: S102  # confined by now
    os.write(out, f"{held} {end}\n".encode())
    return 0


def _limit() -> None:
    _libc().prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    for kind, most in _LIMITS.items():
        resource.setrlimit(kind, (most, most))


def _unplug() -> bool:
    """Namespaces of its own: of the network, with nothing but a loopback that is down, and of its later children."""
    libc = _libc()
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    return any(libc.unshare(kinds | _NEW_OTHERS) == 0 for kinds in (_NEW_USER, 0))


def _lock() -> bool:
    """Landlock: writes only below the current folder."""
    libc = _libc()
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.syscall(_RULESET, None, 0, 1) < _ABI:
        return False
    handled = ctypes.c_uint64(_WRITES)
    if (rules := libc.syscall(_RULESET, ctypes.byref(handled), 8, 0)) < 0:
        return False
    beneath = os.open(".", os.O_PATH)
    rule = _WRITES.to_bytes(8, sys.byteorder) + beneath.to_bytes(4, sys.byteorder, signed=True)
    added = libc.syscall(_RULE, rules, 1, ctypes.c_char_p(rule), 0)
    return bool(added == 0 and libc.syscall(_RESTRICT, rules, 0) == 0)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    sys.exit(_main())
