"""Bad rows on a real Spark: malformed ones of a source, those that a map fails for, and those without a key."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.soak import soaking
from tests.spark.harness import Case, begin_reducing, settle

pytestmark = pytest.mark.spark

SCHEMA = "user string, amount string, ts timestamp"
AT = "2026-01-01T00:00:0{}Z"
LETTERS = ("read", "paid", "total", "joined")


def put(directory: Path, number: int, *rows: Any) -> None:
    """Add an input file: rows, and text as it is."""
    directory.mkdir(exist_ok=True)
    names = "user", "amount", "ts"
    lines = [row if isinstance(row, str) else json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    hidden = directory / ".next"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(directory / f"{number}.json")


def cents(row: Any) -> Any:
    return {"user": row.user, "cents": round(100 * float(row.amount)), "ts": row.ts}


def streams(spark: Any, case: Case, at_most: int | None = None) -> list[sl.Stream]:
    """Return a job's streams, of which each step may fail for its rows: the last one's rows, and dead letters of all."""
    read = sl.files_source(case.root / "in", schema=SCHEMA, spark=spark, max_files_per_epoch=1, on_error="dead-letter")
    assert read.columns == ["user", "amount", "ts"]
    # A stretch of the clock that does not end between two epochs.
    bears = sl.OnError("dead-letter", at_most=at_most, per="10000 d")
    paid = read.watermark("ts").map(cents, "user string, cents bigint, ts timestamp", on_error=bears)
    keyed = paid.key_by("user")
    total = keyed.agg(total=sl.agg.sum("cents"), uid="total", on_error="dead-letter")
    joined = keyed.join(total.key_by("user"), ("0s", "0s"), uid="joined", on_error="dead-letter")
    return [joined, *(each.dead_letters for each in (read, paid, total, joined))]


@pytest.mark.long
def test_bad_rows_go_their_way_and_are_counted_once(spark: Any, case: Case) -> None:
    """Across a restart, and an epoch that comes again."""
    oops, mixed = "{oops", '{"user": "bob", "amount": [}'
    put(case.root / "in", 0, ("ann", "1.50", AT.format(1)), oops, ("bob", "a lot", AT.format(2)), (None, "2", None))
    names = ("good", *LETTERS)
    sinks = {name: sl.sinks.memory(name=name) for name in names}

    def start(at_most: int | None = None) -> sl.Run:
        outputs = zip(streams(spark, case, at_most), sinks.values(), strict=True)
        return case.job_of("bad", *(stream.to(sink) for stream, sink in outputs)).start(spark)

    more = ("ann", "2", AT.format(4)), mixed, ("bob", "x", AT.format(5)), ("bob", "y", AT.format(6))
    with start(at_most=2) as run:
        settle(run)
        # The row without a key fails twice: for the sum, and for the join.
        assert run.status().failed_events == 4
        put(case.root / "in", 1, *more)
        with pytest.raises(sl.errors.UserCodeError, match=r"map \(cents\): 3 rows failed within"):
            run.await_termination(60)
    assert {name: len(sink.rows) for name, sink in sinks.items()} == {"good": 1, **dict.fromkeys(LETTERS, 1)}
    with start() as run:
        settle(run)
        assert run.status().failed_events == 7
    assert sorted((row.user, row.cents, row.total) for row in sinks["good"].rows) == [
        ("ann", 150, 150),
        ("ann", 200, 350),
    ]
    found = {name: [(row.operator, row.step, row.event) for row in sinks[name].rows] for name in LETTERS}
    assert found["read"] == [(None, "read", oops), (None, "read", mixed)]
    assert [(name, step, json.loads(event)["amount"]) for name, step, event in found["paid"]] == [
        ("cents", "map", amount) for amount in ("a lot", "x", "y")
    ]
    keyless = '{"user": null, "cents": 200, "ts": null}'
    assert (found["total"], found["joined"]) == ([("total", "key_by", keyless)], [("joined", "key_by", keyless)])
    assert all("ValueError" in row.traceback for row in sinks["paid"].rows)


def test_a_malformed_row_can_end_the_job_in_words(spark: Any, case: Case) -> None:
    """And what nobody reads is refused; of a DataFrame, it is said how it keeps such rows."""
    put(case.root / "in", 0, ("ann", "1", None), "{secret")

    def read(on_error: Any) -> sl.Stream:
        return sl.files_source(case.root / "in", schema=SCHEMA, spark=spark, name="paid", on_error=on_error)

    failing = case.job_of("fail", read("fail").to(sl.sinks.noop()))
    with failing.start(spark) as run, pytest.raises(sl.errors.UserCodeError) as caught:
        run.await_termination(60)
    assert str(caught.value).startswith(
        "a row of the source 'paid' cannot be read: {secret\n  next step: correct the row, or set"
    )
    assert caught.value.discreet == "a row of the source 'paid' cannot be read"
    with pytest.raises(
        sl.errors.ConfigurationError, match="the source 'paid': on_error is 'dead-letter', and its dead"
    ):
        case.job_of("lost", read("dead-letter").to(sl.sinks.noop())).start(spark)
    df = spark.readStream.schema(SCHEMA).json(str(case.root / "in"))
    refused: list[tuple[Any, str]] = [
        (lambda: read("skip"), "on_error is 'skip', which sources"),
        (lambda: sl.stream(df, on_error="dead-letter"), "the DataFrame has no string column _corrupt_record"),
        (
            lambda: sl.files_source("in", schema=SCHEMA, spark=spark, format="orc", on_error="fail"),
            "for orc files, but",
        ),
        (
            lambda: sl.files_source("in", schema=SCHEMA, spark=spark, mode="FAILFAST", on_error="fail"),
            "mode='FAILFAST'",
        ),
        (lambda: sl.stream(df).dead_letters, "dead_letters: there are none here"),
    ]
    for write, said in refused:
        with pytest.raises(sl.errors.ConfigurationError, match=said):
            write()
    kept = spark.readStream.schema(f"{SCHEMA}, broken string").option("columnNameOfCorruptRecord", "broken")
    sink = sl.sinks.memory(name="broken")
    stream = sl.stream(kept.json(str(case.root / "in")), on_error="dead-letter")
    assert stream.columns == ["user", "amount", "ts"]
    with case.job_of("kept", stream.dead_letters.to(sink)).start(spark) as run:
        settle(run)
    assert [row.event for row in sink.rows] == ["{secret"]


BYTES = "k string, raw string, ts timestamp"
READ = "k string, v string, pair struct<tags: array<string>>, until timestamp, ts timestamp"


def from_bytes(spark: Any, case: Case) -> sl.Stream:
    """Return rows with strings of the bytes that `raw` has in hex, and times as many thousand years after 9000."""
    df = spark.readStream.schema(BYTES).json(str(case.root / "in"))
    text = "cast(unhex(raw) as string)"
    until = "make_timestamp(9000, 1, 1, 0, 0, 0, 'UTC') + make_interval(if(raw = '32', 5000, 1))"
    selected = [f"if(k = 'raw', {text}, k) as k", f"{text} as v", f"named_struct('tags', array({text})) as pair"]
    return sl.stream(df.selectExpr(*selected, f"{until} as until", "ts")).watermark("ts")


class Latest(sl.KeyedProcess):
    """Counts what is read, and keeps it."""

    seen = sl.List("string")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.append(event.v)
        yield ctx.key, len(self.seen.get())


# What is not aggregated first goes the way that tests/testing/test_bad_rows.py has.
@pytest.mark.parametrize("reduced", [True, *soaking([False])])
@pytest.mark.long
def test_what_python_has_no_values_for_is_a_bad_row_wherever_it_is_read(
    spark: Any, case: Case, monkeypatch: Any, reduced: bool
) -> None:
    """Also in an aggregate, where it must not be what others of its key are aggregated to."""
    begin_reducing(monkeypatch, reduced)
    rows = [("a", "31"), ("a", "FF"), ("a", "32"), ("raw", "FE41"), ("a", "33"), (None, "34")]
    put_bytes = [{"k": k, "raw": raw, "ts": AT.format(n)} for n, (k, raw) in enumerate(rows)]
    put(case.root / "in", 0, *map(json.dumps, put_bytes))
    read = from_bytes(spark, case)
    keyed = read.key_by("k")
    bears = "dead-letter"
    mapped = read.map(lambda row: (row.k, row.v), "k string, v string", on_error=bears)
    counted = keyed.process(Latest(), output="k string, n bigint", uid="counted", on_error=bears)
    running = keyed.agg(
        n=sl.agg.count(), top=sl.agg.max("v"), last=sl.agg.max("until"), tags=sl.agg.count_distinct("pair"),
        uid="running", on_error=bears,
    )  # fmt: skip
    windowed = keyed.window(sl.Tumbling("1h")).agg(top=sl.agg.max("v"), uid="windowed", on_error=bears)
    sinks = {name: sl.sinks.memory(name=name) for name in ("mapped", "counted", "running", "windowed")}
    bad = {name: sl.sinks.memory(name=f"{name}-bad") for name in sinks}
    streams = dict(zip(sinks, (mapped, counted, running, windowed), strict=True))
    outputs = [stream.to(sinks[name]) for name, stream in streams.items()]
    outputs += [stream.dead_letters.to(bad[name]) for name, stream in streams.items()]
    with case.job_of("bytes", *outputs).start(spark) as run:
        settle(run)
        assert run.status().failed_events == 14
        run.stop(drain=True)
    found = {name: sorted(map(tuple, sink.rows), key=str) for name, sink in sinks.items()}
    assert found["mapped"] == [("a", "1"), ("a", "3"), (None, "4")]
    assert found["counted"] == [("a", 1), ("a", 2)]
    assert found["running"] == [("a", 2, "3", dt.datetime(9001, 1, 1), 2)]
    # The time that it does not look at may be any.
    assert [row[::3] for row in found["windowed"]] == [("a", "3")]
    reasons = {
        name: sorted((row.step, row.reason.partition(":")[0]) for row in sink.rows) for name, sink in bad.items()
    }
    v, until, k = (("read", f"the column '{name}' cannot be read") for name in ("v", "until", "k"))
    null = ("key_by", "the key column 'k' is null")
    assert reasons["mapped"] == sorted([v, until, k])
    assert reasons["counted"] == reasons["running"] == sorted([null, v, until, k])
    (letter,) = [row for row in bad["running"].rows if "'k' cannot" in row.reason]
    event = json.loads(letter.event)
    assert (event["k"], event["v"], event["pair"]) == ("/kE=", "/kE=", {"tags": ["/kE="]})
    assert json.loads(letter.key or "null") is None


def test_a_late_row_that_is_a_bad_record_comes_once(spark: Any, case: Case) -> None:
    """Among the dead letters, and not in the side output of late rows of an aggregate as well."""
    first, *rest = (
        json.dumps({"k": k, "raw": raw, "ts": AT.format(second)})
        for k, raw, second in [("a", "31", 9), ("a", "32", 1), (None, "33", 2), ("a", "FF", 3)]
    )
    put(case.root / "in", 0, first)
    windows = from_bytes(spark, case).key_by("k").window(sl.Tumbling("2s"), late="late")
    tops = windows.agg(top=sl.agg.max("v"), uid="tops", on_error="dead-letter")
    late, bad = sl.sinks.memory(name="late"), sl.sinks.memory(name="bad")
    outputs = tops.to(sl.sinks.noop()), tops.side("late").select("v").to(late), tops.dead_letters.to(bad)
    with case.job_of("once", *outputs).start(spark) as run:
        settle(run)
        put(case.root / "in", 1, *rest)
        settle(run)
    assert [row.v for row in late.rows] == ["2"]
    assert sorted(row.step for row in bad.rows) == ["key_by", "read"]


def test_a_string_that_is_no_utf8_ends_the_job_at_once_and_in_words(spark: Any, case: Case) -> None:
    put(case.root / "in", 0, json.dumps({"k": "a", "raw": "31"}), json.dumps({"k": "a", "raw": "FFFE"}))
    # Functions of rows and of events: tests/testing/test_unreadable.py.
    tops = from_bytes(spark, case).key_by("k").agg(top=sl.agg.max("v"), uid="running")
    job = case.job_of("agg", tops.to(sl.sinks.noop()), restart=sl.Restart(attempts=3, delay="50ms"))
    with job.start(spark) as run, pytest.raises(sl.errors.UserCodeError) as caught:
        run.await_termination(60)
    assert "cannot be read: the string b'\\xff\\xfe' is no UTF-8" in caught.value.message
    assert "xff" not in caught.value.discreet
    assert run.status().restarts == 0
