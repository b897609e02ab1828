"""Runs suites that others wrote as views: python -m tests.spark.suites.run [flink|risingwave|arroyo …] [--only TEXT]

Each case is compared with what its suite expects, and with what Spark answers to the same queries over the same rows.
build/suites/results has what came out; `python -m tests.spark.suites.report` makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import strandline as sl
from strandline.core.errors import StrandlineError
from strandline.spark.views.dialect import rewritten
from tests import jvm
from tests.spark.suites import arroyo, flink, risingwave
from tests.spark.suites.cases import GONE, HIDDEN, Bag, Case, Check, Input, Row
from tests.spark.suites.fetching import HOME
from tests.spark.views.harness import normal as comparable

RESULTS = HOME / "results"
"""A file for each suite."""
SPARK_ALONE = "the suite says no rows: Spark alone was asked"
_BATCH = 14


@dataclass
class Outcome:
    """What came of a case."""

    suite: str
    name: str
    result: str
    """`passes`, `differs` (from the suite, not from Spark), `wrong` (not what Spark answers), `refused`, `fails`, `unread`."""
    detail: str = ""
    queries: list[str] = field(default_factory=list)


def with_own_names(case: Case, number: int) -> Case:
    """Return a case whose tables and views have names that no other case of a job has: uids are made of them."""
    names = [*(each.name for each in case.inputs), *(name for name, _ in case.views)]
    pattern = re.compile(rf"(?<![\w.'])({'|'.join(map(re.escape, names))})(?![\w'])", re.I)
    hinted = re.compile(rf"'({'|'.join(map(re.escape, names))})'", re.I)

    def renamed(text: str) -> str:
        text = re.sub(r"/\*\+.*?\*/", lambda hint: hinted.sub(rf"'\1_c{number}'", hint[0]), text, flags=re.S)
        return pattern.sub(lambda found: f"{found[1]}_c{number}", text)

    return replace(
        case,
        inputs=[replace(each, name=renamed(each.name)) for each in case.inputs],
        views=[(renamed(name), renamed(query)) for name, query in case.views],
        checks=[replace(each, query=renamed(each.query)) for each in case.checks],
    )


class Clock:
    """A stream with a row in each epoch of the cases: an epoch of the job may be one in which only time passes."""

    def __init__(self, spark: Any, root: Path) -> None:
        self._spark, self._path, self._read = spark, root / "clock", dict[int, int]()
        self._path.mkdir()

    def write(self, first: int, last: int) -> None:
        """Write the files of some epochs."""
        for epoch in range(first, last):
            _put(self._spark.createDataFrame([(epoch + 1,)], "epoch int"), self._path, epoch)

    def sink(self) -> Any:
        source: Any = sl.files_source(
            self._path, schema="epoch int", format="parquet", name="clock", max_files_per_epoch=1, spark=self._spark
        )
        return source.to(sl.sinks.foreach_batch(self._note, name="clock"))

    def _note(self, df: Any, epoch: int) -> None:
        for row in df.collect():
            self._read[epoch] = row.epoch

    def at(self, epoch: int) -> int:
        """Return the epoch of the cases up to which the job's epoch has read."""
        return max((read for number, read in self._read.items() if number <= epoch), default=0)


def _put(df: Any, directory: Path, epoch: int) -> None:
    path = directory / f"{epoch:04}.parquet"
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(df.toArrow(), hidden)
    os.utime(hidden, (1_700_000_000 + epoch * 10,) * 2)
    hidden.rename(path)


