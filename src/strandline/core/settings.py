"""One frozen, validated Settings, and the parsing of durations and sizes that users write."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from strandline.core.errors import ConfigurationError
from strandline.core.times import LONGEST_MS
from strandline.core.urls import check_local_path

BackendName = Literal["memory", "filesystem", "rocksdb"]
BACKENDS: tuple[BackendName, ...] = ("memory", "filesystem", "rocksdb")
ShowValues = Literal["nowhere", "errors", "logs"]
_SHOW_VALUES: tuple[ShowValues, ...] = ("nowhere", "errors", "logs")

_DURATION_MS = {
    "ms": 1, "s": 1000, "sec": 1000, "secs": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "mins": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000, "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_SIZE_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_duration_ms(value: str | int | float, what: str) -> int:
    """Return milliseconds of '10s', '500ms', '2 min' or a number of seconds; more than 10,000 years are refused."""
    found_ms: int | None = None
    # What is infinite overflows.
    with suppress(OverflowError):
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            found_ms = round(value * 1000)
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value.lower()) if isinstance(value, str) else None
        if match and match[2] in _DURATION_MS:
            found_ms = round(float(match[1]) * _DURATION_MS[match[2]])
    if found_ms is not None and found_ms <= LONGEST_MS:
        return found_ms
    if found_ms is not None:
        raise ConfigurationError(f"{what} is {value!r}, expected at most 10,000 years", hint="write a shorter one")
    raise ConfigurationError(
        f"{what} is {value!r}, expected a duration", hint="write it like '500ms', '10s', '5 min' or '1h'"
    )


def parse_size_bytes(value: str | int, what: str) -> int:
    """Return bytes of '512MB', '4 GB' or a number of bytes."""
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
    """A parallelism that follows the cluster: a partition for each task that its executors run at once.

    That is the number of executors times the cores of each (`spark.executor.cores` / `spark.task.cpus`), but not below
    `min` and not above `max`; of an operator, not above its max_parallelism either. A job begins with the room that
    there is. When there has been more for as long as `after`, or less, it is rescaled as by `run.rescale`, to what
    there was at least, or at most, in this time.

    >>> settings = Settings(parallelism=FollowExecutors(min=2, max=64))
    """

    min: int = 1
    max: int | None = None
    after: str | int | float = "1 min"

    def __post_init__(self) -> None:
        for what, number in (("min", self.min), ("max", self.max)):
            if number is not None and not _is_count(number):
                raise ConfigurationError(f"FollowExecutors: {what} is {number!r}, expected a positive number")
        if self.max is not None and self.max < self.min:
            raise ConfigurationError(f"FollowExecutors: max is {self.max}, and min is {self.min}")
        if self.after_ms == 0:
            raise ConfigurationError(
                f"FollowExecutors: after is {self.after!r}, expected more than 0",
                hint="each change is a checkpoint and a restore: leave an executor the time to be replaced",
            )

    @property
    def after_ms(self) -> int:
        """For how long there must have been more room, or less."""
        return parse_duration_ms(self.after, "FollowExecutors: after")

    def within(self, room: int) -> int:
        """Return a number of partitions for so many tasks at once."""
        wanted = max(self.min, room)
        return wanted if self.max is None else min(self.max, wanted)


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a job may tune. Components (store, clock, backend) are arguments, not settings.

    `fsync` False: what is written to local directories (`file://`) becomes durable when the operating system comes to
    it, seconds later. A crash of processes then still loses nothing; a power cut or a crash of the machine may lose or
    tear checkpoints that were complete, with rows that were made visible since: exactly once does not outlive it.
    Object storage does not know this setting.

    `show_values` says where keys, events and what else a program's data may be are quoted when something fails. With
    "errors", in what is raised in the program, and not in log files, nor in the status; "nowhere": not there either;
    "logs": everywhere.

    `max_row` is how large a row may be that is sent to an operator, or that it gives: Spark holds several copies of it,
    and ends its JVM where they do not fit.
    """

    backend: BackendName = "rocksdb"
    parallelism: int | FollowExecutors | None = None
    state_memory: str | int = field(default_factory=default_state_memory_bytes)
    memory_backend_limit: str | int = "10MB"
    local_dir: str | Path = field(default_factory=default_local_dir)
    keeper_lease: str | int | float = "10 min"
    fsync: bool = True
    show_values: ShowValues = "errors"
    max_row: str | int = "64MB"

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ConfigurationError(f"backend is {self.backend!r}, expected one of {', '.join(BACKENDS)}")
        given = self.parallelism
        if given is not None and not isinstance(given, FollowExecutors) and not _is_count(given):
            raise ConfigurationError(
                f"parallelism is {given!r}, expected a positive number",
                hint="or FollowExecutors(), to have as many partitions as the cluster runs tasks at once",
            )
        if not isinstance(self.fsync, bool):
            raise ConfigurationError(f"fsync is {self.fsync!r}, expected True or False")
        if self.show_values not in _SHOW_VALUES:
            raise ConfigurationError(
                f"show_values is {self.show_values!r}, expected one of {', '.join(map(repr, _SHOW_VALUES))}"
            )
        check_local_path("local_dir", self.local_dir)
        # The parsed forms are properties; parsing here makes a wrong setting fail where it was written.
        _ = (self.state_memory_bytes, self.memory_backend_limit_bytes, self.keeper_lease_ms, self.max_row_bytes)

    @property
    def fixed_parallelism(self) -> int | None:
        """The parallelism, if it is a number."""
        return self.parallelism if isinstance(self.parallelism, int) else None

    @property
    def follows(self) -> FollowExecutors | None:
        """How the parallelism follows the cluster, if it does."""
        return self.parallelism if isinstance(self.parallelism, FollowExecutors) else None

    @property
    def state_memory_bytes(self) -> int:
        """Budget of all keepers of one machine together."""
        return parse_size_bytes(self.state_memory, "state_memory")

    @property
    def memory_backend_limit_bytes(self) -> int:
        """How far one partition's state may grow in the `memory` backend."""
        return parse_size_bytes(self.memory_backend_limit, "memory_backend_limit")

    @property
    def max_row_bytes(self) -> int:
        """How large a row may be on its way to and from operators."""
        return parse_size_bytes(self.max_row, "max_row")

    @property
    def keeper_lease_ms(self) -> int:
        """After how long a keeper that nobody asks for ends itself."""
        return parse_duration_ms(self.keeper_lease, "keeper_lease")
