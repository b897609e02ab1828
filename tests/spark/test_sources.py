"""Several sources in one job: joined, apart and without operators, through restarts, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.plan.pipeline import Pipeline
from strandline.spark.lower.query import Sources
from tests.spark import timed
from tests.spark.functions import Count
from tests.spark.harness import Case, eventually, settle

pytestmark = pytest.mark.spark

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMAS = {"orders": "order_id bigint, at timestamp, user string", "payments": "id int, paid timestamp, method string"}
Row = tuple[int, int, str]


class Input:
    """The files of one source: number, seconds, text; a file is an epoch's at least."""

    def __init__(self, case: Case, name: str) -> None:
        self.name = name
        self.directory = case.root / name
        self.directory.mkdir()
        self.rows: list[Row] = []
        self._files = 0

    def add(self, *rows: Row) -> None:
        names = [column.split()[0] for column in SCHEMAS[self.name].split(", ")]
        lines = [json.dumps(dict(zip(names, (n, at(s).isoformat(), t), strict=True))) for n, s, t in rows]
        hidden = self.directory / f".{self._files:04}.json"
        hidden.write_text("\n".join(lines))
        os.utime(hidden, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        hidden.rename(self.directory / hidden.name[1:])
        self._files += 1
        self.rows += rows

    def stream(self, spark: Any, name: str | None = None) -> sl.Stream:
        files = spark.readStream.schema(SCHEMAS[self.name]).option("maxFilesPerTrigger", 1)
        return sl.stream(files.json(str(self.directory)), name=name or self.name)


def at(seconds: int) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def seconds(value: Any) -> Any:
    return int((value.astimezone(dt.UTC) - START).total_seconds()) if isinstance(value, dt.datetime) else value


def shown(sink: Any) -> Counter[tuple[Any, ...]]:
    """Return a sink's rows, times as seconds since the start."""
    return Counter(tuple(map(seconds, row)) for row in sink.rows)


def job(case: Case, *outputs: Any) -> sl.Job:
    return case.job_of("sources", *outputs, restart=sl.Restart(attempts=3, delay="50ms"))


@pytest.mark.long
def test_two_sources_are_one_consistent_prefix(spark: Any, case: Case) -> None:
    """Joined with each other, counted alone, passed on without any state; against a plain-Python oracle."""
    orders, payments = Input(case, "orders"), Input(case, "payments")
    sinks = {name: sl.sinks.memory(name=name) for name in ("joined", "counted", "passed")}
    rng, clock = random.Random(7), {"orders": 0, "payments": 0}

    def start(*, backwards: bool = False) -> sl.Run:
        bought, paid = orders.stream(spark).watermark("at"), payments.stream(spark).watermark("paid", "1s")
        pays = paid.select_expr("cast(id as bigint) as order_id", "paid", "method").key_by("order_id")
        joined = bought.key_by("order_id").join(pays, ("-5s", "20s"), uid="joined", how="left", prefixes=("", "paid_"))
        counted = bought.key_by("user").process(Count(), output="user string, n bigint", uid="counted")
        outputs = [joined.to(sinks["joined"]), counted.to(sinks["counted"])]
        outputs.append(paid.where("id % 2 = 0").select("id", "method").to(sinks["passed"]))
        # The places of sources and watermarks in the program say nothing.
        return job(case, *(reversed(outputs) if backwards else outputs)).start(spark)

    def add(source: Input, *more: Row) -> None:
        rows = []
        for _ in range(rng.randint(12, 20)):
            clock[source.name] += rng.randint(0, 4)
            rows.append((rng.randrange(8), clock[source.name], rng.choice(["ann", "bob", "cid"])))
        source.add(*rows, *more)

    add(orders)
    with start() as run:
        settle(run)
        assert run.status().sources == ["orders", "payments"]
        assert run.status().rows_in == len(orders.rows)
    add(payments)
    add(orders)
    check_refused(spark, case, orders, payments)
    with start(backwards=True) as run:
        assert run.status().generation == 2, "what was refused had touched nothing"
        run.process_all_available(60)
        # That is not in any checkpoint: both sources are rewound, to where each of them was.
        os.kill(run.status().keepers[0].pid, signal.SIGKILL)
        # What is far later makes an end of everything before it.
        add(payments, (98, 10_000, "end"))
        add(orders, (99, 10_000, "end"))
        settle(run)
        assert run.status().restarts == 1
        assert run.status().watermark == at(9_999).isoformat()
        assert run.status().late_rows == 0
    joined: Counter[tuple[Any, ...]] = Counter()
    for number, time, user in orders.rows[:-1]:
        partners = [(n, m, p) for n, p, m in payments.rows if n == number and time - 5 <= p <= time + 20]
        joined.update([(number, time, user, p, m) for _, m, p in partners] or [(number, time, user, None, None)])
    assert len({row[3] is None for row in joined}) == 2
    assert shown(sinks["joined"]) == joined
    users = Counter(user for _, _, user in orders.rows)
    assert shown(sinks["counted"]) == Counter((user, i + 1) for user, n in users.items() for i in range(n))
    assert shown(sinks["passed"]) == Counter((n, m) for n, _, m in payments.rows if n % 2 == 0)


def check_refused(spark: Any, case: Case, orders: Input, payments: Input) -> None:
    """Programs in which a source is new, gone or renamed do not start."""
    for names, said in (
        (("orders", "paid"), "the program has no source named 'payments'; it reads orders, paid"),
        (("orders", "paid"), "the source 'paid' is new; the checkpoint knows orders, payments"),
        (("orders",), "the program has no source named 'payments'; it reads orders"),
    ):
        outputs = []
        for source, name in zip((orders, payments), names, strict=False):
            keyed = source.stream(spark, name).select_expr("'all' as k").key_by("k")
            out = keyed.process(Count(), output="k string, n bigint", uid=source.name)
            outputs.append(out.to(sl.sinks.noop()))
        with pytest.raises(sl.errors.IncompatibleStateError) as caught:
            job(case, *outputs).start(spark)
        assert said in caught.value.message
        assert "stream(df, name=…)" in str(caught.value)


class Nothing(sl.KeyedProcess):
    """Gives nothing."""

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        return ()


# Without Spark: tests/runtime/test_watermarks.py; a job that does not wait for what is idle: test_event_time.py.
@pytest.mark.soak
def test_a_source_that_is_behind_holds_windows_back_until_it_is_idle(spark: Any, case: Case) -> None:
    orders, payments = Input(case, "orders"), Input(case, "payments")
    sink = sl.sinks.memory(name="windows")

    def start(idle: str | None) -> sl.Run:
        bought = orders.stream(spark).watermark("at").key_by("user")
        paid = payments.stream(spark).watermark("paid", idle=idle).key_by("method")
        windows = (
            bought.window(sl.Tumbling("10s"))
            .agg(count=sl.agg.count(), uid="windows")
            .select("user", "window_end", "count")
        )
        silent = paid.process(Nothing(), output="x int", uid="silent")
        return job(case, windows.to(sink), silent.to(sl.sinks.noop())).start(spark)

    orders.add((1, 3, "ann"), (2, 5, "ann"), (3, 18, "bob"), (4, 95, "ann"))
    with start(None) as run:
        run.process_all_available(60)
        assert run.status().watermark is None, "one has not said anything"
        payments.add((1, 12, "card"))
        orders.add((5, 200, "ann"))
        settle(run)
        assert run.status().watermark == at(12).isoformat()
        assert shown(sink) == Counter([("ann", 10, 2)])
    with start("300ms") as run:
        before = run.status().epoch
        eventually(lambda: run.status().watermark == at(200).isoformat(), "the silent source is not waited for")
        eventually(lambda: run.status().epoch > before, "what is due in restored state fires, though nobody asks")
        settle(run)
        assert shown(sink) == Counter([("ann", 10, 2), ("bob", 20, 1), ("ann", 100, 1)])


def test_sources_are_read_in_the_order_in_which_the_checkpoint_numbers_them(spark: Any, tmp_path: Path) -> None:
    def reading(name: str) -> Any:
        (tmp_path / name).mkdir()
        return sl.stream(spark.readStream.schema(timed.SCHEMA).json(str(tmp_path / name)), name=name)._node

    nodes = [reading(name) for name in ("two", "one", "three")]
    sources = Sources(Pipeline(nodes).sources)
    assert sources.names == ["one", "three", "two"]
    plan = sources.query(["two", "one", "three"])._jdf.queryExecution().analyzed().toString()
    assert sorted(("one", "two", "three"), key=lambda name: plan.index(str(tmp_path / name))) == ["two", "one", "three"]
