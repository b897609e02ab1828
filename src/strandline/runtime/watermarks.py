"""The watermark: the least event time that the sources have reached, computed by the driver after each epoch."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from strandline.core.times import END_US, as_datetime
from strandline.runtime.reached import OriginStatus, WatermarkStatus

REACHED = "watermark"
"""Name of the watermark itself among what a manifest holds; the origins are `{name of the watermark}/{origin}`."""
_ORIGINS = 20
"""The most origins in a status."""
FIRED_AT = "fired"
"""Name of the watermark up to which timers have fired: that of the checkpoint's epoch, which the next one moves on."""


@dataclass(frozen=True, slots=True)
class WatermarkSpec:
    """The rule by which one source moves the watermark."""

    column: str
    delay_us: int = 0
    per: str | None = None
    """A column whose values are told apart: the slowest counts. Without `idle_us`, every value is kept for ever."""
    idle_us: int | None = None
    """After so long without news, an origin is not waited for, and forgotten once the watermark has passed it."""
    source: str = ""
    """The source's name, in a job that reads several."""
    branch: str = ""
    """Which operators its rows reach: tells watermarks apart that are of the same column of a source."""

    @property
    def name(self) -> str:
        """The name in manifests, if no other watermark of the pipeline has it: its source, column and `per`."""
        return ":".join(quote(part, safe="") for part in (self.source, self.column, self.per or ""))

    @property
    def full_name(self) -> str:
        """The name in manifests where others are of the same column: also with the branch and the delay."""
        return f"{self.name}@{self.branch}:{self.delay_us // 1000}ms"

    def __str__(self) -> str:
        of = f" of source '{self.source}'" if self.source else ""
        return f"the watermark of column '{self.column}'{of}" + (f" per '{self.per}'" if self.per else "")


def is_drained(stored: Mapping[str, int]) -> bool:
    """Whether a manifest's watermarks say that event time has come to its end."""
    return stored.get(REACHED) == END_US


def find_stored(specs: Sequence[WatermarkSpec], stored: Mapping[str, int]) -> tuple[list[dict[str, int]], list[str]]:
    """Return the newest times that a manifest holds of each watermark, by origin, and the names of which none is left.

    A watermark is matched by its source, column and `per`, wherever the program mentions it. If several match and it is
    not known which it was, the least of their times counts: it moves on with the next events.
    """
    times: dict[str, dict[str, int]] = {}
    for stored_name, at_us in stored.items():
        name, slash, origin = stored_name.partition("/")
        if slash:
            times.setdefault(name, {})[origin] = at_us
    by_spec = []
    for spec in specs:
        alike = [name for name in times if name.partition("@")[0] == spec.name]
        of_branch = [name for name in alike if name.startswith(f"{spec.name}@{spec.branch}:")]
        names = [name for name in of_branch if name == spec.full_name] or of_branch or alike
        mine: dict[str, int] = {}
        for name in names:
            for origin, at_us in times[name].items():
                mine[origin] = min(at_us, mine.get(origin, at_us))
        by_spec.append(mine)
    known = {spec.name for spec in specs}
    return by_spec, [name for name in times if name.partition("@")[0] not in known]


def describe_changes(specs: Sequence[WatermarkSpec], stored: Mapping[str, int]) -> list[str]:
    """Return sentences about stored watermarks that a program does not have, and about those that it has instead."""
    by_spec, gone = find_stored(specs, stored)
    if not gone:
        return []
    names = ", ".join(f"'{':'.join(filter(None, map(unquote, name.partition('@')[0].split(':'))))}'" for name in gone)
    reached = time_text(stored.get(REACHED))
    return [f"the program has no watermark {names} any more, which the snapshot has"] + [
        f"{spec} is new: event time stays at {reached} until its first event, and events before that are late"
        for spec, mine in zip(specs, by_spec, strict=True)
        if not mine and reached
    ]


_Origin = tuple[int, str]
"""A source's number, and which of its origins."""


def time_text(at_us: int | None) -> str | None:
    """Return a time in ISO 8601, if there is one."""
    return None if at_us is None else as_datetime(at_us).isoformat()


