"""What a driver is doing, said in one place: to whoever runs the program, to its log, to programs that log it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

log = logging.getLogger("strandline")

Listener = Callable[[str, bool], object]
"""Is given a text, and whether it is a detail: what comes again and again."""

_listeners: list[Listener] = []


def tell(text: str, *, detail: bool = False) -> None:
    """Say what has just happened, in one line. Never fails, and is no warning: those are logged."""
    (log.debug if detail else log.info)("%s", text)
    for listener in list(_listeners):
        # A disk that is full, a terminal that is gone: nothing of the job's.
        with contextlib.suppress(OSError, ValueError):
            listener(text, detail)


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear what is told in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
