"""The status of a job, for users and programs, in the driver and outside."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from strandline.checkpoint.history import CheckpointStats
from strandline.core.heavykey import HeavyKey
from strandline.core.html import card, facts, line, render, strong
from strandline.core.ids import CheckpointId, Epoch
from strandline.core.texts import duration_text, size_text
from strandline.runtime.reached import WatermarkStatus

State = Literal["starting", "running", "restarting", "rescaling", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class KeeperStatus:
    """One keeper, as of its last answer."""

    uid: str
    partition: int
    pid: int
    host: str
    epoch: int
    rows_in: int
    rows_out: int
    process_ms: float
    pause_ms: float
    restore_ms: float
    metrics: dict[str, int]
    all_rows_in: int = 0
    """In all epochs since the job's last start or restart, as the next two fields. Skewed keys show here."""
    all_rows_out: int = 0
    all_ms: float = 0.0
    all_busy_ms: float = 0.0
    """`all_ms` without the time in which it waited for rows."""
    late_rows: int = 0
    """Since the job's last start or restart, as the next field."""
    failed_events: int = 0
    state_bytes: int | None = None
    """The size of the backend's state, on disk or in memory; None if it is not known yet."""
    memory_bytes: int | None = None
    """The memory that the process uses."""
    recent_rows: float = 0.0
    """The rows of the last minute or so: those of half a minute ago count half, and so on."""
    heaviest_keys: list[HeavyKey] = field(default_factory=list)
    """The keys with most of these, largest first."""


@dataclass(frozen=True)
class StandbyStatus:
    """The standby of one partition, as of the last answer of the keeper that has it."""

    uid: str
    partition: int
    host: str = ""
    """Empty: there is none, since all keepers are on one host."""
    checkpoint: int | None = None
    """The newest checkpoint of which it has all files; None before the first."""
    total_bytes: int = 0
    """The size of these files."""
    downloaded_bytes: int = 0
    """Since its keeper began."""
    cpu_ms: float = 0.0
    """The processor time of that."""
    failure: str = ""
    """The reason why it does not go on; it tries again."""


@dataclass(frozen=True)
class SourceStatus:
    """One source: the offsets that were read, and the backlog."""

    name: str
    """As in `stream(…, name=…)`; empty if the source has no name."""
    what: str
    """Spark's description: `FileStreamSource[file:/in]`."""
    read_to: Any = None
    """The offsets up to which it was read, in the source's own form."""
    latest: Any = None
    """The source's newest offsets when Spark last looked; None if the source does not report them."""
    offsets_behind: int | None = None
    """The number of offsets between these two; None if it is not known."""
    files_behind: int | None = None
    """For a source of files: the number of files that no epoch has processed; None if it is not known."""
    bytes_behind: int | None = None
    waiting_ms: int | None = None
    """For how long the oldest of these files has waited; 0 if none waits."""


@dataclass(frozen=True)
class SinkStatus:
    """One sink that writes to another system: its delivered and waiting rows."""

    name: str
    rows: int = 0
    """The rows that this run has delivered since its last start or restart."""
    refused_rows: int = 0
    """How many of them the target refused, where `on_error` lets the job continue."""
    waiting_rows: int = 0
    """The rows that a checkpoint has listed and that are not delivered, because the target did not accept them."""
    waiting_bytes: int = 0
    waiting_ms: int = 0
    """For how long the oldest of them has waited."""
    failure: str = ""
    """The reason why they wait."""


@dataclass(frozen=True)
class OperatorStatus:
    """One keyed operator of the running job."""

    uid: str
    name: str
    parallelism: int
    """The number of its partitions, each with a keeper."""
    max_parallelism: int
    """The most partitions that it may have."""
    heaviest_keys: list[HeavyKey] = field(default_factory=list)
    """The keys with most of the rows that its partitions had in the last minute or so, largest first."""


@dataclass(frozen=True)
class Totals:
    """Counts since the driver started the run. None ever decreases: restarts, rescales and rollbacks reset nothing."""

    epochs: int = 0
    epoch_ms: float = 0.0
    """The time of all epochs, as the next counts of all their rows: what is processed again counts again."""
    rows: int = 0
    late_rows: int = 0
    failed_events: int = 0
    replaced_keepers: int = 0
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    checkpoints_subsumed: int = 0
    checkpoint_ms: int = 0
    """From trigger to completion, of all completed ones."""
    uploaded_bytes: int = 0
    """With all completed checkpoints."""
    rescales: int = 0
    """Also rollbacks that were asked for."""
    down_ms: int = 0
    """The time without work in restarts and rescales that are over."""
    repeated_rows: int = 0
    """The rows that were processed again after these."""

    def plus(self, other: Totals) -> Totals:
        """Return the sums."""
        return Totals(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Totals)))


