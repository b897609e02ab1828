"""Deferred import of pandas, which takes a third of a keeper's start, and memory, and which keepers do not need.

Arrow imports pandas when it makes the first value or array, to check whether the input is an object of pandas. No input
can be one before the user's function imports pandas; so Arrow waits for that import.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

_PANDAS = "pandas"


def defer_pandas() -> None:
    """Defer Arrow's import of pandas until it is needed. Does nothing if pandas is imported or deferred already."""
    if _PANDAS in sys.modules or any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        return
    finder = _Deferring()
    sys.meta_path.insert(0, finder)
    # Arrow's first import fails here; it tries again only when it needs pandas, as in to_pandas().
    pa.scalar(True)
    finder.deferred = True


def ready_to_fork() -> None:
    """Prepare for forks: defer pandas, and freeze objects so that garbage collection does not copy their pages."""
    defer_pandas()
    gc.collect()
    gc.freeze()


def renew_randomness() -> None:
    """Seed numpy's generator anew in a fork. Python does so with its own generator."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


class _Deferring(MetaPathFinder):
    """Import hook that hides pandas from the thread that defers it, and informs Arrow of the later import."""

    def __init__(self) -> None:
        self.deferred = False
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PANDAS:
            return None
        if not self.deferred and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("not yet", name=_PANDAS)
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(_PANDAS)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                # This call lets Arrow import pandas again, now with success.
                pa.array([], pa.int8()).to_pandas()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
