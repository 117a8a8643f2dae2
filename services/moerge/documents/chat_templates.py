"""Chat templates, which are programs of the checkpoint: rendered in a child process with limits."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from moerge.errors import MoergeError

DATE = date(2024, 7, 26)
"""The date that templates get in place of today's, as Llama 3's without a clock. Another one makes other documents."""
_SECONDS, _MEMORY = 10, 2**29  # of one conversation: processor time, bytes
_LONGEST = 2**26  # characters of a rendered conversation
_TODO = "correct the expert's chat_template.jinja, or chat_template in its tokenizer_config.json"


class TemplateRefusal(ValueError):  # noqa: N818  # the template's answer, no fault of ours
    """The template refuses a conversation, or has an error."""


class Renderer:
    """A child process that renders conversations as transformers does. It starts with the first one.

    Equal conversations have equal texts in every process, on every day: see `template_environment`.
    The system ends it at a conversation that takes more than `seconds` of processor time or `memory` bytes.
    """

    def __init__(self, seconds: int = _SECONDS, memory: int = _MEMORY) -> None:
        self._seconds, self._memory = seconds, memory
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def text(self, template: str, messages: Sequence[Mapping[str, Any]], **values: object) -> str:
        """The text of a conversation; `values` are the template's further variables.

        Raises:
            TemplateRefusal: the template raises an error.
            MoergeError: it exceeds a limit.
        """
        with self._lock:
            answer = self._answer({"template": template, "messages": messages, "values": values})
        if answer is None:
            what = f"one conversation takes over {self._seconds} s, {self._memory >> 20} MiB or {_LONGEST} characters"
            raise MoergeError(what, where="chat template", todo=_TODO)
        if "error" in answer:
            raise TemplateRefusal(answer["error"])
        return answer["text"]

    def _answer(self, request: dict[str, object]) -> dict[str, str] | None:
        """The child's answer; None if it has ended."""
        child = self._child = self._child or self._start()
        if child.stdin is None or child.stdout is None:
            raise ValueError("the child has no pipes")
        with suppress(BrokenPipeError):
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            if line := child.stdout.readline():
                answer: dict[str, str] = json.loads(line)
                return answer
        self._child = None
        _end(child)
        return None

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", __name__, str(self._seconds), str(self._memory)]
        zone = {**os.environ, "TZ": "UTC"}  # for strftime_now('%s')
        pipe = subprocess.PIPE
        # In a group of its own, because a terminal's Ctrl-C is for this process.
        child = subprocess.Popen(command, env=zone, stdin=pipe, stdout=pipe, process_group=0)  # noqa: S603  # our own
        weakref.finalize(self, _end, child)
        return child


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None and not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.close()
    child.wait()


@cache
def _renderer(process: int) -> Renderer:
    """One for each process; a forked one has a child of its own."""
    return Renderer()


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False) -> str:
    """A conversation through a transformers tokenizer's chat template; `prompt` adds the beginning of an answer.

    Errors are those of `Renderer.text`.
    """
    values = {**tokenizer.special_tokens_map, "add_generation_prompt": prompt}
    return _renderer(os.getpid()).text(_template(tokenizer), messages, **values)


def date_notice(tokenizer: Any) -> str:
    """A sentence on the date in a tokenizer's chat template; empty if it doesn't ask for one."""
    return f"the chat template asks for the date; it gets {DATE}" if "strftime_now" in _template(tokenizer) else ""


def _template(tokenizer: Any) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:  # several templates without a default
        raise MoergeError(str(error), where="chat template", todo=_TODO) from error


def _serve(seconds: int, memory: int) -> None:
    """The child: a request on each line of standard input, an answer on each of standard output."""
    from jinja2 import TemplateRuntimeError
    from transformers.utils.chat_template_utils import render_jinja_template

    from moerge.documents.template_environment import install

    install(DATE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a dump would hold text
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if (held := _data_bytes()) is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (held + memory, resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, seconds)  # its signal ends the process
        random.seed(0)
        try:
            texts: Any = render_jinja_template(
                conversations=[request["messages"]], chat_template=request["template"], **request["values"]
            )
            answer = {"text": texts[0][0]}
        except MemoryError:
            return
        except Exception as error:  # noqa: BLE001  # a template can raise any
            answer = {"error": type(error).__name__}
            with suppress(TemplateRuntimeError):  # of a value that has no text
                answer["error"] = str(error) or answer["error"]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if max(map(len, answer.values())) > _LONGEST:
            return
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _data_bytes() -> int | None:
    """The private memory of this process, which RLIMIT_DATA counts; None on systems that don't tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text("ascii").split()[5]) * resource.getpagesize() if statm.exists() else None


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
