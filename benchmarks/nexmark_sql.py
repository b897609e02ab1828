"""Nexmark in SQL: its queries as views, right after every epoch, and events a second beside the API's programs.

The queries are the files of `nexmark_sql`. Query 12 is missing: it cuts time by when a row is processed, which is
nothing that the rows say. With `--check`, the changes so far are compared with DuckDB's answer after each epoch, and
nothing is measured. Without, everybody reads the same files and writes Parquet files, as in `benchmarks.nexmark`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks._counting import MASTER
from benchmarks._harness import (
    Result,
    add_subject_options,
    emit,
    end_on_sigterm,
    measure_in_turn,
    median_of,
    progress,
    report_result,
    scratch,
    steady_rows_per_second,
)
from benchmarks._nexmark.answers import ANSWERS, Answer, Rows, check, compared, import_duckdb, parquet_files
from benchmarks._nexmark.generator import KINDS
from benchmarks._nexmark.peers import STATEMENTS, Statement
from benchmarks._nexmark.queries import QUERIES, streams_of
from benchmarks._nexmark.sources import Size, read_events, write_events
from benchmarks.nexmark import FULL, OURS, QUICK, SETTINGS, SPARK, run_job, run_statement, run_strandline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import strandline as sl

BENCHMARK = "nexmark_sql"
SQL = "sql"
CHECKED = Size(events_per_epoch=30_000, epochs=6, warm_up=0)
"""18 seconds of event time: a window of ten seconds is closed before the end."""
QUICKLY_CHECKED = Size(events_per_epoch=3_000, epochs=3, warm_up=0)
WANTED = {OURS: 0.9, SPARK: 1.5}
"""The least that a view's rate is wanted to be of another's."""
CHANGE = "_change"
_FILES = Path(__file__).with_suffix("")
TEXTS = {f"q{n}": (_FILES / f"q{n}.sql").read_text(encoding="utf-8") for n in range(23) if n != 12}
WINDOWS = ("q5", "q7", "q8", "q11")
"""Queries of windows, whose results are final when the watermark has closed them."""
_UNWINDOWED = {query: text for query, text in TEXTS.items() if query not in WINDOWS}
RIGHT = {query: ANSWERS[query].right for query in WINDOWS} | _UNWINDOWED
"""The queries as DuckDB has them: where no window is, the very text."""
RIGHT["q7"] = """
SELECT period_end, auction, bidder, price, ts, extra FROM tumbling_bid
WHERE period_end <= (SELECT reached FROM watermark)
QUALIFY price = max(price) OVER (PARTITION BY period_end)
"""
_FUNCTIONS = """
CREATE MACRO date_format(moment, format) AS
  strftime(moment, CASE format WHEN 'yyyy-MM-dd' THEN '%Y-%m-%d' WHEN 'HH:mm' THEN '%H:%M' END);
"""
_NOTHING_IS_FINAL = "CREATE OR REPLACE VIEW watermark AS SELECT TIMESTAMPTZ 'infinity' AS reached;"
_STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
PEERS = STATEMENTS | {query: Statement(TEXTS[query]) for query in _STATELESS}
PEERS["q17"] = Statement(TEXTS["q17"], mode="update")
"""What Spark's streaming SQL can say: beside those of `benchmarks.nexmark`, the very text of these."""
SUBJECTS = [
    f"{query}.{engine}"
    for query in TEXTS
    for engine, queries in ((SQL, TEXTS), (OURS, QUERIES), (SPARK, PEERS))
    if query in queries
]
_CHECK_TIMEOUT_S = 600.0


def columns_of(text: str) -> Mapping[str, str]:
    """Return the kinds of events that a query names, and the columns of each."""
    import pyarrow as pa

    from benchmarks._nexmark.generator import Generator

    words, tables = set(re.findall(r"\w+", text)), set(re.findall(r"(?:FROM|JOIN) (\w+)", text))
    kinds: list[pa.Field] = [field for field in Generator().events(0, 0).schema if field.name in KINDS]
    return {
        kind.name: " ".join(field.name for field in kind.type if field.name in words)
        for kind in kinds
        if kind.name in tables
    }


def view_of(query: str, df: DataFrame, emit: Literal["final", "changes"] = "final") -> sl.View:
    """Return the view of a query over the stream of all events."""
    import strandline as sl

    return sl.sql(TEXTS[query], uid="", emit=emit, state_ttl=None, **streams_of(df, columns_of(TEXTS[query])))