class Running:
    """A case as views, in a job with others."""

    def __init__(self, spark: Any, number: int, case: Case, root: Path, clock: Clock) -> None:
        self.spark, self.given, self.root, self.clock = spark, case, root / str(number), clock
        self.case = case = with_own_names(case, number)
        self.number = number
        self.changes: dict[str, dict[int, list[Row]]] = defaultdict(dict)
        self.views: dict[str, sl.View] = {}
        tables = {each.name: self._table(each) for each in case.inputs}
        for name, query in case.views:
            used = {each: of for each, of in {**tables, **self.views}.items() if re.search(rf"\b{each}\b", query, re.I)}
            self.views[name] = sl.sql(query, emit="changes", **used)

    def write(self, first: int, last: int) -> None:
        """Write the files of some epochs."""
        for each in self.case.inputs:
            for epoch in range(first, last):
                rows = each.epochs[epoch] if epoch < len(each.epochs) else []
                _put(self.spark.createDataFrame(list(rows), each.ddl), self.root / each.name, epoch)

    def _table(self, given: Input) -> Any:
        (self.root / given.name).mkdir(parents=True)
        schema = self.spark.createDataFrame([], given.ddl).schema
        stream: Any = sl.files_source(
            self.root / given.name, schema=schema, format="parquet", name=given.name,
            max_files_per_epoch=1, spark=self.spark,
        )  # fmt: skip
        for name, expression in given.computed:
            stream = stream.with_column(name, F.expr(expression))
        if given.watermark and not given.key:
            stream = stream.watermark(*given.watermark)
        if not given.key:
            return stream
        table = sl.table(stream, key=given.key, deleted=GONE)
        if given.key != [HIDDEN]:
            return table
        return sl.sql(
            f"SELECT {', '.join(f'`{each}`' for each in given.visible)} FROM {given.name}", **{given.name: table}
        )

    @property
    def is_final(self) -> bool:
        """Whether a view gives nothing before its watermark says so: at the end, that is the end of event time."""
        return any("MATCH_RECOGNIZE" in query.upper() for _, query in self.case.views)

    def sinks(self) -> Iterator[Any]:
        for name, view in self.views.items():
            yield view.changes("change_weight").to(sl.sinks.foreach_batch(self._writing(name), name=name))

    def _writing(self, name: str) -> Any:
        def write(df: Any, epoch: int) -> None:
            self.changes[name][epoch] = [tuple(row) for row in df.collect()]

        return write

    def outcome(self) -> Outcome:
        """Compare what the views gave."""
        queries = [query for _, query in self.given.views]
        outcome = Outcome(self.case.suite, self.case.name, "passes", queries=queries)
        if all(check.expected is None for check in self.case.checks):
            outcome.detail = SPARK_ALONE
        elif not any(check.expected for check in self.case.checks):
            outcome.detail = "no rows are expected"
        for epoch in sorted({check.epoch for check in self.case.checks}):
            wrong = self._unlike_spark(epoch)
            if wrong:
                return Outcome(self.case.suite, self.case.name, "wrong", wrong, queries)
        for check in self.case.checks:
            differs = self._unlike_suite(check)
            if differs:
                outcome.result, outcome.detail = "differs", outcome.detail or differs
        return outcome

    def _rows(self, name: str, epoch: int) -> list[Row]:
        counts: Counter[Any] = Counter()
        rows = {}
        for number, changes in self.changes[name].items():
            for *row, weight in changes if self.clock.at(number) <= epoch else ():
                rows[repr(row)] = tuple(row)
                counts[repr(row)] += weight
        assert min(counts.values(), default=0) >= 0, f"{name} took back a row that it did not give"
        return [rows[text] for text in counts.elements()]

    def _unlike_spark(self, epoch: int) -> str:
        """Return how views differ from what Spark answers."""
        self._make_tables(epoch)
        for name, query in self.case.views:
            try:
                answer = self.spark.sql(rewritten(query).text)
                answer.createOrReplaceTempView(name)
                wanted = Counter(repr(comparable(tuple(row))) for row in answer.collect())
            except (PySparkException, StrandlineError):
                # Not Spark's SQL: sl.sql has understood it, and only the suite says what is right.
                return ""
            found = Counter(repr(comparable(row)) for row in self._rows(name, epoch))
            if found != wanted:
                return f"{name} after epoch {epoch}: misses {_few(wanted - found)}, has too many {_few(found - wanted)}"
        return ""

    def spark_error(self) -> str:
        """Return the error with which Spark answers to the queries over all rows."""
        self._make_tables(self.case.epochs)
        try:
            for name, query in self.case.views:
                answer = self.spark.sql(rewritten(query).text)
                answer.createOrReplaceTempView(name)
                answer.collect()
        except PySparkException as error:
            return str(error).splitlines()[0]
        return ""

    def _make_tables(self, epoch: int) -> None:
        for each in self.case.inputs:
            ddl = ", ".join(f"`{name}` {kind}" for name, kind in each.columns)
            df = self.spark.createDataFrame(each.until(epoch), ddl)
            for name, expression in each.computed:
                df = df.withColumn(name, F.expr(expression))
            df.select(*(f"`{name}`" for name in each.visible)).createOrReplaceTempView(each.name)

    def _unlike_suite(self, check: Check) -> str:
        if check.expected is None:
            return ""
        for name, view in self.views.items():
            self.spark.createDataFrame(self._rows(name, check.epoch), view.schema).createOrReplaceTempView(name)
        answer = self.spark.sql(check.query).collect()
        found: Bag = Counter(self.case.write(_plain(row)) for row in answer)
        wanted: Bag = Counter(map(self.case.read, check.expected))
        if found == wanted:
            return ""
        return f"after epoch {check.epoch}: misses {_few(wanted - found)}, has too many {_few(found - wanted)}"


