"""Bytewax's fold_window on the windows workload: an optional peer, which keeps all state in memory.

`pip install bytewax==0.21` next to what the project needs; where it is not installed, the subject is left out. It
runs in one process, without checkpoints, and gets fewer rows than the others.
"""

from __future__ import annotations

import datetime as dt
import importlib
import importlib.util
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_BATCH_ROWS = 100_000
_NOW = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
Item = tuple[dt.datetime, int]


def is_installed() -> bool:
    """Whether the peer can be measured here."""
    return importlib.util.find_spec("bytewax") is not None


def fold_windows(
    rows: Callable[[int, int], tuple[Any, Any, Any]], total_rows: int, warm_up_rows: int, base_us: int, window_s: int
) -> tuple[float, dict[int, tuple[Any, Any, Any]]]:
    """Run over rows 0 to `total_rows`; return the steady rows a second, and each window's keys, counts and sums.

    `rows(first, last)` gives keys, values and times in microseconds.
    """
    op, windowing, testing, inputs, outputs, dataflow = (
        importlib.import_module(f"bytewax.{name}")
        for name in ("operators", "operators.windowing", "testing", "inputs", "outputs", "dataflow")
    )
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    marks: list[float] = []
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)

    def batches() -> Iterator[list[tuple[str, Item]]]:
        for first in range(0, total_rows, _BATCH_ROWS):
            if first == warm_up_rows:
                marks.append(time.monotonic())
            keys, values, times_us = rows(first, min(first + _BATCH_ROWS, total_rows))
            times = (epoch + dt.timedelta(microseconds=at) for at in times_us.tolist())
            yield list(zip(map(str, keys.tolist()), zip(times, values.tolist(), strict=True), strict=True))

    class Partition(inputs.StatelessSourcePartition):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self._batches = batches()

        def next_batch(self) -> list[tuple[str, Item]]:
            return next(self._batches)

    class Source(inputs.DynamicSource):  # type: ignore[misc, name-defined]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
            return Partition()

    class Keep(outputs.StatelessSinkPartition):  # type: ignore[misc, name-defined]
        def write_batch(self, items: list[tuple[str, tuple[int, tuple[int, int]]]]) -> None:
            for key, (window, (count, total)) in items:
                found[window].append((int(key), count, total))

    class Sink(outputs.DynamicSink):  # type: ignore[misc, name-defined]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Keep:
            return Keep()

    flow = dataflow.Dataflow("windows")
    # A clock that stands still: else event time would go forward with the machine's.
    clock = windowing.EventClock(lambda item: item[0], dt.timedelta(0), now_getter=lambda: _NOW)
    windower = windowing.TumblingWindower(dt.timedelta(seconds=window_s), epoch + dt.timedelta(microseconds=base_us))
    folded = windowing.fold_window(
        "fold", op.input("rows", flow, Source()), clock, windower, lambda: (0, 0),
        lambda acc, item: (acc[0] + 1, acc[1] + item[1]), lambda a, b: (a[0] + b[0], a[1] + b[1]), ordered=False,
    )  # fmt: skip
    op.output("keep", folded.down, Sink())
    testing.run_main(flow)
    seconds = time.monotonic() - marks[0]
    columns = {window: np.array(given, np.int64).T for window, given in found.items()}
    return (total_rows - warm_up_rows) / seconds, {window: (c[0], c[1], c[2]) for window, c in columns.items()}