def run_view(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query as a view to its end and return the costs of the epochs."""
    return run_job(query, lambda df: view_of(query, df).changes(CHANGE), events, size, directory)


def run_spark(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query in Spark's SQL to its end and return the costs of the epochs."""
    return run_statement(PEERS[query], events, size, directory)


RUN: dict[str, Callable[..., Any]] = {SQL: run_view, OURS: run_strandline, SPARK: run_spark}


def check_changes(subject: str, query: str, events: str, given: str, *, is_final: bool = True) -> int:
    """Compare the sum of changes with the right answer; return how many rows that has.

    `events` and `given` are what DuckDB reads as Parquet files. `is_final`: windows count as the watermark closes them.
    """
    answer = Answer(
        f"SELECT *, count(*) AS times FROM ({RIGHT[query]}) GROUP BY ALL",
        f"SELECT * EXCLUDE {CHANGE}, sum({CHANGE}) AS times FROM gave GROUP BY ALL HAVING sum({CHANGE}) <> 0",
    )
    prepare = _FUNCTIONS if is_final else _FUNCTIONS + _NOTHING_IS_FINAL
    return compared(
        subject, query, answer, events, Rows(f"SELECT * FROM read_parquet({given}, hive_partitioning = false)"), prepare
    )


def run_subject(subject: str, events: Path, size: Size, directory: Path) -> Result:
    """Measure one subject in this process, and compare what it gave with the right answer."""
    query, _, engine = subject.partition(".")
    epochs = [replace(epoch, rows=size.events_per_epoch) for epoch in RUN[engine](query, events, size, directory)]
    results = directory / "results"
    if engine == SQL:
        count = check_changes(subject, query, f"'{events}/*.parquet'", f"'{results}/**/*.parquet'")
    elif query in ANSWERS:
        count = check(subject, query, events, parquet_files(results))
    else:
        count = 0
    return {
        "rows_per_second": steady_rows_per_second(epochs, size.warm_up),
        "epochs_ms": [epoch.duration_ms for epoch in epochs],
        "results_compared": count,
    }


def check_query(spark: SparkSession, query: str, events: Path, size: Size, directory: Path, *, is_final: bool) -> int:
    """Run a view and compare its changes with DuckDB's answer after each epoch; return how many rows the last one has.

    `is_final`: windows come once.
    """
    import strandline as sl

    given = directory / "changes"

    def write(df: DataFrame, epoch: int) -> None:
        df.write.mode("overwrite").parquet(str(given / f"epoch={epoch:05}"))

    view = view_of(query, read_events(spark, events), "final" if is_final else "changes")
    job = sl.Job(
        query,
        sinks=[view.changes(CHANGE).to(sl.sinks.foreach_batch(write, name="changes"))],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every="1h"),
        settings=sl.Settings(local_dir=directory / "local"),
        restart=sl.Restart(attempts=0),
        trigger="available-now",
    )
    job.start(spark).await_termination(_CHECK_TIMEOUT_S)
    files = sorted(map(str, events.glob("*.parquet")))
    epochs = sorted(given.iterdir())
    # The watermark closes windows at the start of the next epoch, so that there may be one more, without rows.
    later = len(epochs) - len(files)
    if later not in (0, 1):
        raise SystemExit(f"{query}: {len(epochs)} epochs of {len(files)} files")
    count = 0
    for epoch in range(1, size.epochs + 2):
        so_far = [str(file) for each in epochs[: epoch + later] for file in each.glob("*.parquet")]
        subject = f"{query}.{SQL}, epoch {epoch}"
        count = check_changes(subject, query, str(files[:epoch]), str(so_far), is_final=is_final)
    return count


def check_all(queries: list[str], size: Size) -> None:
    """Check queries after each epoch, and print for each whether it was right; exit with 1 if one was not."""
    import strandline as sl

    spark = sl.session("nexmark-sql", MASTER, **SETTINGS)
    wrong = 0
    with scratch("nexmark-sql") as directory:
        events = directory / "events"
        write_events(events, size)
        for query in queries:
            for is_final in (True, False) if query in WINDOWS else (True,):
                extra: dict[str, Any] = {"emit": "final" if is_final else "changes"} if query in WINDOWS else {}
                place = directory / f"{query}-{is_final}"
                place.mkdir()
                try:
                    rows = check_query(spark, query, events, size, place, is_final=is_final)
                except (Exception, SystemExit) as error:
                    wrong += 1
                    emit(BENCHMARK, query, "right", 0, **extra, error=str(error)[:500])
                else:
                    emit(BENCHMARK, query, "right", 1, **extra, epochs=size.epochs + 1, rows=rows)
    spark.stop()
    if wrong:
        raise SystemExit(1)


def report(size: Size, results: dict[str, list[Result]]) -> None:
    """Print each subject's median throughput, and how many times another's a view's is."""
    rates = {subject: median_of(rounds, "rows_per_second") for subject, rounds in results.items()}
    for subject, rate in rates.items():
        emit(
            BENCHMARK, subject, "throughput", round(rate), unit="events/s", engine=subject.partition(".")[2],
            rounds=[round(result["rows_per_second"]) for result in results[subject]],
            epochs_ms=results[subject][-1]["epochs_ms"], events_per_epoch=size.events_per_epoch,
            measured_epochs=size.epochs - size.warm_up, results_compared=results[subject][-1]["results_compared"],
        )  # fmt: skip
    for query in TEXTS:
        for peer, wanted in WANTED.items():
            mine, other = rates.get(f"{query}.{SQL}"), rates.get(f"{query}.{peer}")
            if mine is not None and other is not None:
                ratio = round(mine / other, 2)
                emit(BENCHMARK, query, "throughput_ratio", ratio, peer=peer, wanted_at_least=wanted)


def main() -> None:
    """Check the views, or measure all subjects in turn, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark_sql", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the views after each epoch, and measure nothing")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few events and one round: shows that it works")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, metavar="SUBJECT")
    parser.add_argument("--events", type=Path, help=argparse.SUPPRESS)
    add_subject_options(parser, SUBJECTS)
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    import_duckdb()
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.events, size, given.scratch))
        return
    end_on_sigterm()
    subjects = given.subjects or SUBJECTS
    if given.check:
        queries = [query for query in TEXTS if f"{query}.{SQL}" in subjects]
        check_all(queries, QUICKLY_CHECKED if given.quick else CHECKED)
        return
    rounds = 1 if given.quick else given.rounds
    progress(f"{BENCHMARK}: {size.epochs * size.events_per_epoch:,} events, {', '.join(subjects)}; {rounds} rounds")
    with scratch("nexmark-sql-events") as directory:
        events = directory / "events"
        write_events(events, size)
        options = ["--events", str(events), *(["--quick"] if given.quick else [])]
        report(size, measure_in_turn("benchmarks.nexmark_sql", subjects, rounds, options))


if __name__ == "__main__":
    main()
