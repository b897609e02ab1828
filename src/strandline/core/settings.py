"""The settings of a job, frozen and validated, and the parsers of durations and sizes."""

from __future__ import annotations

import datetime as dt
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from strandline.core.errors import ConfigurationError
from strandline.core.keygroups import check_parallelism
from strandline.core.times import LONGEST_MS
from strandline.core.urls import check_local_path

BackendName = Literal["memory", "filesystem", "rocksdb"]
Mode = Literal["full", "incremental", "changelog", "continuous"]
"""What each checkpoint uploads."""
BACKENDS: tuple[BackendName, ...] = ("memory", "filesystem", "rocksdb")
Duration = str | dt.timedelta
"""A time such as "10s" or timedelta(seconds=10). A number is refused, since it has no unit."""
ShowValues = Literal["nowhere", "errors", "logs"]
_SHOW_VALUES: tuple[ShowValues, ...] = ("nowhere", "errors", "logs")

_DURATION_MS = {
    "ms": 1, "s": 1000, "sec": 1000, "secs": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "mins": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000, "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_DURATION = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_SIZE_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_duration_ms(value: Duration, what: str) -> int:
    """Return the milliseconds of a duration.

    Raises ConfigurationError if it is negative, longer than 10,000 years, or a number other than 0, which has no unit.
    """
    text, duration_ms = repr(value), None
    # round() raises OverflowError for a number with so many digits that its float is infinite.
    with suppress(OverflowError):
        if isinstance(value, dt.timedelta):
            seconds = value / dt.timedelta(seconds=1)
            text, duration_ms = f"{seconds:g} s", round(seconds * 1000)
        elif isinstance(value, str) and (match := _DURATION.fullmatch(value.lower())) and match[2] in _DURATION_MS:
            duration_ms = round(float(match[1]) * _DURATION_MS[match[2]])
        elif isinstance(value, int | float) and value == 0:
            duration_ms = 0
    if duration_ms is not None:
        if duration_ms < 0:
            raise ConfigurationError(f"{what} is {text}, expected 0 or more", hint="leave the minus out")
        if duration_ms > LONGEST_MS:
            raise ConfigurationError(
                f"{what} is {text}, expected at most 10,000 years", hint="write a shorter duration"
            )
        return duration_ms
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LONGEST_MS:
        raise ConfigurationError(
            f"{what} is {text}, expected a duration with its unit",
            hint=f"write it like '{value:g}s' or '{value:g}ms', or as a timedelta",
        )
    raise ConfigurationError(
        f"{what} is {text}, expected a duration", hint="write it like '500ms', '10s', '5 min' or '1h'"
    )


def parse_size_bytes(value: str | int, what: str) -> int:
    """Return the bytes of '512MB', '4 GB' or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", value.lower())
        if match and float(match[1]) > 0:
            return int(float(match[1]) * _SIZE_BYTES[match[2]])
    raise ConfigurationError(f"{what} is {value!r}, expected a size", hint="write it like '512MB' or '4GB'")


def default_state_memory_bytes() -> int:
    """Return a quarter of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def default_local_dir() -> Path:
    """Return the per-user directory for working state and local recovery copies."""
    return Path(tempfile.gettempdir()) / f"strandline-{os.getuid()}"


@dataclass(frozen=True, kw_only=True)
class FollowExecutors:
    """A parallelism that follows the cluster: a partition for each task slot of its executors.

    The slots are the number of executors times the cores of each (`spark.executor.cores` / `spark.task.cpus`). The
    parallelism is at least `min` and at most `max`; that of an operator is also at most its max_parallelism. A job
    begins with the slots that exist. When there have been more of them for as long as `after`, the job is rescaled, as
    by `run.rescale`, to their lowest number in this time; when there have been fewer, to their highest number.

    >>> settings = Settings(parallelism=FollowExecutors(min=2, max=64))
    """

    min: int = 1
    max: int | None = None
    after: Duration = "1 min"

    def __post_init__(self) -> None:
        for what, number in (("min", self.min), ("max", self.max)):
            if number is not None and not _is_count(number):
                raise ConfigurationError(f"FollowExecutors: {what} is {number!r}, expected a positive number")
        if self.max is not None and self.max < self.min:
            raise ConfigurationError(f"FollowExecutors: max is {self.max}, and min is {self.min}, expected no more")
        if self.after_ms == 0:
            raise ConfigurationError(
                f"FollowExecutors: after is {self.after!r}, expected more than 0",
                hint="each change costs a checkpoint and a restore: give the cluster time to replace an executor",
            )

    @property
    def after_ms(self) -> int:
        """The time for which there must have been more slots, or fewer, in milliseconds."""
        return parse_duration_ms(self.after, "FollowExecutors: after")

    def within(self, task_slots: int) -> int:
        """Return the number of partitions for a number of task slots: one a slot, limited by `min` and `max`."""
        count = max(self.min, task_slots)
        return count if self.max is None else min(self.max, count)


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a job. Components (store, clock, backend) are arguments, not settings.

    With `fsync=False`, the operating system writes files in local directories (`file://`) to disk seconds later. A
    crash of processes still loses nothing. A power cut or a crash of the machine may lose or tear complete checkpoints,
    while sinks keep the rows that they made visible since: exactly once is not guaranteed after it. Object storage is
    not affected.

    `show_values` says where errors quote keys, events and other data of the program. "errors": in exceptions that the
    program gets, but not in log files or the status; "nowhere": in none of them; "logs": in all of them.

    `max_parallelism` is that of operators, and of views, that have none of their own: the largest parallelism that they
    can ever have, fixed at their first start. Without it, it is at least 128, and follows from the parallelism.

    `max_row` limits the size of a row that is sent to an operator, or that it outputs: Spark holds several copies
    of a row, and its JVM ends if they do not fit into memory.
    """

    backend: BackendName = "rocksdb"
    parallelism: int | FollowExecutors | None = None
    max_parallelism: int | None = None
    state_memory: str | int = field(default_factory=default_state_memory_bytes)
    memory_backend_limit: str | int = "10MB"
    local_dir: str | Path = field(default_factory=default_local_dir)
    keeper_lease: Duration = "10 min"
    fsync: bool = True
    show_values: ShowValues = "errors"
    max_row: str | int = "64MB"

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigurationError(f"backend is {self.backend!r}, expected one of {', '.join(BACKENDS)}")
        number = self.parallelism
        if number is not None and not isinstance(number, FollowExecutors) and not _is_count(number):
            raise ConfigurationError(
                f"parallelism is {number!r}, expected a positive number",
                hint="or FollowExecutors(), to have as many partitions as the cluster runs tasks at once",
            )
        if self.max_parallelism is not None:
            if not _is_count(self.max_parallelism):
                raise ConfigurationError(f"max_parallelism is {self.max_parallelism!r}, expected a positive number")
            check_parallelism("", self.fixed_parallelism or 1, self.max_parallelism)
        if not isinstance(self.fsync, bool):
            raise ConfigurationError(f"fsync is {self.fsync!r}, expected True or False")
        if self.show_values not in _SHOW_VALUES:
            raise ConfigurationError(
                f"show_values is {self.show_values!r}, expected one of {', '.join(map(repr, _SHOW_VALUES))}"
            )
        check_local_path("local_dir", self.local_dir)
        # Parse all values once here, so that a wrong setting fails in the line that sets it.
        _ = (self.state_memory_bytes, self.memory_backend_limit_bytes, self.keeper_lease_ms, self.max_row_bytes)

    @property
    def fixed_parallelism(self) -> int | None:
        """The parallelism, if it is a number."""
        return self.parallelism if isinstance(self.parallelism, int) else None

    @property
    def follows(self) -> FollowExecutors | None:
        """The rule by which the parallelism follows the cluster, if it does."""
        return self.parallelism if isinstance(self.parallelism, FollowExecutors) else None

    @property
    def state_memory_bytes(self) -> int:
        """The memory of all keepers of one machine together."""
        return parse_size_bytes(self.state_memory, "state_memory")

    @property
    def memory_backend_limit_bytes(self) -> int:
        """The largest size of one partition's state in the `memory` backend."""
        return parse_size_bytes(self.memory_backend_limit, "memory_backend_limit")

    @property
    def max_row_bytes(self) -> int:
        """The largest size of a row that is sent to an operator, or that it outputs."""
        return parse_size_bytes(self.max_row, "max_row")

    @property
    def keeper_lease_ms(self) -> int:
        """The time without a request after which a keeper ends itself."""
        return parse_duration_ms(self.keeper_lease, "keeper_lease")