def _plain(row: Any) -> Any:
    """Return rows as tuples."""
    if isinstance(row, tuple):
        return tuple(map(_plain, row))
    return [_plain(each) for each in row] if isinstance(row, list) else row


def _few(bag: Counter[str]) -> str:
    return str([f"{row} ×{n}" if n > 1 else row for row, n in list(bag.items())[:4]])


def run(spark: Any, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Run cases in one job; those of a job that fails run in two."""
    root = Path(tempfile.mkdtemp(prefix="suites"))
    try:
        running, clock = [], Clock(spark, root)
        for number, case in enumerate(cases):
            try:
                running.append(Running(spark, number, case, root, clock))
            except Exception as error:
                kind = "refused" if isinstance(error, StrandlineError | PySparkException) else "fails"
                text = f"{type(error).__name__}: {error}" if kind == "fails" else str(error)
                yield Outcome(case.suite, case.name, kind, text[:1500], [query for _, query in case.views])
        if not running:
            return
        failed = _job(spark, running, root, clock)
        if failed is None:
            for each in running:
                try:
                    yield each.outcome()
                except Exception as error:
                    yield Outcome(
                        each.case.suite, each.case.name, "fails", f"comparing: {type(error).__name__}: {error}"[:1500]
                    )
            return
        if len(running) > 1:
            for half in (running[: len(running) // 2], running[len(running) // 2 :]):
                yield from run(spark, [each.given for each in half])
            return
        case = running[0].case
        queries = [query for _, query in case.views]
        if answer := running[0].spark_error():
            yield Outcome(case.suite, case.name, "differs", f"Spark's answer is an error, too: {answer}", queries)
        else:
            yield Outcome(case.suite, case.name, "fails", failed, queries)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _job(spark: Any, running: Sequence[Running], root: Path, clock: Clock) -> str | None:
    """Run the views of some cases; return the error of the job."""
    sinks = [clock.sink(), *(sink for each in running for sink in each.sinks())]
    last = max(each.case.epochs for each in running)
    stops = sorted({each.case.restart_after for each in running if each.case.restart_after} | {last})
    done = 0
    try:
        for stop in stops:
            for each in running:
                each.write(done, stop)
            clock.write(done, stop)
            done = stop
            job = sl.Job(
                "suite", sinks=sinks, checkpoints=sl.Checkpoints(root / "checkpoints", retain=2), restart=sl.Restart.never(),
                trigger="available-now", drain=stop == last and any(each.is_final for each in running),
                settings=sl.Settings(parallelism=1 + stop % 2, local_dir=root / "local", state_memory="256MB"),
            )  # fmt: skip
            job.start(spark).await_termination()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1500]
    return None


def batches(cases: Iterable[Case]) -> Iterator[list[Case]]:
    """Cases that are cut into about as many epochs go into one job."""
    by: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        some = by[case.epochs // 5]
        some.append(case)
        if len(some) == _BATCH:
            yield some
            some.clear()
    yield from (some for some in by.values() if some)


def read_results(suite: str) -> dict[str, Any]:
    """Return what came of a suite's cases."""
    path = RESULTS / f"{suite.lower()}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", default=["flink"])
    parser.add_argument("--only", default="", help="cases whose names have this text")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    given = parser.parse_args()
    jvm.use()
    spark = sl.session(
        "suites", "local[2]", **{"spark.sql.streaming.pollingDelay": "40ms", "spark.sql.session.timeZone": "UTC"}
    )
    spark.sparkContext.setLogLevel("OFF")
    RESULTS.mkdir(parents=True, exist_ok=True)

    def note(outcome: Outcome) -> None:
        path = RESULTS / f"{outcome.suite.lower()}.json"
        found = read_results(outcome.suite)
        found[outcome.name] = asdict(outcome)
        print(f"{outcome.result}: {outcome.suite} {outcome.name}: {outcome.detail[:600]}", flush=True)
        path.write_text(json.dumps(found, indent=1))

    try:
        cases = []
        for suite in given.suites:
            known = {} if given.again else read_results(suite)
            for name, case in READERS[suite]():
                if given.only not in name or name in known:
                    continue
                if isinstance(case, str):
                    note(Outcome(suite.capitalize(), name, "unread", case))
                else:
                    cases.append(case)
        for some in batches(cases):
            started = time.monotonic()
            for outcome in run(spark, list(some)):
                note(outcome)
            print(f"-- {len(some)} cases in {time.monotonic() - started:.0f} s", flush=True)
        for suite in given.suites:
            print(suite, Counter(each["result"] for each in read_results(suite).values()))
    finally:
        spark.stop()


READERS: dict[str, Any] = {"flink": flink.programs, "risingwave": risingwave.programs, "arroyo": arroyo.programs}


if __name__ == "__main__":
    main()
