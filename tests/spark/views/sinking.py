"""A view in every keyed sink, in a process of its own: python -m tests.spark.views.sinking ROOT LOCAL_DIR PARALLELISM.

Reads the files of facts below ROOT until ROOT/stop appears and all are processed. ROOT/places says where the sinks
write. Failpoints come through the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

import strandline as sl
from tests import jvm
from tests.spark.harness import settle
from tests.spark.views.ends import KINDS, Places
from tests.spark.views.harness import Compared, Table

KEY = ("t", "at", "d", "b", "day", "x")
QUERY = (
    "SELECT t, at, d, b, day, x, count(*) AS n, sum(v) AS s FROM facts GROUP BY t, at, d, b, day, x HAVING count(*) < 4"
)
DDL = "id bigint, t string, at timestamp, d decimal(12, 3), b binary, day date, x boolean, v bigint"


def build(compared: Compared, local_dir: Path, places: Places, parallelism: int, **given: Any) -> sl.Job:
    """Return the job."""
    view = sl.sql(QUERY, facts=compared.stream("facts"))
    assert view.key == KEY
    assert not view.appends
    given.setdefault("restart", sl.Restart(attempts=10, delay="50ms"))
    return compared.job(local_dir, parallelism, sinks=[view.to(places.sink(kind, KEY)) for kind in KINDS], **given)


def main() -> None:
    root, local_dir, parallelism = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    jvm.use()
    spark = sl.session("sinking", "local[2,4]", **{"spark.sql.streaming.pollingDelay": "40ms"})
    places = msgspec.json.decode((root / "places").read_bytes(), type=Places)
    compared = Compared(spark, root, {"facts": Table(DDL, [], "id")}, are_written=False)
    checkpoints = sl.Checkpoints(root / "ck", every="100ms", retain=2)
    run = build(compared, local_dir, places, parallelism, trigger=None, checkpoints=checkpoints).start(spark)
    while not (root / "stop").exists():
        run.await_termination(0.1)
    settle(run)
    run.stop()
    spark.stop()


if __name__ == "__main__":
    main()
