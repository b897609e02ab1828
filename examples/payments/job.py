"""The streaming job: payments from a directory of files, fraud alerts into another one, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import strandline as sl
from examples.payments.detector import FraudDetector
from examples.payments.model import ALERT_SCHEMA, PAYMENT_SCHEMA, USUAL, Rules

RETAINED = 20
"""How many checkpoints the job keeps, to which it can go back."""


def build(
    spark: Any,
    home: Path,
    *,
    name: str = "demo",
    alerts: str = "alerts",
    rules: Rules = USUAL,
    parallelism: int = 2,
) -> sl.Job:
    """Return the job that reads `payments` below a directory, and writes to the folder `alerts`."""
    events = spark.readStream.schema(PAYMENT_SCHEMA).option("maxFilesPerTrigger", 5).json(str(home / "payments"))
    found = (
        sl.stream(events)
        .key_by("card", order_by="payment_id")
        .process(FraudDetector(rules), output=ALERT_SCHEMA, uid="fraud")
    )
    return sl.Job(
        name,
        sinks=[found.to(sl.sinks.files(str(home / alerts), format="parquet"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="3s", mode="incremental", retain=RETAINED),
        restart=sl.Restart(delay="200ms"),
        trigger="400ms",
        settings=sl.Settings(parallelism=parallelism, state_memory="512MB", local_dir=home / "local"),
    )
