"""What the tests of windows share: a partition driven by watermark and clock, and what windows must give, naively."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.api.windows import Global, Session, Sliding, Tumbling, WindowKind, windows_of
from strandline.plan.windows import operator_of
from strandline.runtime.operators.windows.contents import Contents, Folding, Keeping, first_or
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.rowlayout import FIRED, SIDE, TIME
from strandline.types.plain import identity
from tests.runtime.bench import MIB, Bench, batch_of

SECOND = 1_000_000
EVENTS = "k string, v bigint"
BEGIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Row = tuple[Any, ...]
Timed = tuple[str, int, int | None]
"""Key, value, time in seconds."""


def joined(events: str = EVENTS) -> Contents:
    """Keep all events; give their values in the order they have."""

    def join(key: Any, window: Any, events: list[Any]) -> Any:
        assert {event.k for event in events} == {key if isinstance(key, str) else key[0]}
        yield {"result": ",".join(str(event.v) for event in events)}

    return Keeping(f"struct<{events}>", ["result"], join)


def folded() -> Contents:
    """Fold values into a text, so that their order shows."""
    return Folding(
        "struct<n: bigint, text: string>",
        ["result"],
        create=partial(identity, (0, "")),
        add=lambda acc, e: {"n": acc.n + 1, "text": f"{acc.text},{e.v}" if acc.n else str(e.v)},
        merge=lambda a, b: (a.n + b.n, f"{a.text},{b.text}"),
        result=lambda acc: acc.text,
    )


def largest() -> Contents:
    """Reduce to the event with the largest value."""

    def larger(a: Any, b: Any) -> Any:
        return a if a.v >= b.v else b

    return Folding(
        "struct<k: string, v: bigint>", ["result"], create=partial(identity, None), add=partial(first_or, larger), merge=larger,
        result=itemgetter(1),
    )  # fmt: skip


def at(seconds: float | None) -> dt.datetime | None:
    return None if seconds is None else BEGIN + dt.timedelta(seconds=seconds)


def seconds_of(time: dt.datetime | None) -> float | None:
    return None if time is None else (time - BEGIN) / dt.timedelta(seconds=1)


class WindowBench(Bench):
    """A partition of one window operator; times are in seconds."""

    def __init__(
        self,
        kind: str,
        root: Path,
        windows: WindowKind,
        contents: Contents,
        *,
        lateness: int = 0,
        early: int = 0,
        early_by_event_time: bool = False,
        early_events: int = 0,
        accumulate: bool = True,
        processing: bool = False,
        timed: bool = True,
        result: str = "string",
        late: str | None = "late",
        keys: Sequence[str] = ("k",),
        cache_bytes: int = MIB,
    ) -> None:
        rules = Rules(
            lateness * SECOND, early * SECOND, late, processing=processing, several_keys=len(keys) > 1,
            early_by_event_time=early_by_event_time, early_events=early_events, accumulate=accumulate,
        )  # fmt: skip
        bounds = "" if isinstance(windows, Global) else "window_start timestamp, window_end timestamp, "
        super().__init__(
            kind, root, operator_of(windows, contents, rules), cache_bytes, timed=timed,
            input_schema=EVENTS, output_schema=f"{EVENTS if len(keys) > 1 else 'k string'}, {bounds}result {result}",
            sides={late: EVENTS} if late else {}, key_columns=list(keys),
        )  # fmt: skip
        self.late: list[Row] = []

    def step(
        self, events: Sequence[Timed] = (), watermark: float | None = None, now: int = 0, *, abort: bool = False
    ) -> list[Row]:
        """Process an epoch: what is due, then the events. Return each row given, by key: (key, start, end, result, time)."""
        reached = None if watermark is None else round(watermark * SECOND)
        batches = self.apply(self._batches(events), reached, now * SECOND, abort=abort)
        if abort:
            return []
        # Between keys there is no order to rely on.
        return sorted((row for batch in batches for row in self._rows(batch)), key=lambda row: row[0])

    def _batches(self, events: Sequence[Timed]) -> list[pa.RecordBatch]:
        if not events:
            return []
        plain = batch_of([(k, v) for k, v, _ in events], EVENTS, self.program.key_columns)
        if not self.program.layout.timed:
            return [plain]
        times = pa.array([None if time is None else round(time * SECOND) for _, _, time in events], pa.int64())
        return [plain.add_column(1, TIME, times)]

    def _rows(self, batch: pa.RecordBatch) -> list[Row]:
        rows = []
        for row in batch.to_pylist():
            time = row.get(TIME)
            time = time if time is None else time / SECOND
            if row.get(SIDE):
                late = row[f"{SIDE}_1"]
                self.late.append((late["k"], late["v"], time))
                assert not row.get(FIRED)
                continue
            start, end = seconds_of(row.get("window_start")), seconds_of(row.get("window_end"))
            rows.append((row["k"], start, end, row["result"], time))
        return rows


@dataclass(frozen=True)
class Event:
    """What the function of a session's gap is shown."""

    v: int


def gap_of(event: Any) -> str:
    """Say for how long a session is open after an event."""
    return f"{2 + event.v % 3 * 4} s"


