"""A model of checkpoints: the costs of a mode and its interval, the time of a recovery, and the age of rows when shown.

It has no I/O. All times are in seconds, all sizes in bytes. The constants are measurements of this project on two cores
and a local disk, by the benchmarks whose names they have; `benchmarks.plan` compares predictions with what happens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal

from strandline.api.config import Changelog, Continuous
from strandline.core.settings import Mode

Failure = Literal["keeper", "program"]
"""A keeper's process ends, and its machine has copies of the checkpoint; or the program starts on another machine."""

MB = 1_000_000

RESTART_S = 0.5
"""From the death of a keeper to the next epoch, without the delay of the restart and the restore (`plan`)."""
REPLACE_S = 0.1
"""From the death of a keeper until another one has its files, without the time of opening them (`plan`)."""
BUFFERED_BYTES = 16 * MB
"""The changes of a partition that RocksDB has in memory and in its log alone, where that is not known."""
START_S = 9.8
"""From the start of the program to its first epoch, without the restore, most of it in Spark (`plan`)."""
OPEN_S = 0.08
"""To open a restored database (`recovery --quick`)."""
LINK_S_PER_BYTE = 0.26e-9
"""To link local copies of a checkpoint's files (`recovery`)."""
REPLAY_ENTRY_S, REPLAY_BYTE_S = 0.8e-6, 4e-9
"""To repeat a log, for each entry and each of its bytes: 105 MB/s with values of 100 bytes, 200 with 2,000."""
READ_PER_S, WRITE_PER_S = 300 * MB, 250 * MB
"""A restore's reads from a local disk, with their checks (`recovery`); an upload (`checkpoint_cost`)."""
ROWS_PER_S = 65_000
"""The rows that a partition can process, where that is not known (`checkpoint_cost`)."""
ROW_BYTES = 100
"""The bytes that a row changes, where that is not known."""
EPOCH_S, DURABLE_S, PUBLISHED_S, SHOWN_S = 0.11, 0.05, 0.018, 0.07
"""Of the phases of a checkpoint (`latency`); `DURABLE_S` is without its upload."""
AMPLIFICATION = 2.9
"""Uploads of incremental checkpoints for each byte changed (`latency` 2.9 to 3.6, `checkpoint_cost` 2.1)."""
RARE_S = 0.17
"""By how much the slowest in a hundred is durable later, with equal uploads (`latency`, changelog)."""
MERGED_SHARE = 0.2
"""The part of the state that one incremental checkpoint in a hundred uploads after merges (`checkpoint_cost`)."""

INTERVALS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
DEFAULT_LOG = Changelog()
LOGS = (DEFAULT_LOG, Changelog(limit="64MB"), Changelog(share=2.0), Changelog(share=2.0, limit="2GB"))
WHOLE_LOGS = (Continuous(), Continuous(log=3.0))
CLEANED_LATE, PARTS = 0.35, 1.04
"""Of a log with all state, the part that is cleaned or grows, in sizes of the state; and what its parts have beside
keys and values (ad hoc, 85 MB of values of 200 bytes: uploads of 1.3 and 1.1 of the changes with logs of 2 and 3)."""


@dataclass(frozen=True)
class Workload:
    """A job's size and rates, of all its operators and partitions together."""

    state_bytes: float
    """The files of a newest checkpoint, without logs."""
    partitions: int
    changed_per_s: float
    """Bytes of state that change."""
    rows_per_s: float
    largest_bytes: float = 0.0
    """Of `state_bytes`, those of the largest partition; 0: all have the same."""
    hosts: int = 1
    log_bytes: float = 0.0
    """The logs of the newest checkpoint."""
    buffered_bytes: float = BUFFERED_BYTES
    """The most changes of a partition that RocksDB has in memory, which it repeats from its log after a kill."""
    is_written_whole: bool = False
    """Whether each checkpoint writes all state, because it is in memory."""
    capacity_per_s: float = 0.0
    """The rows that the job can process; 0: not known."""
    epoch_s: float = EPOCH_S
    read_per_s: float = READ_PER_S
    """From storage, on one machine."""
    write_per_s: float = WRITE_PER_S
    durable_s: float = DURABLE_S
    """The time until a checkpoint is durable, without its upload."""
    published_s: float = PUBLISHED_S
    shown_s: float = SHOWN_S
    restart_delay_s: float = 1.0
    slowness: float = 1.0
    """How much longer the job's machine takes for the same work than the one of the constants."""

    @property
    def largest(self) -> float:
        """The share of the largest partition."""
        return self.largest_bytes / self.state_bytes if self.largest_bytes and self.state_bytes else 1 / self.partitions

    @property
    def rows_capacity(self) -> float:
        """The rows a second that the job can process."""
        return max(self.capacity_per_s or ROWS_PER_S * self.partitions, 1.0)


