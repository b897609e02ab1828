"""What a driver is doing, said in one place: to whoever runs the program, to its log, to programs that log it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

log = logging.getLogger("strandline")

Listener = Callable[[str, bool], object]
"""Is given a text, and whether it is a detail: what comes again and again."""

_told = logging.getLogger("strandline.told")
_listeners: list[Listener] = []
_shown_by: list[Listener] = []
"""Those of them that show people what they are to see."""


def tell(text: str, *, detail: bool = False) -> None:
    """Say what has just happened, in one line. Never fails, and is no warning: those are logged."""
    (log.debug if detail else log.info)("%s", text)
    _hear(text, detail)


def tell_everybody(text: str) -> None:
    """Say what everybody is to know though it is no warning: also where nobody listens and the program keeps no log."""
    _hear(text, False)
    if is_logged():
        if _told.level == log.level == logging.NOTSET:
            # By default, a log takes warnings alone.
            _told.setLevel(logging.INFO)
        _told.info(text)
    elif not _shown_by:
        print(f"strandline: {text}", file=sys.stderr)


def is_logged() -> bool:
    """Whether somebody handles our log records, beside the logs of drivers."""
    handlers = [*log.handlers, *logging.getLogger().handlers]
    return not all(getattr(handler, "shows_nothing", False) for handler in handlers)


@contextlib.contextmanager
def listening(listener: Listener, *, shows: bool = False) -> Iterator[None]:
    """Hear what is told in this process. `shows`: people see there what they want to see."""
    lists = [_listeners, _shown_by] if shows else [_listeners]
    for each in lists:
        each.append(listener)
    try:
        yield
    finally:
        for each in lists:
            each.remove(listener)


def _hear(text: str, detail: bool) -> None:
    for listener in list(_listeners):
        # A disk that is full, a terminal that is gone: nothing of the job's.
        with contextlib.suppress(OSError, ValueError):
            listener(text, detail)
