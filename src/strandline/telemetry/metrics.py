"""The metrics of a job: one table, of which Prometheus, OpenTelemetry and the documentation are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from strandline.checkpoint.history import CheckpointStats
from strandline.control.status import KeeperStatus, SinkStatus, SourceStatus, Status, Totals
from strandline.telemetry.figures import JOB_STATES, Figures

Kind = Literal["counter", "gauge"]
Since = Literal["", "driver", "attempt", "keeper"]
Value = tuple[tuple[str, ...], float | None]
"""The values of a metric's own labels, and its value there; None: it has none."""
JOB_LABELS = ("job", "directory")
"""The labels of every metric."""
_UNITS = ("seconds", "bytes")
ONLY_SOURCE = "source"
"""The label of a job's only source, which needs no name."""


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """As Prometheus has it: with the unit, and `_total` if it is a counter."""
    kind: Kind
    meaning: str
    values: Callable[[Figures], Iterable[Value]]
    labels: tuple[str, ...] = ()
    """Beside those of every metric."""
    since: Since = ""
    """Of a counter: what it begins at 0 with."""
    flink: str = ""
    """Flink's metric of this meaning, if there is one, as the next of Kafka Streams."""
    kafka: str = ""

    @property
    def unit(self) -> str:
        """The unit, "" for a number."""
        return next((unit for unit in _UNITS if unit in self.name.removesuffix("_total").rpartition("_")), "")


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    metric: Metric
    labels: dict[str, str]
    value: float
    since_ms: int | None
    """Of a counter: when it was 0; None for a gauge."""


def samples(figures: Figures) -> Iterator[Sample]:
    """Return all values of a job. Without a status, those of its state alone."""
    common = dict(zip(JOB_LABELS, (figures.job, figures.directory), strict=True))
    attempt_ms = (figures.status.attempt_ms if figures.status is not None else 0) or figures.since_ms
    for metric in METRICS:
        since_ms = {"": None, "driver": figures.since_ms}.get(metric.since, attempt_ms)
        for labels, value in metric.values(figures):
            if value is not None:
                specific = dict(zip(metric.labels, labels, strict=True))
                yield Sample(metric, common | specific, float(value), since_ms)


def _of_job(read: Callable[[Status], float | None]) -> Callable[[Figures], Iterable[Value]]:
    return lambda figures: [((), read(figures.status))] if figures.status is not None else []


def _of_totals(read: Callable[[Totals], float]) -> Callable[[Figures], Iterable[Value]]:
    return _of_job(lambda status: read(status.totals))


def _of_last_checkpoint(read: Callable[[CheckpointStats], float | None]) -> Callable[[Figures], Iterable[Value]]:
    return _of_job(lambda status: read(status.last_checkpoint) if status.last_checkpoint is not None else None)


def _of_partitions(read: Callable[[KeeperStatus], float | None]) -> Callable[[Figures], Iterable[Value]]:
    return lambda figures: [((keeper.uid, label), read(keeper)) for label, keeper in figures.keepers]


def _of_sources(read: Callable[[SourceStatus], float | None]) -> Callable[[Figures], Iterable[Value]]:
    return lambda figures: [
        ((source.name or ONLY_SOURCE,), read(source))
        for source in (figures.status.source_progress if figures.status is not None else [])
    ]


def _of_sinks(read: Callable[[SinkStatus], float | None]) -> Callable[[Figures], Iterable[Value]]:
    return lambda figures: [
        ((sink.name,), read(sink)) for sink in (figures.status.sinks if figures.status is not None else [])
    ]


def _states(figures: Figures) -> Iterable[Value]:
    return [((state,), float(figures.state == state)) for state in JOB_STATES]


def _phases(figures: Figures) -> Iterable[Value]:
    last = figures.status.last_checkpoint if figures.status is not None else None
    if last is None or last.phases is None:
        return []
    phases = last.phases
    return [
        (("waits",), phases.waits_ms / 1000), (("epoch",), phases.epoch_ms / 1000),
        (("durable",), phases.durable_ms / 1000), (("published",), phases.published_ms / 1000),
    ]  # fmt: skip


