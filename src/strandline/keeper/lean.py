"""A process that handles Arrow's data need not have pandas, which costs a third of a keeper's start, and memory.

Arrow imports it as soon as a value or an array is made of something, only to see whether that is pandas'. Here it does
so when somebody else has imported pandas, as a user's function may at any time; before, nothing can be pandas'.
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
    """Have Arrow import pandas not before it is needed; called again, or with pandas there, does nothing."""
    if _PANDAS in sys.modules or any(isinstance(finder, _Deferring) for finder in sys.meta_path):
        return
    finder = _Deferring()
    sys.meta_path.insert(0, finder)
    # The first look is in vain; Arrow looks again only where it cannot do without, in to_pandas() for one.
    pa.scalar(True)
    finder.deferred = True


def ready_to_fork() -> None:
    """Leave to forks what they need not pay for: pandas, and copies of what the collector looks at."""
    defer_pandas()
    gc.collect()
    gc.freeze()


def renew_randomness() -> None:
    """In a fork: draw other numbers than its parent and its siblings. Python's own generator does so by itself."""
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


class _Deferring(MetaPathFinder):
    """Finds no pandas for the thread that defers it; later finds it once, and tells Arrow."""

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
                # Something of pandas' has Arrow look for pandas again, and find it.
                pa.array([], pa.int8()).to_pandas()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
