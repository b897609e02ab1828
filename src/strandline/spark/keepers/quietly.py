"""Python workers of Spark that end without a word when Spark needs them no more."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any


def serve(worker: Any, sock: Any, authenticated: bool) -> Any:
    """Serve tasks as Spark has it, but end without a traceback when it has closed the connection: it needs no more."""
    try:
        return worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


def end_quietly() -> None:
    """In a task: have this worker end so, also where it was forked by Spark's own daemon, as on a cluster."""
    daemon = sys.modules.get("__main__")
    if getattr(getattr(daemon, "__spec__", None), "name", "") == "pyspark.daemon":
        worker = getattr(daemon, "worker", None)
        if worker is not None and not isinstance(worker, partial):
            # It is looked up anew for each task.
            daemon.worker = partial(serve, worker)  # type: ignore[union-attr]
