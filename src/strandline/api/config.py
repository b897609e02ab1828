"""A job's options for checkpoints and restarts, with Flink's defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import get_args

from strandline.core.errors import ConfigurationError
from strandline.core.failure import without_credentials
from strandline.core.kafkaclient import TOPIC, Cluster, check_installed
from strandline.core.settings import Duration, Mode, parse_duration_ms, parse_size_bytes
from strandline.core.urls import check_url

_MOST_CONCURRENT = 8
_LEAST_LOG_BYTES = 16 << 20
_LEAST_CONTINUOUS_BYTES = 4 << 20


@dataclass(frozen=True)
class KafkaLog:
    """A topic of Kafka for the logs of `Checkpoints(mode="changelog")`, in place of files in the checkpoints' storage.

    `options` are those of Kafka's client (librdkafka), as of `sinks.kafka`; they are never logged or written to files.
    The topic must be there, with `cleanup.policy=compact`; jobs may share it. Needs `pip install strandline[kafka]`.

    >>> Changelog(log=KafkaLog("localhost:9092", "counts-log"))
    """

    servers: str
    topic: str
    options: dict[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        _ = self.cluster
        if not isinstance(self.topic, str) or not TOPIC.fullmatch(self.topic):
            raise ConfigurationError(
                f"KafkaLog: topic is {self.topic!r:.300}, expected letters, digits, '.', '_' and '-', 249 at most"
            )
        check_installed("KafkaLog")

    @property
    def cluster(self) -> Cluster:
        """The cluster, with the options of its clients."""
        return Cluster(self.servers, self.options, "KafkaLog")

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of a store that reads the log."""
        return {f"kafka.{name}": value for name, value in self.cluster.options.items()}


@dataclass(frozen=True)
class Changelog:
    """The limits of the logs of `Checkpoints(mode="changelog")`: beyond one of them, a partition gets a new base.

    A restore reads the base and repeats the log. A new base is due when the log exceeds `share` of the state's size (16
    MB are always allowed), or `limit`, which bounds the time of a restore, and the memory of a reader of the snapshot.
    The log grows on until the base is uploaded, and by what one interval of checkpoints writes. `parts`
    bounds the number of its files: each checkpoint adds one, and small ones are merged. With `log`, these files are
    records of a topic in Kafka.

    >>> Changelog(share=1.0, limit="2GB")
    """

    share: float = 0.5
    limit: str | int = "512MB"
    parts: int = 100
    log: KafkaLog | None = None

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 100:
            raise ConfigurationError(f"changelog: share is {self.share!r}, expected more than 0 and at most 100")
        if not isinstance(self.parts, int) or not 2 <= self.parts <= 10_000:
            raise ConfigurationError(f"changelog: parts is {self.parts!r}, expected 2 to 10000")
        if self.log is not None and not isinstance(self.log, KafkaLog):
            raise ConfigurationError(
                f"changelog: log is {self.log!r}, expected a topic of Kafka, or None for files",
                hint='write log=KafkaLog("localhost:9092", "counts-log")',
            )
        _ = self.limit_bytes

    @property
    def limit_bytes(self) -> int:
        """`limit` in bytes."""
        return parse_size_bytes(self.limit, "changelog: limit")

    def longest_log(self, base_bytes: float) -> float:
        """Return the size of a partition's log beyond which a base of this size is replaced."""
        return min(max(self.share * base_bytes, _LEAST_LOG_BYTES), self.limit_bytes)