class Watermarks:
    """The watermark of a job: it never goes back.

    An origin is a source, or one value of the column that its `per` names. Its time is the newest event's, less the
    source's delay; events may still come at that time, none before it. Thread-safe: epochs use it, and so does the
    check for due timers.
    """

    def __init__(self, specs: Sequence[WatermarkSpec], stored: Mapping[str, int], now_us: int) -> None:
        self._specs = list(specs)
        self._lock = threading.Lock()
        self.reached_us: int | None = stored.get(REACHED)
        """The watermark when it was last advanced."""
        self.fired_us: int | None = stored.get(FIRED_AT)
        """The watermark that the last epoch began with."""
        counted = Counter(spec.name for spec in self._specs)
        self._names = [spec.name if counted[spec.name] == 1 else spec.full_name for spec in self._specs]
        by_spec, _ = find_stored(self._specs, stored)
        self._newest: dict[_Origin, int] = {
            (index, origin): at_us for index, mine in enumerate(by_spec) for origin, at_us in mine.items()
        }
        # An event before a restart counts as one at the restart: the clock may have stood still for days.
        self._last_event_us: dict[_Origin, int] = dict.fromkeys(self._newest, now_us)
        self._started_us = now_us

    def observe(self, index: int, newest_us: Mapping[str, int], now_us: int) -> None:
        """Take in the newest times of an epoch's events, by origin."""
        with self._lock:
            for origin, at_us in newest_us.items():
                at = (index, origin)
                self._newest[at] = max(at_us, self._newest.get(at, at_us))
                self._last_event_us[at] = now_us

    def begin(self, now_us: int) -> None:
        """Note the first look at the sources since a start: silence before it does not count."""
        with self._lock:
            self._started_us = max(self._started_us, now_us)
            self._last_event_us = dict.fromkeys(self._newest, self._started_us)

    def advance(self, looked_us: int) -> int | None:
        """Return the watermark as it is now; None while some source that is waited for has not said anything.

        The slowest origin that is not idle counts; when all are idle, the fastest: nothing more is coming before it.
        `looked_us` is when the sources were last looked at: silence since then is not known.
        """
        awake: list[int] = []
        idle: dict[_Origin, int] = {}
        with self._lock:
            for index in range(len(self._specs)):
                mine, dozing = self._times_of(index, looked_us)
                if not mine and not dozing and not self._is_given_up(index, looked_us):
                    return self.reached_us
                awake += mine.values()
                idle |= dozing
            if awake or idle:
                reached = min(awake) if awake else max(idle.values())
                self.reached_us = reached if self.reached_us is None else max(self.reached_us, reached)
                # Those that cannot move the watermark any more go: devices come and go, and manifests list them.
                for at, time_us in idle.items():
                    if time_us <= self.reached_us:
                        del self._newest[at], self._last_event_us[at]
            return self.reached_us

    def end(self) -> None:
        """Come to the end of time, if there is any: whatever the sources may have, nothing is expected any more."""
        with self._lock:
            if self._specs:
                self.reached_us = END_US

    @property
    def may_be_idle(self) -> bool:
        """Whether it makes a difference how long some source is silent."""
        return any(spec.idle_us is not None for spec in self._specs)

    def _times_of(self, index: int, looked_us: int) -> tuple[dict[_Origin, int], dict[_Origin, int]]:
        """Return how far the origins of a source are, those that count, and those that are idle."""
        spec = self._specs[index]
        since = None if spec.idle_us is None else looked_us - spec.idle_us
        awake: dict[_Origin, int] = {}
        idle: dict[_Origin, int] = {}
        for at, newest_us in self._newest.items():
            if at[0] == index:
                is_awake = since is None or self._last_event_us[at] >= since
                (awake if is_awake else idle)[at] = newest_us - spec.delay_us
        return awake, idle

    def _is_given_up(self, index: int, looked_us: int) -> bool:
        """Whether a source that has not said anything yet is idle."""
        idle_us = self._specs[index].idle_us
        return idle_us is not None and self._started_us < looked_us - idle_us

    def look(self, looked_us: int) -> list[WatermarkStatus]:
        """Return how far each source is, and which of its origins is the slowest."""
        with self._lock:
            return [self._reached_by(index, looked_us) for index in range(len(self._specs))]

    def _reached_by(self, index: int, looked_us: int) -> WatermarkStatus:
        spec = self._specs[index]
        awake, idle = self._times_of(index, looked_us)
        slowest = min(awake, key=lambda at: awake[at], default=None)
        time_us = awake[slowest] if slowest is not None else max(idle.values(), default=None)
        waits_for = "" if slowest is None else slowest[1]
        times = awake | idle
        furthest = [
            OriginStatus(at[1], time_text(times[at]), max(0, looked_us - self._last_event_us[at]) // 1000, at in idle)
            for at in heapq.nsmallest(_ORIGINS, times, key=lambda at: times[at])
        ]
        return WatermarkStatus(spec.column, spec.source, time_text(time_us), waits_for, len(times), len(idle), furthest)

    def stored(self) -> dict[str, int]:
        """Return what a manifest holds, in microseconds since 1970."""
        times: dict[str, int] = {}
        with self._lock:
            for (index, origin), at_us in self._newest.items():
                name = f"{self._names[index]}/{origin}"
                # Nothing tells some branches apart: what a restart gives both must be true of both.
                times[name] = min(at_us, times.get(name, at_us))
        known = {REACHED: self.reached_us, FIRED_AT: self.fired_us}
        return {name: at_us for name, at_us in known.items() if at_us is not None} | times
