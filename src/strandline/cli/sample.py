"""The job whose classes are archived: python -m strandline.cli.sample DIRECTORY

It uses what most jobs use: a source of files, a user's function, windows, sinks into files, a checkpoint. It ends when
its standard input ends, which is when its parent process does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strandline as sl

_WRITES_S = 600


class Count(sl.KeyedProcess):
    """Counts each user's events, and clears the count by a timer."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[Any]:
        """Emit the count so far."""
        self.seen.value += 1
        ctx.timers.set(event.ts)
        yield {"user": ctx.key, "n": self.seen.value}

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> None:
        """Clear the count."""
        self.seen.clear()


def main() -> None:
    """Run the job, and wait until the JVM has written the archive."""
    root = Path(sys.argv[1])
    threading.Thread(target=_end_with_input, daemon=True).start()
    spark = sl.session("strandline-warm-up", "local[2]", spark_driver_memory="1g")
    (root / "in").mkdir()
    for file in range(3):
        rows = [{"ts": f"2026-01-01T00:{file}{row}:00Z", "user": f"u{row % 3}", "v": row} for row in range(10)]
        (root / "in" / f"{file}.json").write_text("\n".join(map(json.dumps, rows)))
    df = spark.readStream.schema("ts timestamp, user string, v bigint").option("maxFilesPerTrigger", 1)
    events = sl.stream(df.json(str(root / "in"))).watermark("ts", delay="1 min")
    counts = events.key_by("user").process(Count(), output="user string, n bigint", uid="counts")
    windows = events.key_by("user").window(sl.Tumbling("10 min")).agg(uid="windows", total=sl.agg.sum("v"))
    job = sl.Job(
        "strandline-warm-up",
        sinks=[
            counts.where("n > 0").to(sl.sinks.files(str(root / "counts"), format="json")),
            windows.to(sl.sinks.files(str(root / "windows"))),
        ],
        checkpoints=sl.Checkpoints(root / "checkpoints"),
        settings=sl.Settings(parallelism=2, state_memory="128MB", local_dir=root / "l"),
        trigger="available-now",
    )
    assert job.start(spark).await_termination(_WRITES_S)
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    sys.exit(gateway.proc.wait(_WRITES_S))


def _end_with_input() -> None:
    # Not through sys.stdin: a thread that waits there prevents Python from ending.
    while os.read(0, 1):
        pass
    # Kill at once: otherwise Java would still write an archive that is no longer needed.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
