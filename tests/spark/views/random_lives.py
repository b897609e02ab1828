"""Random queries as views of jobs with eventful lives: python -m tests.spark.views.random_lives --seed N --queries M

Twenty queries are a job. Its files come epoch by epoch; keepers are killed at random moments, the job is stopped, started
again at another parallelism, and moved through savepoints. After each epoch, each view is compared with Spark, and at the
end with DuckDB, where that can say the query. With --timed, some jobs are besides of views that event time bounds: some of
their rows are late, what they have given is in the answer after each epoch, and all of it is at the end of event time.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb

import strandline as sl
from tests import jvm
from tests.spark.harness import settle
from tests.spark.views.harness import Bag, Compared, Row, normal
from tests.spark.views.random_queries import Found, answered, batches, compared_in, plan, random_tables
from tests.spark.views.test_bounded import AS_OF, JOINS, KEPT, OTHERS, timed_tables
from tests.spark.views.test_match import PAIRS, RUNS, answer, pairs, runs

_PATIENCE_S = 600.0
_LAST = 1 << 60
"""An epoch after all others."""
_LATE, _FIRST = dt.datetime(2025, 12, 1), dt.datetime(2026, 1, 1, 0, 5)
WINDOWS = [
    "SELECT window(at, '20 minutes') AS w, k, count(*) AS n, sum(amount) AS s FROM orders GROUP BY 1, 2",
    "SELECT window(at, '20 minutes', '5 minutes') AS w, max(amount) AS m FROM orders GROUP BY 1",
    "SELECT k, session_window(at, '7 minutes') AS w, count(*) AS n FROM orders GROUP BY 1, 2",
]
_JOINED = "(SELECT o.id, o.at, p.id AS p FROM orders o LEFT JOIN pays p ON p.k = o.k AND p.at BETWEEN o.at AND o.at + INTERVAL 15 MINUTES)"
MATCHES = {
    "SELECT a, b FROM orders MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES A.id AS a, B.id AS b "
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (A B) DEFINE B AS B.amount > A.amount)":
    "SELECT a, b FROM (SELECT lag(id) OVER w AS a, id AS b, lag(amount) OVER w AS least, amount FROM orders "
    "WINDOW w AS (PARTITION BY k ORDER BY at)) WHERE amount > least",
    f"SELECT a, b, p FROM {_JOINED} MATCH_RECOGNIZE (ORDER BY at, p MEASURES A.id AS a, B.id AS b, B.p AS p "
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (A B))":
    f"SELECT * FROM (SELECT lag(id) OVER (ORDER BY at, p) AS a, id AS b, p FROM {_JOINED}) WHERE a IS NOT NULL",
}  # fmt: skip
"""By a view's query, what spark.sql answers."""
PATTERNS = {RUNS: runs, PAIRS: pairs}
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
                    self.compared.write(name, [table.arriving(epoch)], epoch)
                killing = self._killing(run) if self.rng.random() < 0.6 else None
                reached = int(_settled(run).epoch)
                if killing is not None:
                    killing.join()
                    reached = int(_settled(run).epoch)
                for query in self.compared.views:
                    if fault := self._fault(query, epoch + 1, reached):
                        faults.setdefault(query, fault)
                if epoch + 1 < self.compared.epochs:
                    run = self._go_on(run)
        finally:
            run.stop()
        return faults

    def _fault(self, query: str, files: int, reached: int) -> str:
        """Return what is wrong with a view after an epoch that has read so many files."""
        return self._difference(
            f"{files} files", self.compared.rows(query, reached), self.compared.expected(query, files)
        )

    def _difference(self, when: str, found: Bag, wanted: Bag) -> str:
        if found == wanted:
            return ""
        happened = ", ".join(self.happened) or "nothing happened"
        return f"after {when} ({happened}): misses {dict(wanted - found)}, has too many {dict(found - wanted)}"

    def _start(self, restore: Path | None = None, **given: Any) -> Any:
        checkpoints = sl.Checkpoints(self.compared.root / f"checkpoints{self.places}", every="1s", retain=2)
        restart = sl.Restart(attempts=20, delay="50ms")
        job = self.compared.job(
            self.local_dir, self.parallelism, restart=restart, checkpoints=checkpoints, **{"trigger": None, **given}
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


class TimedLife(Life):
    """A job of views that event time bounds."""

    def __init__(self, compared: Compared, local_dir: Path, rng: random.Random, answers: Mapping[str, Bag]) -> None:
        """`answers`: by query, what it answers over all rows, in which none is late."""
        super().__init__(compared, local_dir, rng)
        self._answers = answers

    def run(self) -> dict[str, str]:
        faults = super().run()
        run = self._start(trigger="available-now", drain=True)
        killing = self._killing(run)
        run.await_termination(_PATIENCE_S)
        killing.join()
        for query, wanted in self._answers.items():
            found = self.compared.sum(query, _LAST)
            if fault := self._difference("the end of event time", found, wanted) or self.compared.broken_promise(query):
                faults.setdefault(query, fault)
        return faults

    def _fault(self, query: str, files: int, reached: int) -> str:
        found, wanted = self.compared.sum(query, reached), self._answers[query]
        return self._difference(f"{files} files", found, found & wanted)


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


def live_in_time(spark: Any, seed: str, found: Found) -> None:
    """Run queries that event time bounds as views of one job."""
    rng = random.Random(f"timed {seed}")
    in_order = rng.random() < 0.5
    tables = timed_tables(seed, unique=True, in_order=in_order)
    late = [(-number, "a", number, _LATE + dt.timedelta(minutes=number)) for number in range(2)]
    for number, (name, table) in enumerate(tables.items()):
        # No filter drops this row before it moves the watermark.
        first = (1000 + number, "a", 5, _FIRST + dt.timedelta(microseconds=number))
        tables[name] = replace(table, epochs=[[*table.epochs[0], first], *table.epochs[1:]], late=late)
    asked = {query: query for query in (*JOINS, *OTHERS, *WINDOWS, *KEPT)} | AS_OF | MATCHES
    chosen = {query: asked[query] for query in rng.sample([*asked], 12)}
    with compared_in(spark, tables, are_written=False) as (compared, local_dir):
        answers = {query: compared.expected(text, compared.epochs) for query, text in chosen.items()}
        for query, match in PATTERNS.items():
            answers[query] = answer(match, tables["orders"].until(compared.epochs), by_key=True)
        for query in answers:
            compared.add(query)
        life = TimedLife(compared, local_dir, rng, answers)
        try:
            faults = life.run()
        except Exception as error:
            found.faults.append(f"tables {seed} fail ({', '.join(life.happened)}): {error!r:.1000}")
            return
        found.right += len(answers) - len(faults)
        found.faults += [f"{fault}: {query}" for query, fault in faults.items()]


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
    parser.add_argument("--timed", type=int, default=0, help="the number of jobs of views that event time bounds")
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
        for timed in range(given.seed, given.seed + given.timed):
            before = len(found.faults)
            live_in_time(spark, str(timed), found)
            print(f"timed {timed}: {found.right} right, faults:", *found.faults[before:], sep="\n  ", flush=True)
        print(found, said, *said.unlike_spark, sep="\n  ")
    finally:
        spark.stop()
    raise SystemExit(1 if found.faults else 0)


if __name__ == "__main__":
    main()
