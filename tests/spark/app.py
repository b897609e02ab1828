"""A driver as a process of its own, for tests that kill it: python -m tests.spark.app DIRECTORY [key=value …]

Runs the pipeline over DIRECTORY/in until DIRECTORY/stop appears and everything is processed, then takes a last
checkpoint and stops. Failpoints come through the environment.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import strandline as sl
from tests.spark import pipeline


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    directory = Path(sys.argv[1])
    given: dict[str, Any] = dict(item.split("=", 1) for item in sys.argv[2:])
    spark = sl.session("app", "local[2,4]", **{"spark.driver.memory": "1g"})
    job = pipeline.build(
        spark,
        directory / "in",
        directory / "out",
        checkpoints=sl.Checkpoints(directory / "ck", every=given.get("every", "300ms"), retain=2),
        restart=sl.Restart(attempts=int(given.get("attempts", 3)), delay="100ms"),
        settings=sl.Settings(
            parallelism=2, local_dir=directory / "l", state_memory="256MB", backend=given.get("backend", "rocksdb")
        ),
    )
    run = job.start(spark)
    while not (directory / "stop").exists():
        run.await_termination(0.05)
        (directory / "status.tmp").write_text(
            json.dumps({"epoch": run.status().epoch, "pids": [k.pid for k in run.status().keepers]})
        )
        (directory / "status.tmp").rename(directory / "status.json")
    run.process_all_available(60)
    while True:
        try:
            run.checkpoint(30)
            break
        except sl.errors.CheckpointError:
            time.sleep(0.2)
            run.await_termination(0.01)
            run.process_all_available(60)
    run.stop()
    print("done", run.status().restarts)


if __name__ == "__main__":
    main()