def _checkpoints(figures: Figures) -> Iterable[Value]:
    if figures.status is None:
        return []
    totals = figures.status.totals
    return [
        (("completed",), totals.checkpoints_completed), (("failed",), totals.checkpoints_failed),
        (("subsumed",), totals.checkpoints_subsumed),
    ]  # fmt: skip


def _row_ages(figures: Figures) -> Iterable[Value]:
    last = figures.status.last_checkpoint if figures.status is not None else None
    return [((sink.name,), sink.age_ms / 1000) for sink in (last.sinks if last is not None else ())]


def _parallelism(figures: Figures) -> Iterable[Value]:
    return [((o.uid,), o.parallelism) for o in (figures.status.operators if figures.status is not None else [])]


def _heaviest_keys(figures: Figures) -> Iterable[Value]:
    operators = figures.status.operators if figures.status is not None else []
    return [((each.uid,), max((key.share for key in each.heaviest_keys), default=0.0)) for each in operators]


def _watermarks(figures: Figures) -> Iterable[Value]:
    """Return the watermark of each source; of several on one source, the one that is furthest behind."""
    reached: dict[str, float] = {}
    for each in figures.status.watermarks if figures.status is not None else []:
        if (at_s := _unix_s(each.time)) is not None:
            name = each.source or ONLY_SOURCE
            reached[name] = min(at_s, reached.get(name, at_s))
    return [((name,), at_s) for name, at_s in reached.items()]


def _standbys(figures: Figures) -> Iterable[Value]:
    counts: dict[str, float] = {}
    status = figures.status
    newest = status.last_checkpoint.checkpoint if status is not None and status.last_checkpoint is not None else 0
    for each in status.standbys if status is not None else []:
        counts.setdefault(each.uid, 0)
        counts[each.uid] += (each.checkpoint or 0) < newest
    return [((uid,), number) for uid, number in counts.items()]