@dataclass(frozen=True)
class Continuous:
    """The limits of the logs of `Checkpoints(mode="continuous")`, which have the whole state.

    A partition's log is about `log` times as long as its state (4 MB are always allowed). To that end, what only the
    oldest part of the log has is written again: for each byte that changed, a checkpoint reads at most `budget` bytes
    of the oldest part, and writes what still counts. A longer log needs fewer writes, more storage, and more time for a
    restore.

    >>> Continuous(log=3.0)
    """

    log: float = 2.0
    budget: float = 4.0

    def __post_init__(self) -> None:
        for name in ("log", "budget"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 1 < value <= 100:
                raise ConfigurationError(f"continuous: {name} is {value!r}, expected more than 1 and at most 100")
        least = self.log / (self.log - 1)
        if self.budget < least:
            raise ConfigurationError(
                f"continuous: budget is {self.budget!r}, expected at least {least:.3g}, which is log / (log - 1): with "
                "less, the log may grow without a bound",
                hint="raise budget or log",
            )

    def longest_log(self, state_bytes: float) -> float:
        """Return the size of a partition's log beyond which its oldest part is cleaned, for a state of this size."""
        return max(self.log * state_bytes, _LEAST_CONTINUOUS_BYTES)


@dataclass(frozen=True)
class Checkpoints:
    """The directory, interval and mode of a job's checkpoints.

    `directory` is a path or a URL (file://, s3://, gs://, az://). `every` is the interval; epochs may take a checkpoint
    a tenth of it early, or late by their own duration. Without it, checkpoints are taken only on demand.
    `mode` is what each checkpoint uploads: "incremental" the files that are new, "changelog" the changes alone, within
    the limits of `changelog`, "continuous" the changes and some old entries, within the limits of `continuous`, and
    "full" everything. `tolerable_failures` is how many may fail in a row before the job is restarted; None means any
    number. With `local_log`, a keeper whose process dies is replaced alone, and the job
    goes on without a restart: each epoch's changes are written to a log on the keeper's machine. By default, that is so
    in the modes "changelog" and "continuous"; only the backend "rocksdb" has it.
    `max_concurrent` is how many may be in flight: with more than one, a slow upload does not delay the next checkpoint,
    which subsumes the slow one if it is complete first.
    With `standbys=1`, a second host of a cluster keeps the files of each partition's newest checkpoint, too, and the
    partition goes on there if its host is lost, without a download.
    `storage_options` go to the storage client; they are never logged or written to files.

    >>> Checkpoints("file:///var/lib/checkpoints", every="10s", retain=2)
    """

    directory: str | Path = field(repr=False)
    every: Duration | None = None
    mode: Mode = "incremental"
    retain: int = 1
    timeout: Duration = "10 min"
    min_pause: Duration = "0s"
    tolerable_failures: int | None = 0
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    changelog: Changelog = Changelog()
    continuous: Continuous = Continuous()
    local_log: bool | None = None
    max_concurrent: int = 1
    standbys: int = 0

    def __repr__(self) -> str:
        texts = [f"directory={without_credentials(str(self.directory))!r}"]
        texts += [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr]
        return f"Checkpoints({', '.join(texts)})"

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ConfigurationError(
                f"checkpoints: mode is {self.mode!r}, expected 'full', 'incremental', 'changelog' or 'continuous'"
            )
        if not isinstance(self.changelog, Changelog):
            raise ConfigurationError(
                f"checkpoints: changelog is {self.changelog!r}, expected the limits of its log",
                hint='write mode="changelog", changelog=Changelog(limit="512MB")',
            )
        if not isinstance(self.continuous, Continuous):
            raise ConfigurationError(
                f"checkpoints: continuous is {self.continuous!r}, expected the limits of its log",
                hint='write mode="continuous", continuous=Continuous(log=3.0)',
            )
        if self.changelog.log is not None:
            options = {**self.storage_options, **self.changelog.log.storage_options}
            object.__setattr__(self, "storage_options", options)
        if self.local_log not in (None, True, False):
            raise ConfigurationError(f"checkpoints: local_log is {self.local_log!r}, expected True, False or None")
        if not isinstance(self.retain, int) or self.retain < 1:
            raise ConfigurationError(f"checkpoints: retain is {self.retain!r}, expected 1 or more")
        if not isinstance(self.max_concurrent, int) or not 1 <= self.max_concurrent <= _MOST_CONCURRENT:
            raise ConfigurationError(
                f"checkpoints: max_concurrent is {self.max_concurrent!r}, expected 1 to {_MOST_CONCURRENT}"
            )
        if self.max_concurrent > 1 and self.min_pause_ms:
            raise ConfigurationError(
                f"checkpoints: min_pause is {self.min_pause!r} and max_concurrent is {self.max_concurrent}: with a "
                "pause after each checkpoint, no two are in flight",
                hint="leave min_pause or max_concurrent out",
            )
        if isinstance(self.standbys, bool) or self.standbys not in (0, 1):
            raise ConfigurationError(
                f"checkpoints: standbys is {self.standbys!r}, expected 0 or 1",
                hint="write standbys=1 for a second copy of each partition's files, on another host",
            )
        tolerable = self.tolerable_failures
        if tolerable is not None and (not isinstance(tolerable, int) or tolerable < 0):
            raise ConfigurationError(f"checkpoints: tolerable_failures is {tolerable!r}, expected 0 or more")
        if not str(self.directory).strip():
            raise ConfigurationError("checkpoints: the directory is empty", hint="give a path or URL")
        check_url(self.directory)
        _ = (self.interval_ms, self.min_pause_ms)
        if not self.timeout_ms:
            raise ConfigurationError(f"checkpoints: timeout is {self.timeout!r}, expected more than 0")

    @property
    def has_local_log(self) -> bool:
        """Whether each epoch's changes are written to a log on the keeper's machine."""
        return self.mode in ("changelog", "continuous") if self.local_log is None else self.local_log

    @property
    def interval_ms(self) -> int | None:
        """`every` in milliseconds."""
        return None if self.every is None else parse_duration_ms(self.every, "checkpoints: every")

    @property
    def timeout_ms(self) -> int:
        """`timeout` in milliseconds."""
        return parse_duration_ms(self.timeout, "checkpoints: timeout")

    @property
    def min_pause_ms(self) -> int:
        """`min_pause` in milliseconds."""
        return parse_duration_ms(self.min_pause, "checkpoints: min_pause")


@dataclass(frozen=True)
class Restart:
    """Restarts after failures: up to `attempts` in a row, after a `delay` that doubles each time up to `max_delay`.

    With `Checkpoints(standbys=1)`, the first one after the loss of a host does not wait.
    Every completed checkpoint resets the count. Errors in the user's function end the job at once unless
    `on_user_error` is set: the restarted job would read the same event.

    >>> Restart(attempts=10, delay="2s")
    """

    attempts: int = 5
    delay: Duration = "1s"
    max_delay: Duration = "1 min"
    on_user_error: bool = False

    def __post_init__(self) -> None:
        self.delay_ms(1)  # Refuse a wrong delay here, not at the first restart.

    def delay_ms(self, restart: int) -> int:
        """Return the wait before the n-th restart in a row, counted from 1."""
        first = parse_duration_ms(self.delay, "restart: delay")
        return min(first << (restart - 1), parse_duration_ms(self.max_delay, "restart: max_delay"))

    @staticmethod
    def never() -> Restart:
        """Return options without restarts: the first failure ends the job."""
        return Restart(attempts=0)