@dataclass(eq=False)
class Open:
    """A window of the model: the values in it, by the epoch that they came in."""

    start: int
    end: int
    values: list[tuple[int, int]] = field(default_factory=list)
    fresh: bool = False
    closed: bool = False
    """Whether it was complete when it was last given."""
    count: int = 0
    """How many events have come since it was last given."""


class Model:
    """What windows must give, in the plainest way: all windows in lists, looked through in every epoch."""

    def __init__(
        self, kind: WindowKind, lateness: int = 0, early: int = 0, *, processing: bool = False, by_epoch: bool = False,
        early_by_event_time: bool = False, early_events: int = 0, accumulate: bool = True,
    ) -> None:  # fmt: skip
        self.early_by_event_time, self.early_events, self.accumulate = early_by_event_time, early_events, accumulate
        self.kind, self.lateness, self.early, self.processing = kind, lateness, early, processing
        self.by_epoch = by_epoch
        """Whether windows that merge put their values in the order of the epochs, or one window's behind the other's."""
        # A session is over when nothing can come at its very end.
        self.slack = 1 / SECOND if isinstance(kind, Session) else 0
        self.epoch = 0
        self.open: dict[str, list[Open]] = {}
        self.marks: dict[str, set[int]] = {}
        self.late: list[Row] = []

    def copy(self) -> Model:
        return copy.deepcopy(self)

    def step(self, events: Sequence[Timed], watermark: int | None, now: int) -> list[Row]:
        self.epoch += 1
        reached = now if self.processing else watermark
        given = self._fire(reached, now)
        for k, v, time in events:
            given += self._add(k, v, now if self.processing else time, reached, now)
        return given

    def _fire(self, reached: int | None, now: int) -> list[Row]:
        given = []
        for k, windows in self.open.items():
            ends = set()
            for window in sorted(windows, key=lambda w: w.end):
                if self._is_over(window.end, reached) and not window.closed:
                    if window.fresh or self.accumulate:
                        given.append(self._row(k, window))
                    window.closed = True
                    ends.add(window.end)
            self.open[k] = [w for w in windows if not self._is_over(w.end + self.lateness, reached)]
            if self.lateness and self.accumulate:
                ends |= {w.end + self.lateness for w in windows if w not in self.open[k]}
            by = reached if self.early_by_event_time else now
            due = {mark for mark in self.marks.get(k, ()) if by is not None and mark <= by}
            self.marks.get(k, set()).difference_update(due)
            if self.early_by_event_time and self.early and not self.slack:
                # Where a window ends, or its lateness does, at a whole multiple of the interval, that counts as one.
                due |= {end for end in ends if end % self.early == 0}
            for window in sorted(self.open[k], key=lambda w: w.end) if due else ():
                if window.fresh and not self._is_over(window.end, reached):
                    given.append(self._row(k, window))
        return given

    def _is_over(self, end: int, reached: int | None) -> bool:
        return reached is not None and end + self.slack <= reached

    def _row(self, k: str, window: Open) -> Row:
        window.fresh, window.count = False, 0
        values = sorted(window.values, key=lambda value: value[0]) if self.by_epoch else window.values
        if not self.accumulate:
            window.values = []
        return (
            k,
            window.start,
            window.end,
            ",".join(str(v) for _, v in values),
            window.end if self.slack else window.end - 1 / SECOND,
        )

    def _add(self, k: str, v: int, time: int | None, reached: int | None, now: int) -> list[Row]:
        given = []
        windows = self.open.setdefault(k, [])
        found = [] if time is None else self._of(time, windows, v)
        taken = [w for w in found if w in windows or not self._is_over(w.end + self.lateness, reached)]
        for window in taken:
            if window not in windows:
                windows.append(window)
            window.values.append((self.epoch, v))
            window.fresh, window.closed = True, False
            window.count += 1
            if self.early and (not self._is_over(window.end, reached) or isinstance(self.kind, Session)):
                since = now if not self.early_by_event_time else time or 0 if reached is None else reached
                self.marks.setdefault(k, set()).add(since - since % self.early + self.early)
            if self.early_events and window.count >= self.early_events and not self._is_over(window.end, reached):
                given.append(self._row(k, window))
        if not taken and (found or time is None):
            self.late.append((k, v, time))
        return given

    def _of(self, time: int, windows: list[Open], v: int) -> list[Open]:
        if isinstance(self.kind, Tumbling | Sliding):
            there = {w.end: w for w in windows}
            found = [(w.start_us // SECOND, w.end_us // SECOND) for w in windows_of(self.kind, time * SECOND)]
            return [there.get(end) or Open(start, end) for start, end in found]
        assert isinstance(self.kind, Session)
        gap = self.kind.gap_after_us(Event(v)) // SECOND
        touched = sorted((w for w in windows if w.start <= time + gap and time <= w.end), key=lambda w: w.start)
        if not touched:
            return [Open(time, time + gap)]
        first = touched[0]
        first.end = max(time + gap, *(window.end for window in touched))
        first.start = min(time, first.start)
        for other in touched[1:]:
            first.values += other.values
            first.count += other.count
            windows.remove(other)
        return [first]
