"""Samples of what a keeper does: the stacks of its main thread, which runs the program's functions. Without values."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType
from typing import Final

import msgspec

INTERVAL_S: Final = 0.01
LONGEST_S: Final = 60.0
_MOST_STACKS = 2000
_DEEPEST = 100
_LEFT_OFF = "(stacks left off)"
_ENTRIES = frozenset({"strandline.keeper.process", "strandline.keeper.service"})
"""The modules from which an epoch is run: what is below them is the same in each stack."""
_WAITING = frozenset(f"strandline.keeper.protocol.Connection.{name}" for name in ("_receive_exactly", "send"))
_IDLE = "strandline.keeper.process.Keeper.run"
_LIBRARIES = sys.stdlib_module_names | {
    "strandline", "pyarrow", "numpy", "pandas", "msgspec", "rocksdict", "obstore", "cloudpickle", "datasketches",
    "google_crc32c", "pyspark",
}  # fmt: skip


class Samples(msgspec.Struct, frozen=True):
    """Stacks of a keeper's main thread, and how often each was seen."""

    seconds: float
    count: int
    idle: int
    """How many were taken between epochs."""
    waiting: int
    """How many while it waited for rows from Spark, or for Spark to take rows."""
    names: list[str]
    """Of functions, with their modules. A line of a function that is not Strandline's is one more, below it."""
    program: list[int]
    """Positions in `names` of the program's own functions: neither Strandline's nor of libraries that it uses, too."""
    stacks: list[tuple[list[int], int]]
    """Positions in `names`, outermost first, and the number of samples."""


class Sampler:
    """Takes samples of the thread that has made it, in a thread of its own, for a bounded time."""

    def __init__(self) -> None:
        self._sampled = threading.get_ident()
        self._lock = threading.Lock()
        self._running: _Sampling | None = None

    def begin(self, seconds: float) -> None:
        """Begin to take samples, and forget those before. Any thread may call it."""
        with self._lock:
            if self._running is not None:
                self._running.end()
            self._running = _Sampling(self._sampled, min(seconds, LONGEST_S))
            self._running.start()

    def take(self) -> Samples | None:
        """End, and return the samples; None if none were begun. Any thread may call it."""
        with self._lock:
            running, self._running = self._running, None
            return None if running is None else running.end()


class _Sampling(threading.Thread):
    def __init__(self, sampled: int, seconds: float) -> None:
        super().__init__(name="strandline-samples", daemon=True)
        self._sampled = sampled
        self._over = threading.Event()
        self._until = time.monotonic() + seconds
        self._seconds = 0.0
        self._labels: dict[CodeType, tuple[str, str]] = {}
        self._stacks: Counter[tuple[str, ...]] = Counter()
        self._program: set[str] = set()
        self._idle = self._waiting = 0

    def run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(INTERVAL_S) and time.monotonic() < self._until:
            frame = sys._current_frames().get(self._sampled)
            if frame is not None:
                self._count(frame)
            # A frame keeps its function's values alive.
            del frame
        self._seconds = time.monotonic() - began

    def end(self) -> Samples:
        self._over.set()
        self.join()
        positions = {name: at for at, name in enumerate(sorted({name for stack in self._stacks for name in stack}))}
        return Samples(
            seconds=round(self._seconds, 3), count=self._idle + self._waiting + self._stacks.total(),
            idle=self._idle, waiting=self._waiting, names=[*positions],
            program=[at for name, at in positions.items() if name in self._program],
            stacks=[([positions[name] for name in stack], count) for stack, count in self._stacks.items()],
        )  # fmt: skip

    def _count(self, leaf: FrameType) -> None:
        module, name = self._label(leaf)
        if name in _WAITING:
            self._waiting += 1
            return
        if name == _IDLE:
            self._idle += 1
            return
        stack = [] if module.partition(".")[0] == "strandline" else [f"line {leaf.f_lineno}"]
        frame: FrameType | None = leaf
        while frame is not None and len(stack) < _DEEPEST:
            module, name = self._label(frame)
            if module in _ENTRIES and stack:
                break
            stack.append(name)
            frame = frame.f_back
        names = tuple(reversed(stack))
        if names not in self._stacks and len(self._stacks) >= _MOST_STACKS:
            names = (_LEFT_OFF,)
        self._stacks[names] += 1

    def _label(self, frame: FrameType) -> tuple[str, str]:
        """Return the module of a frame's function, and its full name."""
        code = frame.f_code
        if (known := self._labels.get(code)) is None:
            module = str(frame.f_globals.get("__name__", "?"))
            known = self._labels[code] = module, f"{module}.{code.co_qualname}"
            if module.partition(".")[0] not in _LIBRARIES:
                self._program.add(known[1])
        return known
