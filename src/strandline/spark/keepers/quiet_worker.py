"""Python workers that print no traceback when Spark closes their connection."""

from __future__ import annotations

import sys
import traceback
from typing import Any

_CLOSED = (BrokenPipeError, ConnectionResetError)


def serve(worker: Any, sock: Any, authenticated: bool) -> Any:
    """Run Spark's worker, but end without a traceback when Spark closes the connection: it needs no more rows."""
    sys.unraisablehook = _report
    try:
        return worker(sock, authenticated)
    except _CLOSED:
        return 1


def _report(error: sys.UnraisableHookArgs) -> None:
    """Report an error of a destructor, except the flush of a file to a connection that Spark has closed."""
    if not isinstance(error.exc_value, _CLOSED):
        sys.__unraisablehook__(error)


def end_quietly() -> None:
    """In a task: make this worker end without a traceback where Spark's daemon forked it, as on a cluster."""
    daemon: Any = sys.modules.get("__main__")
    if getattr(getattr(daemon, "__spec__", None), "name", "") == "pyspark.daemon":
        daemon.traceback = _QuietTraceback()
        sys.unraisablehook = _report


class _QuietTraceback:
    """Replaces the module `traceback` in Spark's daemon, which prints with it the error that ends a worker."""

    def print_exc(self) -> None:
        if not isinstance(sys.exception(), _CLOSED):
            traceback.print_exc()

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)
