"""Announcements of a driver's progress: to listeners in its process, such as its terminal and log, and to logging."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

log = logging.getLogger("strandline")

Listener = Callable[[str, bool], object]
"""Takes a text, and whether it is a detail: one that is repeated often."""

_always_log = logging.getLogger("strandline.told")
_listeners: list[Listener] = []
_visible_listeners: list[Listener] = []
"""The listeners that show announcements to the user."""


def tell(text: str, *, detail: bool = False) -> None:
    """Announce an event in one line. Never fails. Warnings do not come here: they are logged."""
    (log.debug if detail else log.info)("%s", text)
    _notify(text, detail)


def tell_always(text: str) -> None:
    """Announce an event that every user must see: on standard error if no visible listener and no log takes it."""
    _notify(text, False)
    if is_logged():
        if _always_log.level == log.level == logging.NOTSET:
            # By default, a log takes only warnings.
            _always_log.setLevel(logging.INFO)
        _always_log.info(text)
    elif not _visible_listeners:
        print(f"strandline: {text}", file=sys.stderr)


def is_logged() -> bool:
    """Whether a handler other than a driver's log takes our log records."""
    handlers = [*log.handlers, *logging.getLogger().handlers]
    return not all(getattr(handler, "shows_nothing", False) for handler in handlers)


@contextlib.contextmanager
def listening(listener: Listener, *, shows: bool = False) -> Iterator[None]:
    """Call `listener` for each announcement in this process. `shows`: it shows them to the user."""
    lists = [_listeners, _visible_listeners] if shows else [_listeners]
    for each in lists:
        each.append(listener)
    try:
        yield
    finally:
        for each in lists:
            each.remove(listener)


def _notify(text: str, detail: bool) -> None:
    for listener in list(_listeners):
        # A full disk or a closed terminal does not concern the job.
        with contextlib.suppress(OSError, ValueError):
            listener(text, detail)