@dataclass(frozen=True)
class Setting:
    """A mode with its interval, and the limits of its log."""

    mode: Mode
    every_s: float
    log: Changelog | Continuous = DEFAULT_LOG

    def code(self, directory: str) -> str:
        """Return the line of Python."""
        every = f"{self.every_s * 1000:.0f}ms" if self.every_s < 1 else f"{self.every_s:g}s"
        log = f", {self.mode}=sl.{type(self.log).__name__}({self.log_text})" if self.log_text else ""
        return f'sl.Checkpoints("{directory}", mode="{self.mode}", every="{every}"{log})'

    @property
    def log_text(self) -> str:
        """The limits of the log that are not the defaults, as Python's arguments."""
        usual = type(self.log)()
        texts = {each.name: (getattr(self.log, each.name), getattr(usual, each.name)) for each in fields(self.log)}
        return ", ".join(
            f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
            for name, (value, default) in texts.items()
            if value != default
        )


@dataclass(frozen=True)
class Estimate:
    """The predictions of a setting."""

    setting: Setting
    recovery: dict[Failure, dict[str, float]]
    """The seconds of each part of a recovery, in order, at the worst moment: just before a checkpoint completes."""
    age_p50_s: float
    """Of rows as an exactly-once sink shows them."""
    age_p99_s: float
    age_parts: dict[str, float]
    """The parts of `age_p99_s`."""
    uploaded_per_s: float
    stored_bytes: float
    """The largest size of one checkpoint in storage."""

    def recovery_s(self, failure: Failure) -> float:
        """Return the seconds of a recovery."""
        return sum(self.recovery[failure].values())


@dataclass(frozen=True)
class Goals:
    """The wanted bounds; None: any."""

    recover_s: float | None = None
    age_s: float | None = None
    """Of 99 rows in 100."""
    failure: Failure = "keeper"

    def excess(self, estimate: Estimate) -> tuple[int, float]:
        """Return how many goals an estimate misses, and the product of the factors by which it does."""
        factors = [value / wanted for value, wanted, _, _ in self._of(estimate) if value > wanted]
        return len(factors), math.prod(factors)

    def _of(self, estimate: Estimate) -> Iterator[tuple[float, float, str, dict[str, float]]]:
        if self.recover_s is not None:
            yield estimate.recovery_s(self.failure), self.recover_s, "recovery", estimate.recovery[self.failure]
        if self.age_s is not None:
            yield estimate.age_p99_s, self.age_s, "latency", estimate.age_parts


@dataclass(frozen=True)
class Advice:
    """The cheapest setting that meets the goals, or the nearest one, and why goals are missed."""

    best: Estimate
    is_met: bool
    misses: list[str]


def estimate(work: Workload, setting: Setting, log_bytes: float | None = None) -> Estimate:
    """Return what a setting costs; `log_bytes` are those that there are, else the log is as long as it may become."""
    mode: Mode = "full" if work.is_written_whole else setting.mode
    changed = _distinct(work.changed_per_s * setting.every_s, work.state_bytes)
    if mode == "full":
        usual = rare = work.state_bytes
    elif mode == "incremental":
        usual, rare = changed, changed + MERGED_SHARE * work.state_bytes
    else:
        usual = rare = work.changed_per_s * setting.every_s
    durable = work.durable_s + usual / work.write_per_s
    rarely = max(durable + RARE_S, work.durable_s + rare / work.write_per_s)
    # An epoch may begin a checkpoint a tenth early, and begins it half its duration late; one is in progress at a time.
    taking = work.epoch_s + durable + work.published_s
    interval = max(0.9 * setting.every_s + work.epoch_s / 2, taking)
    parts = {
        "the interval of checkpoints": 0.99 * interval, "waiting for an epoch": work.epoch_s, "the epoch": work.epoch_s,
        "the upload": rarely, "the manifest": work.published_s, "the sink": work.shown_s,
    }  # fmt: skip
    p50 = sum(parts.values()) - 0.49 * interval - rarely + durable
    longest = 0.0 if mode in ("full", "incremental") else _longest_log(work, setting)
    log = longest if log_bytes is None else log_bytes
    if mode == "full":
        uploaded = work.state_bytes / interval
    elif mode == "incremental":
        uploaded = AMPLIFICATION * _distinct(work.changed_per_s * interval, work.state_bytes) / interval
    elif mode == "changelog":
        uploaded = work.changed_per_s * (1 + work.state_bytes / longest)
    else:
        uploaded = work.changed_per_s * rewritten(setting.log)
    stored = log + (0 if mode == "continuous" else work.state_bytes)
    since_s = interval + taking
    recovery: dict[Failure, dict[str, float]] = {
        # By default, modes with a log have a local one, with which a keeper is replaced alone.
        "keeper": _replacement(work, log) if longest else _recovery(work, "keeper", stored, log, since_s),
        "program": _recovery(work, "program", stored, log, since_s),
    }
    return Estimate(setting, recovery, p50, sum(parts.values()), parts, uploaded, stored)


