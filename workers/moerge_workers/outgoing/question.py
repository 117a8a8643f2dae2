"""The wait for an owner's answer, while the question may become outdated."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS = 1.0


@contextmanager
def watching(outdated: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Call `outdated` in a thread until it is true; the context's function tells whether it was, or raises its error.

    The context's end doesn't wait for a running call.
    """
    result: list[bool | Exception] = []
    ended = threading.Event()

    def watch() -> None:
        try:
            while not outdated():
                if ended.wait(_SECONDS):
                    return
            result.append(True)
        except Exception as error:  # noqa: BLE001  # raised in the caller's thread
            result.append(error)

    def is_outdated() -> bool:
        if result and isinstance(result[0], Exception):
            raise result[0]
        return bool(result)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield is_outdated
    finally:
        ended.set()
