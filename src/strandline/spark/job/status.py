"""What a job's status says of its epochs and keepers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from strandline.control.status import KeeperStatus, OperatorStatus
from strandline.keeper.protocol import Ack
from strandline.runtime.watermarks import time_text
from strandline.spark.job.epochs import EpochDriver


def status_of_epochs(driver: EpochDriver) -> dict[str, Any]:
    """Return the fields of a Status that epochs change."""
    progress = driver.progress
    common = [operator for operator in driver.operators if not operator.has_own]
    return {
        "parallelism": max((operator.parallelism for operator in common or driver.operators), default=0),
        "operators": [OperatorStatus(o.uid, o.node.name, o.parallelism, o.max_parallelism) for o in driver.operators],
        "epoch": progress.epoch,
        "rows_in": progress.rows_in,
        "last_epoch_ms": progress.last_epoch_ms,
        "last_epoch_rows": progress.last_rows,
        "late_rows": progress.late_rows,
        "failed_events": progress.failed_events,
        "watermark": time_text(driver.watermarks.reached_us),
        "watermarks": driver.look_at_watermarks(),
        "keepers": [_of_keeper(ack) for _, ack in sorted(progress.acks.items())],
    }


def _of_keeper(ack: Ack) -> KeeperStatus:
    return KeeperStatus(**{field.name: getattr(ack, field.name) for field in fields(KeeperStatus)})