def _distinct(changed: float, state: float) -> float:
    """Return how many bytes of the state differ after so many changes of random keys."""
    return state * -math.expm1(-changed / state) if state else 0.0


def rewritten(log: Changelog | Continuous) -> float:
    """Return what a log with all state writes for each byte that changes, if all keys change equally often.

    An entry counts still after a pass over the log with the probability of no change since then.
    """
    assert isinstance(log, Continuous)
    length = max(log.log - CLEANED_LATE, 1.01)
    changes = length
    for _ in range(50):
        # The changes of a pass, in sizes of the state, and what is written again are the length.
        changes = length - math.exp(-changes)
    return PARTS * length / changes


def _longest_log(work: Workload, setting: Setting) -> float:
    """Return the size at which all logs are replaced, and what is added until the new base is there."""
    limit = setting.log.longest_log(work.state_bytes * work.largest)
    if isinstance(setting.log, Continuous):
        return limit / work.largest
    return limit / work.largest + work.changed_per_s * (work.state_bytes / work.write_per_s + 2 * setting.every_s)


def _recovery(work: Workload, failure: Failure, stored: float, log: float, since_s: float) -> dict[str, float]:
    """Return the parts of a recovery from a failure so long after the newest checkpoint's begin."""
    local = failure == "keeper"
    slow = work.slowness
    files_s = stored * work.largest * LINK_S_PER_BYTE * slow if local else stored / work.hosts / work.read_per_s
    parts = {
        "the restart's delay": work.restart_delay_s if local else 0.0,
        "noticing and restarting": RESTART_S * slow if local else 0.0,
        "starting Spark and the program": 0.0 if local else START_S * slow,
        "restoring files": OPEN_S * slow + files_s,
        "repeating the log": _replay(work, log * work.largest),
    }
    return parts | {"processing rows again": _processing(work, since_s + sum(parts.values()))}


def _replacement(work: Workload, log: float) -> dict[str, float]:
    """Return the parts of the replacement of a keeper by one that goes on with its files, and repeats an epoch."""
    parts = {
        "noticing and replacing": REPLACE_S * work.slowness,
        "opening its files": OPEN_S * work.slowness,
        "repeating the log": _replay(work, min(log * work.largest, work.buffered_bytes)),
    }
    return parts | {"processing rows again": _processing(work, work.epoch_s + sum(parts.values()))}


def _replay(work: Workload, size: float) -> float:
    entry = max(work.changed_per_s / work.rows_per_s, 1.0) if work.rows_per_s and work.changed_per_s else ROW_BYTES
    return size * (REPLAY_ENTRY_S / entry + REPLAY_BYTE_S) * work.slowness


def _processing(work: Workload, since_s: float) -> float:
    """Return how long an epoch takes with the rows of so many seconds."""
    # Without its rows, it takes what the job's load leaves of one.
    idle_s = work.epoch_s * max(0.0, 1 - work.rows_per_s / work.rows_capacity)
    return idle_s + work.rows_per_s * since_s / work.rows_capacity


def settings(work: Workload) -> Iterator[Setting]:
    """Yield the settings to choose from."""
    for every_s in INTERVALS_S:
        yield Setting("full", every_s)
        if not work.is_written_whole:
            yield Setting("incremental", every_s)
            yield from (Setting("changelog", every_s, log) for log in LOGS)
            yield from (Setting("continuous", every_s, log) for log in WHOLE_LOGS)


def advise(estimates: Iterable[Estimate], goals: Goals) -> Advice:
    """Return the setting that meets the goals with the least upload, then the fewest checkpoints."""
    every = list(estimates)
    met = [each for each in every if not goals.excess(each)[0]]
    if met:
        return Advice(min(met, key=_cost), True, [])
    misses = []
    for name in ("recovery", "latency"):
        rows = [(*row, each.setting) for each in every for row in goals._of(each) if row[2] == name]
        if rows and (row := min(rows, key=lambda row: row[0]))[0] > row[1]:
            value, wanted, _, parts, setting = row
            part = max(parts, key=lambda each: parts[each])
            misses.append(
                f"{name} within {wanted:g} s cannot be met: at best {value:.1f} s, with {setting.mode} every "
                f"{setting.every_s:g} s, of which {part} takes {parts[part]:.1f} s"
            )
    misses = misses or ["each goal can be met, but no setting meets both"]
    return Advice(min(every, key=lambda each: (*goals.excess(each), *_cost(each))), False, misses)


def _cost(estimate: Estimate) -> tuple[float, ...]:
    # Uploads that differ by a few percent cost the same: then fewer checkpoints are cheaper.
    upload = round(math.log(max(estimate.uploaded_per_s, 1.0)), 1)
    return upload, -estimate.setting.every_s, estimate.stored_bytes
