"""The fields of a job's status about its checkpoints, sources, epochs and keepers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from msgspec import structs

from strandline.checkpoint.history import CheckpointStats
from strandline.control.skew import merged_keys
from strandline.control.status import KeeperStatus, OperatorStatus, StandbyStatus, Totals
from strandline.format.manifest import Manifest
from strandline.keeper.protocol import Ack
from strandline.runtime.watermarks import time_text
from strandline.spark.job.attempt import Attempt
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.progress import Work

_OF_WORK = frozenset(("late_rows", "failed_events"))
"""Fields that an ack has of one epoch, and a status of all."""
_OF_ACK = [
    each.name for each in fields(KeeperStatus) if each.name in Ack.__struct_fields__ and each.name not in _OF_WORK
]


INITIAL: Mapping[str, Any] = {"checkpoints": {}, "restored_from": None, "last_checkpoint": None}
"""The fields before the first attempt."""


def status_after(attempt: Attempt) -> dict[str, Any]:
    """Return the fields after the end of an attempt, until the next one begins."""
    return status_of_attempt(attempt, sources=False) | {"keepers": [], "standbys": [], "rows_per_s": 0.0}


def status_of_attempt(attempt: Attempt, *, sources: bool) -> dict[str, Any]:
    """Return the fields of a Status that an attempt knows; with `sources`, also those that need slow queries."""
    coordinator, restored = attempt.coordinator, attempt.restored
    newest = next((c for c in reversed(coordinator.history) if c.status == "completed"), None)
    return {
        "checkpoints": asdict(coordinator.counts),
        "restored_from": restored.checkpoint if restored else None,
        "last_checkpoint": newest or (_of_manifest(restored) if restored and attempt.restored_own else None),
        "depends_on": coordinator.depends_on,
        "uncovered_ms": coordinator.uncovered_ms,
        "source_progress": attempt.look_at_sources() if sources else [],
        "sinks": attempt.look_at_sinks(),
        "standbys": _standbys(attempt.driver) if attempt.has_standbys else [],
        **status_of_epochs(attempt.driver),
    }


def totals_of(attempt: Attempt) -> Totals:
    """Return the counts of one attempt."""
    counts, (took_ms, uploaded_bytes) = attempt.coordinator.counts, attempt.coordinator.effort
    return replace(
        attempt.driver.progress.counted(), checkpoints_completed=counts.completed, checkpoints_failed=counts.failed,
        checkpoints_subsumed=counts.subsumed, checkpoint_ms=took_ms, uploaded_bytes=uploaded_bytes,
    )  # fmt: skip


def status_of_epochs(driver: EpochDriver) -> dict[str, Any]:
    """Return the fields of a Status that epochs change."""
    progress = driver.progress
    common = [operator for operator in driver.operators if not operator.is_explicit]
    keepers = [_of_keeper(ack, progress.work.get(slot, Work())) for slot, ack in sorted(dict(progress.acks).items())]
    return {
        "parallelism": max((operator.parallelism for operator in common or driver.operators), default=0),
        "operators": [
            OperatorStatus(o.uid, o.node.name, o.parallelism, o.max_parallelism, merged_keys(its_keepers))
            for o in driver.operators
            for its_keepers in ([keeper for keeper in keepers if keeper.uid == o.uid],)
        ],
        "epoch": progress.epoch,
        "epochs": progress.epochs,
        "replaced_keepers": progress.replaced,
        "rows_in": progress.rows_in,
        "rows_per_s": round(progress.rate.per_s(), 1),
        "last_epoch_ms": progress.last_epoch_ms,
        "last_epoch_rows": progress.last_rows,
        "late_rows": progress.late_rows,
        "failed_events": progress.failed_events,
        "watermark": time_text(driver.watermarks.reached_us),
        "watermarks": driver.look_at_watermarks(),
        "keepers": keepers,
    }


def _of_keeper(ack: Ack, work: Work) -> KeeperStatus:
    metrics = ack.metrics
    return KeeperStatus(
        **{name: getattr(ack, name) for name in _OF_ACK},
        all_rows_in=work.rows_in, all_rows_out=work.rows_out, all_ms=round(work.took_ms, 3),
        all_busy_ms=round(work.busy_ms, 3), late_rows=work.late_rows, failed_events=work.failed_events,
        state_bytes=_state_bytes(metrics), memory_bytes=metrics.get("process_bytes"),
    )  # fmt: skip


def _standbys(driver: EpochDriver) -> list[StandbyStatus]:
    """Return the standby of each partition, also where there is none."""
    acks = dict(driver.progress.acks)
    present = {(each.uid, each.partition): each for ack in acks.values() for each in ack.standbys}
    return [
        StandbyStatus(**structs.asdict(present[slot])) if slot in present else StandbyStatus(*slot)
        for slot in sorted(acks)
    ]


def _state_bytes(metrics: Mapping[str, int]) -> int | None:
    """Return the size of the backend's state: with RocksDB, that of its files and memtables."""
    if "live_sst_bytes" in metrics:
        return metrics["live_sst_bytes"] + metrics["live_blob_bytes"] + metrics["memtable_bytes"]
    return metrics.get("encoded_bytes")


def _of_manifest(manifest: Manifest) -> CheckpointStats:
    """Return the figures of a checkpoint that an earlier run or attempt took."""
    return CheckpointStats(
        manifest.checkpoint, manifest.mode, manifest.epoch, "completed", manifest.triggered_ms,
        sum(len(operator.partitions) for operator in manifest.operators), manifest.created_ms, manifest.duration_ms,
        uploaded_bytes=manifest.uploaded_bytes, total_bytes=manifest.total_bytes,
    )  # fmt: skip
