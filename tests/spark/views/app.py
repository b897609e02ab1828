"""Views in a process of their own: python -m tests.spark.views.app ROOT LOCAL_DIR PARALLELISM [backwards | timed | drain]

Reads all files of the tables below ROOT, writes each epoch's changes to ROOT/given and the operators' uids to ROOT/uids,
and stops with a checkpoint. `timed`: the views are those that event time bounds; `drain`: and that comes to its end.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import strandline as sl
from tests import jvm
from tests.spark.views.harness import Compared, Table, normal
from tests.spark.views.random_lives import MATCHES, PATTERNS, WINDOWS
from tests.spark.views.random_queries import random_tables
from tests.spark.views.test_bounded import AS_OF, KEPT, timed_tables
from tests.spark.views.test_views import AGGREGATES, JOINS, OTHERS, QUICK

TABLES = "views"
QUERIES = [*QUICK, *JOINS[4:6], *JOINS[13:17], *AGGREGATES[:5], *AGGREGATES[10:13], *OTHERS[1:6]]
TIMED = [*[*AS_OF][:3], *MATCHES, *PATTERNS, *WINDOWS, *KEPT]
ALL = [*QUERIES, *TIMED]


def timed() -> dict[str, Table]:
    """Return the tables of the views that event time bounds."""
    return timed_tables(TABLES, unique=True, in_order=True)


def run(
    spark: Any, root: Path, local_dir: Path, parallelism: int, queries: Sequence[str], tables: Any = None, **given: Any
) -> None:
    """Read what there is, and stop."""
    compared = Compared(spark, root, tables or random_tables(TABLES), are_written=False)
    views = {query: compared.add(query) for query in queries}
    uids = {query: [part.uid for part in view._relation.parts] for query, view in views.items()}
    (root / "uids").write_text(json.dumps(uids))
    sinks = [_written(root / "given" / str(ALL.index(query)), view) for query, view in views.items()]
    compared.job(local_dir, parallelism, sinks=sinks, **given).start(spark).await_termination()


def _written(directory: Path, view: sl.View) -> Any:
    directory.mkdir(parents=True, exist_ok=True)
    left = [*directory.iterdir()]

    def write(df: Any, epoch: int) -> None:
        # What a driver that was killed wrote of epochs that now come again, perhaps fewer of them.
        for path in left:
            if int(path.name) >= epoch:
                path.unlink()
        left.clear()
        # An epoch that is repeated replaces what it wrote.
        changes = [[repr(normal(tuple(row))), weight] for *row, weight in df.collect()]
        (directory / str(epoch)).write_text(json.dumps(changes))

    return view.changes("__weight").to(sl.sinks.foreach_batch(write, name=f"query{directory.name}"))


def found(root: Path, query: str) -> Counter[str]:
    """Return the texts of a view's rows, as all changes so far have them."""
    rows: Counter[str] = Counter()
    for path in (root / "given" / str(ALL.index(query))).iterdir():
        for row, weight in json.loads(path.read_text()):
            rows[row] += weight
    return Counter({row: n for row, n in rows.items() if n})


def main() -> None:
    root, local_dir, parallelism, *how = sys.argv[1:]
    jvm.use()
    spark = sl.session("views", "local[2]", **{"spark.sql.streaming.pollingDelay": "40ms"})
    # Neither the order of queries nor what Spark has counted before changes what an operator is called.
    spark.range(5).selectExpr("id", "id + 1 AS more").groupBy("more").count().collect()
    places = Path(root), Path(local_dir), int(parallelism)
    if {*how} & {"timed", "drain"}:
        checkpoints = sl.Checkpoints(Path(root) / "checkpoints", every="300ms", retain=2)
        run(spark, *places, TIMED, timed(), drain=how == ["drain"], checkpoints=checkpoints)
    else:
        run(spark, *places, QUERIES[::-1] if how else QUERIES)
    spark.stop()


if __name__ == "__main__":
    main()
