"""Python workers of Spark that end without a word when Spark needs them no more."""

from __future__ import annotations

import sys
import traceback
from typing import Any

_CLOSED = (BrokenPipeError, ConnectionResetError)


def serve(worker: Any, sock: Any, authenticated: bool) -> Any:
    """Serve tasks as Spark has it, but end without a traceback when it has closed the connection: it needs no more."""
    sys.unraisablehook = _report
    try:
        return worker(sock, authenticated)
    except _CLOSED:
        return 1


def _report(error: sys.UnraisableHookArgs) -> None:
    """Report an error of a destructor, unless a file is flushed into a connection that Spark has closed."""
    if not isinstance(error.exc_value, _CLOSED):
        sys.__unraisablehook__(error)


def end_quietly() -> None:
    """In a task: have this worker end so, also where it was forked by Spark's own daemon, as on a cluster."""
    daemon: Any = sys.modules.get("__main__")
    if getattr(getattr(daemon, "__spec__", None), "name", "") == "pyspark.daemon":
        daemon.traceback = _Traces()
        sys.unraisablehook = _report


class _Traces:
    """What a worker of Spark's own daemon prints an error with that ends it."""

    def print_exc(self) -> None:
        if not isinstance(sys.exception(), _CLOSED):
            traceback.print_exc()

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)
