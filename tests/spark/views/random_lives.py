"""Random queries as views of jobs with eventful lives: python -m tests.spark.views.random_lives --seed N --queries M

Twenty queries are a job. Its files come epoch by epoch; keepers are killed at random moments, the job is stopped, started
again at another parallelism, and moved through savepoints. After each epoch, each view is compared with Spark, and at the
end with DuckDB, where that can say the query.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

import strandline as sl
from tests import jvm
from tests.spark.harness import settle
from tests.spark.views.harness import Bag, Compared, Row, normal
from tests.spark.views.random_queries import Found, answered, batches, compared_in, plan, random_tables

_PATIENCE_S = 600.0
_FOR_DUCKDB = (
    (r"\b(\d+)L\b", r"\1"), (r"\b([\d.]+)(BD|D)\b", r"\1"), (r"double\('NaN'\)", "'NaN'::DOUBLE"),
    (r"\barray\(([^()]*)\)", r"[\1]"),
)  # fmt: skip


@dataclass
class Said:
    """What DuckDB says of the queries that it can answer."""

    same: int = 0
    unlike_spark: list[str] = field(default_factory=list)
    unsaid: int = 0

    def __str__(self) -> str:
        return (
            f"DuckDB: {self.same} same, {len(self.unlike_spark)} other than Spark, {self.unsaid} that it cannot answer"
        )


class Life:
    """A job of some views, and all that happens to it."""

    def __init__(self, compared: Compared, local_dir: Path, rng: random.Random) -> None:
        self.compared, self.local_dir, self.rng = compared, local_dir, rng
        self.places = 1
        self.parallelism = rng.choice([1, 2])
        self.happened: list[str] = []

    def run(self) -> dict[str, str]:
        """Run all epochs; return the first fault of each query."""
        faults: dict[str, str] = {}
        run = self._start()
        try:
            for epoch in range(self.compared.epochs):
                for name, table in self.compared.tables.items():
                    self.compared.write(name, [table.epochs[epoch]], epoch)
                killing = self._killing(run) if self.rng.random() < 0.6 else None
                reached = int(_settled(run).epoch)
                if killing is not None:
                    killing.join()
                    reached = int(_settled(run).epoch)
                for query in self.compared.views:
                    found, wanted = self.compared.rows(query, reached), self.compared.expected(query, epoch + 1)
                    if found != wanted:
                        text = f"after {epoch + 1} files ({', '.join(self.happened) or 'nothing happened'}): misses "
                        faults.setdefault(query, f"{text}{dict(wanted - found)}, has too many {dict(found - wanted)}")
                if epoch + 1 < self.compared.epochs:
                    run = self._go_on(run)
        finally:
            run.stop()
        return faults

    def _start(self, restore: Path | None = None) -> Any:
        checkpoints = sl.Checkpoints(self.compared.root / f"checkpoints{self.places}", every="1s", retain=2)
        restart = sl.Restart(attempts=20, delay="50ms")
        job = self.compared.job(
            self.local_dir, self.parallelism, trigger=None, restart=restart, checkpoints=checkpoints
        )
        return job.start(self.compared.spark, restore=restore)

    def _killing(self, run: Any) -> threading.Thread:
        """Kill some keepers in a moment."""
        moments = [self.rng.uniform(0, 3) for _ in range(self.rng.choice([1, 1, 2]))]
        chosen = self.rng.random()

        def kill() -> None:
            for moment in moments:
                time.sleep(moment)
                keepers = run.status().keepers
                if keepers:
                    keeper = keepers[int(chosen * len(keepers))]
                    try:
                        os.kill(keeper.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                    self.happened.append(f"keeper of partition {keeper.partition} killed")

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    def _go_on(self, run: Any) -> Any:
        """Do something between two epochs."""
        way = self.rng.choice(["run", "stop", "stop with a checkpoint", "savepoint"])
        if way == "run":
            return run
        before = self.parallelism
        self.parallelism = self.rng.choice([1, 2, 3])
        self.happened.append(f"{way}, parallelism {before} to {self.parallelism}")
        if way != "savepoint":
            run.stop(checkpoint=way != "stop")
            return self._start()
        target = self.compared.root / f"savepoint{self.places}"
        run.stop(savepoint=target, format=self.rng.choice(["canonical", "native"]))
        self.places += 1
        return self._start(target)


def _settled(run: Any) -> Any:
    """Process everything there is, on a machine that may be busy with something else."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return settle(run)
        except sl.errors.UnavailableError:
            if time.monotonic() > deadline:
                raise


def live(spark: Any, seed: str, queries: Sequence[str], found: Found, said: Said, *, change: bool) -> None:
    """Run queries as views of one job over the tables of a seed."""
    tables = random_tables(seed, change=change)
    with compared_in(spark, tables, are_written=False) as (compared, local_dir):
        for query in [query for query in queries if answered(compared, query, found)]:
            plan(compared, query, found)
        if not compared.views:
            return
        life = Life(compared, local_dir, random.Random(f"life {seed}"))
        try:
            faults = life.run()
        except Exception as error:
            failed = list(compared.views)
            if len(failed) == 1:
                found.faults.append(f"fails ({', '.join(life.happened)}): {error!r:.1000}: {failed[0]}")
                return
            half = len(failed) // 2
            print(
                f"tables {seed}: in halves, as the job failed ({', '.join(life.happened)}): {error!r:.300}", flush=True
            )
        else:
            found.right += len(compared.views) - len(faults)
            found.faults += [f"{fault}: {query}" for query, fault in faults.items()]
            ask_duckdb(compared, said)
            return
    for part in (failed[:half], failed[half:]):
        live(spark, seed, part, found, said, change=change)


def ask_duckdb(compared: Compared, said: Said) -> None:
    """Compare Spark's answers over all rows with those of DuckDB."""
    database = duckdb.connect()
    for name, table in compared.tables.items():
        rows: list[Row] = table.until(compared.epochs)
        database.register(name, compared.spark.createDataFrame(rows, table.ddl).toArrow())
    database.execute("SET TimeZone = 'UTC'")
    for query in compared.views:
        text = query
        for pattern, other in _FOR_DUCKDB:
            text = re.sub(pattern, other, text)
        try:
            answer: Bag = Counter(normal(tuple(map(_naive, row))) for row in database.execute(text).fetchall())
        except duckdb.Error:
            said.unsaid += 1
            continue
        if answer == compared.expected(query, compared.epochs):
            said.same += 1
        else:
            said.unlike_spark.append(query)


def _naive(value: Any) -> Any:
    """Return a time without its zone, which is UTC, as the tests' session gives it."""
    return value.astimezone(dt.UTC).replace(tzinfo=None) if isinstance(value, dt.datetime) and value.tzinfo else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queries", type=int, default=300)
    given = parser.parse_args()
    jvm.use()
    spark = sl.session("lives", "local[2]", **{"spark.sql.streaming.pollingDelay": "40ms"})
    spark.sparkContext.setLogLevel("OFF")
    found, said = Found(), Said()
    try:
        for number, (seed, queries) in enumerate(batches(given.seed, given.queries)):
            before = len(found.faults)
            live(spark, seed, queries, found, said, change=number % 2 == 1)
            print(f"tables {seed}: {found.right} right, faults:", *found.faults[before:], sep="\n  ", flush=True)
        print(found, said, *said.unlike_spark, sep="\n  ")
    finally:
        spark.stop()
    raise SystemExit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