@dataclass(frozen=True)
class GraphNode:
    """A source, a keyed operator or a sink of the job, and those that its rows come from."""

    id: str
    kind: Literal["source", "operator", "sink"]
    name: str
    """A source's or sink's name, an operator's uid; empty for the only source, which needs none."""
    what: str = ""
    """The kind of a sink; the function of an operator."""
    inputs: dict[str, str] = field(default_factory=dict)
    """By id of a node whose rows it reads: the name of the side output; "" for the main output."""


@dataclass(frozen=True)
class Savepoint:
    """A savepoint that was taken."""

    url: str
    form: str
    """"canonical" or "native"."""
    checkpoint: CheckpointId
    """The checkpoint that it was made from."""
    epoch: Epoch
    total_bytes: int
    duration_ms: int

    def _repr_html_(self) -> str:
        values = {
            "form": self.form, "checkpoint": self.checkpoint, "epoch": self.epoch,
            "size": size_text(self.total_bytes), "took": duration_text(self.duration_ms),
        }  # fmt: skip
        return card(strong("savepoint"), line(self.url), facts(values))


@dataclass(frozen=True)
class Status:
    """The status of a job."""

    job: str
    state: State
    generation: int
    restored_from: int | None
    restarts: int
    checkpoints: dict[str, int]
    """Counts: triggered, in_progress, completed, failed, restored, subsumed."""
    last_checkpoint: CheckpointStats | None
    """The figures of the newest completed checkpoint, or None."""
    last_failure: str
    """The reason of the last restart or failure; "" if there was none."""
    depends_on: str = ""
    """The snapshot of another job, or savepoint, that this job needs until its first checkpoint; "" after that."""
    sources: list[str] = field(default_factory=list)
    """The names of the sources; empty if a source has no name."""
    parallelism: int = 0
    """The largest number of partitions of the operators without a `parallelism`; or of all, if each has one."""
    replaced_keepers: int = 0
    """The keepers that have died since the last start or restart, and were replaced without a restart of the job."""
    follows: bool = False
    """Whether this number follows the cluster's executors."""
    operators: list[OperatorStatus] = field(default_factory=list)
    """The keyed operators, each with its parallelism."""
    graph: list[GraphNode] = field(default_factory=list)
    """The job's sources, operators and sinks, each after those that its rows come from."""
    last_failure_ms: int | None = None
    """The time of the last failure."""
    uncovered_ms: int = 0
    """The time since the first event that no complete checkpoint covers: so much work a failure now would repeat.
    0 if the newest checkpoint covers everything, however old it is."""
    epoch: int = 0
    rows_in: int = 0
    """Events in the job's whole life, each counted once: checkpoints store the number, and restarts restore it."""
    rows_per_s: float = 0.0
    """In the last ten seconds."""
    epochs: int = 0
    """Since the run's start or its last restart."""
    last_epoch_ms: float = 0.0
    last_epoch_rows: int = 0
    watermark: str | None = None
    """The watermark, in ISO 8601; None without one, or before the first event."""
    watermarks: list[WatermarkStatus] = field(default_factory=list)
    """The progress of each watermark(): it shows which one holds up the job."""
    late_rows: int = 0
    """Events older than the watermark, in the job's whole life."""
    failed_events: int = 0
    """Events that a function failed for and that `on_error` left out, in the job's whole life."""
    source_progress: list[SourceStatus] = field(default_factory=list)
    """The progress of each source."""
    sinks: list[SinkStatus] = field(default_factory=list)
    """The sinks that write to other systems."""
    keepers: list[KeeperStatus] = field(default_factory=list)
    standbys: list[StandbyStatus] = field(default_factory=list)
    """With `Checkpoints(standbys=1)`, that of each partition."""
    totals: Totals = Totals()
    attempt_ms: int = 0
    """When the job's last start or restart was done; 0 before."""

    def _repr_html_(self) -> str:
        return render(self)
