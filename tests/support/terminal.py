"""A terminal, and a person's shell on it."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PROMPT = re.compile(r"<<(\d+)>> $")
_QUESTION = re.compile(r"\[y/n\][: ]*$", re.IGNORECASE)


def _take_terminal() -> None:
    """Makes the terminal the process's own, so that Ctrl-C is for it, whatever started the tests ignores."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A terminal, and a process that runs on it. All output is read at once, so the process never waits."""

    seconds = 300
    """Longest wait."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        echo: bool = True,
    ) -> None:
        self._keyboard, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        if not echo:
            modes = termios.tcgetattr(terminal)
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
        self.process = subprocess.Popen(  # noqa: S603  # our own command
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "OMP_NUM_THREADS": "1", **(environment or {})},
            cwd=folder,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(terminal)
        self._bytes, self._ended, self._news = b"", False, threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._keyboard, 65536)
            except OSError:  # the process closed it
                data = b""
            with self._news:
                self._bytes += data
                self._ended = not data
                self._news.notify_all()
            if not data:
                return

    @property
    def shown(self) -> str:
        return self._bytes.decode(errors="replace")

    def until(self, holds: Callable[[str], bool]) -> None:
        """Waits until that holds of all that was shown."""
        with self._news:
            self._news.wait_for(lambda: self._ended or holds(self.shown), self.seconds)
            assert holds(self.shown), self.shown

    def type(self, text: bytes) -> None:
        os.write(self._keyboard, text)

    def close(self) -> int:
        """Reads to the end; the process's exit status."""
        self._reader.join(self.seconds)
        os.close(self._keyboard)
        return self.process.wait(60)

    def lines(self) -> list[str]:
        """Every line as it was drawn, without its colours."""
        return re.split(r"[\r\n]+", plain(self.shown))


def plain(shown: str) -> str:
    """Text without colours and cursor movements."""
    return re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07)", "", shown)


class Shell(Terminal):
    """A bash on a terminal of its own, in a folder that is also the home. Every question is answered with yes.

    `enter` is a command that runs it elsewhere, as in another network.
    """

    def __init__(self, folder: Path, *enter: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        given = {
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PS1": "<<$?>> ",
            "HF_HUB_OFFLINE": "1",
            "BASH_SILENCE_DEPRECATION_WARNING": "1",
            **environment,
        }
        command = [*enter, "bash", "--noprofile", "--norc", "--noediting"]
        super().__init__(command, columns=250, environment=given, folder=folder, echo=False)
        self.folder = folder
        self._start = self._answered = 0
        self._status()

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *raised: object) -> None:
        """Ends what runs, politely, and the shell."""
        try:
            self.type(b"\x03\nexit\n")
            self._reader.join(30)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.close()

    @property
    def output(self) -> str:
        """Output since the last line was typed, without the prompt."""
        return _PROMPT.sub("", plain(self.shown)[self._start :]).replace("\r", "").strip()

    def starts(self, line: str, shows: str) -> str:
        """Types a command that stays, and waits until it shows that."""
        self._start = len(plain(self.shown))
        self.type(line.encode() + b"\n")
        return self.waits(shows)

    def waits(self, shows: str) -> str:
        """Waits until the command that runs shows that."""
        self.until(lambda _: re.search(shows, self.output) is not None)
        return self.output

    def stops(self) -> str:
        """Ctrl-C."""
        self.type(b"\x03")
        self._status()
        return self.output

    def ends(self) -> str:
        """Waits for the end of the command that runs, which must succeed."""
        assert self._status() == 0, self.output
        return self.output

    def types(self, line: str, status: int = 0) -> str:
        """Types a command, and returns its output once it has ended with that exit status."""
        self.starts(line, "")
        result = self._status()
        print(f"$ {line}\n{self.output}")  # the transcript, which pytest shows if a test fails
        assert result == status, f"{line}: exit status {result}"
        return self.output

    def repeats(self, line: str, holds: Callable[[str], bool]) -> str:
        """Types a command again and again until that holds of its output, as the page says that one waits."""
        deadline = time.monotonic() + self.seconds
        while not holds(output := self.types(line)):
            assert time.monotonic() < deadline, line
        return output

    def _status(self) -> int:
        """The exit status that the next prompt shows. Questions before it are answered."""
        self._answered = self._start
        while True:
            self.until(lambda _: self._asks() or self._prompt() is not None)
            if (prompt := self._prompt()) is not None:
                return int(prompt[1])
            self._answered = len(plain(self.shown))
            self.type(b"y\n")

    def _asks(self) -> bool:
        return _QUESTION.search(plain(self.shown)[self._answered :]) is not None

    def _prompt(self) -> re.Match[str] | None:
        return _PROMPT.search(plain(self.shown)[self._start :])