def _unix_s(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


_PARTITION, _SOURCE, _SINK, _OPERATOR = ("operator", "partition"), ("source",), ("sink",), ("operator",)

METRICS: tuple[Metric, ...] = (
    # -- the job
    Metric(
        "strandline_up", "gauge", "1 if a driver runs the job and answers, else 0",
        lambda figures: [((), float(figures.status is not None))], kafka="alive-stream-threads",
    ),
    Metric(
        "strandline_job_state", "gauge",
        f"1 for the state that the job is in, 0 for the others: {', '.join(JOB_STATES)}",
        _states, ("state",), flink="runningState, restartingState", kafka="state",
    ),
    Metric(
        "strandline_job_info", "gauge", "1; the version of Strandline is a label",
        lambda figures: [((figures.version,), 1.0)] if figures.status is not None else [], ("version",),
        kafka="version",
    ),
    Metric(
        "strandline_start_time_seconds", "gauge", "When the driver started the job, in Unix time",
        lambda figures: [((), figures.since_ms / 1000)] if figures.status is not None else [],
        flink="uptime", kafka="thread-start-time",
    ),
    Metric(
        "strandline_generation", "gauge", "The number of the driver's claim on the job: it grows with each start and "
        "restart", _of_job(lambda status: status.generation),
    ),
    Metric(
        "strandline_restarts_total", "counter", "Restarts after failures", _of_job(lambda status: status.restarts),
        since="driver", flink="numRestarts", kafka="failed-stream-threads",
    ),
    Metric(
        "strandline_rescales_total", "counter", "Rescales and rollbacks that were asked for",
        _of_totals(lambda totals: totals.rescales), since="driver", flink="numRescales",
    ),
    Metric(
        "strandline_replaced_keepers_total", "counter", "Keepers that died and were replaced without a restart",
        _of_totals(lambda totals: totals.replaced_keepers), since="driver",
    ),
    Metric(
        "strandline_downtime_seconds_total", "counter", "Time without work in restarts and rescales that are over",
        _of_totals(lambda totals: totals.down_ms / 1000), since="driver", flink="restartingTimeTotal",
    ),
    Metric(
        "strandline_repeated_rows_total", "counter", "Rows that were processed again after restarts",
        _of_totals(lambda totals: totals.repeated_rows), since="driver",
    ),
    # -- epochs
    Metric(
        "strandline_epoch", "gauge", "The number of the last epoch", _of_job(lambda status: status.epoch),
    ),
    Metric(
        "strandline_epochs_total", "counter", "Epochs", _of_totals(lambda totals: totals.epochs), since="driver",
        kafka="commit-total",
    ),
    Metric(
        "strandline_epoch_duration_seconds_total", "counter", "Time of all epochs: divide by their number",
        _of_totals(lambda totals: totals.epoch_ms / 1000), since="driver",
    ),
    Metric(
        "strandline_last_epoch_duration_seconds", "gauge", "Time of the last epoch",
        _of_job(lambda status: status.last_epoch_ms / 1000), kafka="process-latency-avg",
    ),
    Metric(
        "strandline_last_epoch_rows", "gauge", "Rows of the last epoch", _of_job(lambda status: status.last_epoch_rows),
    ),
    Metric(
        "strandline_rows_total", "counter", "Rows of the sources that were processed; what is processed again counts "
        "again", _of_totals(lambda totals: totals.rows), since="driver", flink="numRecordsIn", kafka="process-total",
    ),
    Metric(
        "strandline_life_rows", "gauge", "Rows in the job's life, each counted once: a restart sets it back to its "
        "checkpoint", _of_job(lambda status: status.rows_in),
    ),
    Metric(
        "strandline_late_rows_total", "counter", "Rows older than the watermark",
        _of_totals(lambda totals: totals.late_rows), since="driver", flink="numLateRecordsDropped",
        kafka="dropped-records-total",
    ),
    Metric(
        "strandline_failed_events_total", "counter", "Events that a function failed for and that `on_error` left out",
        _of_totals(lambda totals: totals.failed_events), since="driver", kafka="dropped-records-total",
    ),
    Metric(
        "strandline_watermark_time_seconds", "gauge", "The job's watermark, in Unix time of the events",
        _of_job(lambda status: _unix_s(status.watermark)), flink="currentInputWatermark",
    ),
    # -- checkpoints
    Metric(
        "strandline_uncovered_seconds", "gauge", "Time since the first row that no complete checkpoint covers: so much "
        "work a failure now would repeat", _of_job(lambda status: status.uncovered_ms / 1000),
    ),
    Metric(
        "strandline_checkpoints_total", "counter", "Checkpoints that have ended, by their end: completed, failed, "
        "subsumed (given up, since a later one was complete before)", _checkpoints, ("status",), since="driver",
        flink="numberOfCompletedCheckpoints, numberOfFailedCheckpoints",
    ),
    Metric(
        "strandline_checkpoints_in_progress", "gauge", "Checkpoints in progress",
        _of_job(lambda status: status.checkpoints.get("in_progress", 0)), flink="numberOfInProgressCheckpoints",
    ),
    Metric(
        "strandline_checkpoint_duration_seconds_total", "counter", "Time of all completed checkpoints, from trigger to "
        "completion", _of_totals(lambda totals: totals.checkpoint_ms / 1000), since="driver",
    ),
    Metric(
        "strandline_checkpoint_uploaded_bytes_total", "counter", "Bytes that completed checkpoints uploaded",
        _of_totals(lambda totals: totals.uploaded_bytes), since="driver",
    ),
    Metric(
        "strandline_last_checkpoint", "gauge", "The number of the newest completed checkpoint",
        _of_last_checkpoint(lambda last: last.checkpoint),
        flink="lastCompletedCheckpointId",
    ),
    Metric(
        "strandline_last_checkpoint_time_seconds", "gauge", "When the newest checkpoint was complete, in Unix time",
        _of_last_checkpoint(lambda last: _seconds(last.completed_ms)),
    ),
    Metric(
        "strandline_last_checkpoint_duration_seconds", "gauge", "Its time, from trigger to completion",
        _of_last_checkpoint(lambda last: _seconds(last.end_to_end_ms)),
        flink="lastCheckpointDuration", kafka="commit-latency-avg",
    ),
    Metric(
        "strandline_last_checkpoint_phase_seconds", "gauge", "Its phases: waits, epoch, durable, published", _phases,
        ("phase",), flink="checkpointStartDelayNanos",
    ),
    Metric(
        "strandline_last_checkpoint_bytes", "gauge", "The size of all its files",
        _of_last_checkpoint(lambda last: last.total_bytes),
        flink="lastCheckpointFullSize",
    ),
    Metric(
        "strandline_last_checkpoint_uploaded_bytes", "gauge", "The size of its new files",
        _of_last_checkpoint(lambda last: last.uploaded_bytes),
        flink="lastCheckpointSize",
    ),
    # -- sources
    Metric(
        "strandline_source_backlog_offsets", "gauge", "Offsets between what was read and the newest that Spark saw",
        _of_sources(lambda source: source.offsets_behind), _SOURCE, flink="pendingRecords", kafka="records-lag",
    ),
    Metric(
        "strandline_source_backlog_files", "gauge", "Files that no epoch has processed",
        _of_sources(lambda source: source.files_behind), _SOURCE,
    ),
    Metric(
        "strandline_source_backlog_bytes", "gauge", "The size of these files",
        _of_sources(lambda source: source.bytes_behind), _SOURCE, flink="pendingBytes",
    ),
    Metric(
        "strandline_source_backlog_age_seconds", "gauge", "For how long the oldest of these files has waited",
        _of_sources(lambda source: _seconds(source.waiting_ms)), _SOURCE,
    ),
    Metric(
        "strandline_source_watermark_time_seconds", "gauge", "The watermark of a source, in Unix time of its events",
        _watermarks, _SOURCE, flink="currentEmitEventTimeLag",
    ),
    # -- sinks that write to other systems
    Metric(
        "strandline_sink_rows_total", "counter", "Rows that were delivered", _of_sinks(lambda sink: sink.rows), _SINK,
        since="attempt", flink="numRecordsSend", kafka="records-produced-total",
    ),
    Metric(
        "strandline_sink_refused_rows_total", "counter", "Rows that the target refused, where `on_error` lets the job "
        "continue", _of_sinks(lambda sink: sink.refused_rows), _SINK, since="attempt", flink="numRecordsSendErrors",
    ),
    Metric(
        "strandline_sink_waiting_rows", "gauge", "Rows of complete checkpoints that the target has not accepted",
        _of_sinks(lambda sink: sink.waiting_rows), _SINK, flink="pendingCommittables",
    ),
    Metric(
        "strandline_sink_waiting_bytes", "gauge", "The size of these rows",
        _of_sinks(lambda sink: sink.waiting_bytes), _SINK,
    ),
    Metric(
        "strandline_sink_waiting_seconds", "gauge", "For how long the oldest of them has waited",
        _of_sinks(lambda sink: sink.waiting_ms / 1000), _SINK,
    ),
    Metric(
        "strandline_sink_row_age_seconds", "gauge", "The age of the oldest row that a sink has shown with the newest "
        "checkpoint, when it was visible", _row_ages, _SINK, kafka="record-e2e-latency-max",
    ),
    # -- operators and their partitions
    Metric(
        "strandline_operator_parallelism", "gauge", "The number of an operator's partitions", _parallelism, _OPERATOR,
    ),
    Metric(
        "strandline_operator_heaviest_key_share", "gauge", "The largest share of one key in the rows of the last "
        "minute or so, an estimate; 0 if no key has a hundredth of its partition's", _heaviest_keys, _OPERATOR,
    ),
    Metric(
        "strandline_operator_standbys_behind", "gauge", "With standbys: how many of its partitions have none with the "
        "newest checkpoint", _standbys, _OPERATOR, kafka="restore-remaining-records-total",
    ),
    Metric(
        "strandline_partition_rows_in_total", "counter", "Rows that a partition has processed",
        _of_partitions(lambda keeper: keeper.all_rows_in), _PARTITION, since="attempt", flink="numRecordsIn",
        kafka="process-total",
    ),
    Metric(
        "strandline_partition_rows_out_total", "counter", "Rows that it gave",
        _of_partitions(lambda keeper: keeper.all_rows_out), _PARTITION, since="attempt", flink="numRecordsOut",
    ),
    Metric(
        "strandline_partition_busy_seconds_total", "counter", "Time in which it worked, without waiting for rows",
        _of_partitions(lambda keeper: keeper.all_busy_ms / 1000), _PARTITION, since="attempt",
        flink="busyTimeMsPerSecond", kafka="active-process-ratio",
    ),
    Metric(
        "strandline_partition_epoch_seconds_total", "counter", "Time of its part in epochs, with waiting for rows",
        _of_partitions(lambda keeper: keeper.all_ms / 1000), _PARTITION, since="attempt", flink="idleTimeMsPerSecond",
    ),
    Metric(
        "strandline_partition_late_rows_total", "counter", "Rows older than the watermark that it got",
        _of_partitions(lambda keeper: keeper.late_rows), _PARTITION, since="attempt", flink="numLateRecordsDropped",
    ),
    Metric(
        "strandline_partition_failed_events_total", "counter", "Events that its function failed for",
        _of_partitions(lambda keeper: keeper.failed_events), _PARTITION, since="attempt",
    ),
    Metric(
        "strandline_partition_pause_seconds", "gauge", "For how long the newest checkpoint's synchronous part held it "
        "up", _of_partitions(lambda keeper: keeper.pause_ms / 1000), _PARTITION, flink="checkpointAlignmentTime",
    ),
    Metric(
        "strandline_partition_restore_seconds", "gauge", "The time of its last restore",
        _of_partitions(lambda keeper: keeper.restore_ms / 1000), _PARTITION,
    ),
    Metric(
        "strandline_partition_state_bytes", "gauge", "The size of its state in the backend",
        _of_partitions(lambda keeper: keeper.state_bytes), _PARTITION, flink="rocksdb.total-sst-files-size",
        kafka="total-sst-files-size",
    ),
    Metric(
        "strandline_partition_log_bytes", "gauge", "The size of its log, which a restore repeats: of a changelog, or "
        "a continuous one", _of_partitions(lambda keeper: keeper.metrics.get("log_bytes")), _PARTITION,
    ),
    Metric(
        "strandline_partition_memory_bytes", "gauge", "The memory of its process",
        _of_partitions(lambda keeper: keeper.memory_bytes), _PARTITION, flink="Status.JVM.Memory.Heap.Used",
    ),
    Metric(
        "strandline_partition_cache_hits_total", "counter", "Look-ups of state that its caches answered",
        _of_partitions(lambda keeper: keeper.metrics.get("cache_hits")), _PARTITION, since="keeper",
        flink="rocksdb.block-cache-hit", kafka="hit-ratio-avg",
    ),
    Metric(
        "strandline_partition_cache_misses_total", "counter", "Look-ups of state that went to the backend",
        _of_partitions(lambda keeper: keeper.metrics.get("cache_misses")), _PARTITION, since="keeper",
        flink="rocksdb.block-cache-miss", kafka="hit-ratio-avg",
    ),
)  # fmt: skip


def as_markdown() -> str:
    """Return the metrics as a table for the documentation."""
    begins = {"": "", "driver": "driver", "attempt": "start or restart", "keeper": "keeper"}
    rows = ["| metric | kind | labels | meaning | Flink | Kafka Streams |", "|---|---|---|---|---|---|"]
    for metric in METRICS:
        kind = f"{metric.kind}, {begins[metric.since]}" if metric.since else metric.kind
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        peers = [
            ", ".join(f"`{name}`" for name in each.split(", ")) if each else "" for each in (metric.flink, metric.kafka)
        ]
        rows.append(f"| `{metric.name}` | {kind} | {labels} | {metric.meaning} | {' | '.join(peers)} |")
    return "\n".join(rows) + "\n"
