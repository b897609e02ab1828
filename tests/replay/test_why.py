"""The cause of an output row: its call, the events and timers of its key, and the state that they found."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.replay.history import history_of
from strandline.replay.keys import QueryKey
from strandline.replay.recorded import find_recorded
from strandline.replay.session import jobdir_of
from strandline.replay.why import Cause, Explanation, explain_since_oldest
from tests.cli.conftest import Command, strandline
from tests.replay.programs import Total, job_of, read, totals, write

__all__ = ["strandline"]
pytestmark = pytest.mark.spark

SCHEMA = "card string, amount long, at timestamp"
START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
PROGRAM = """
import sys
from pathlib import Path

import strandline as sl
from tests.replay.programs import totals

totals(sl.session("tests"), Path(sys.argv[1]), Path(sys.argv[2])).start().await_termination()
"""


class Silent(sl.KeyedProcess):
    """Says that a card was silent for ten seconds; amounts of more than 100 go to a side output at once."""

    last = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.amount > 100:
            ctx.emit("large", (ctx.key, event.amount + self.last.value))
        self.last.value = event.amount
        ctx.timers.set(ctx.timestamp + dt.timedelta(seconds=10))

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, self.last.value


def payment(card: str, amount: int, second: int) -> dict[str, Any]:
    return {"card": card, "amount": amount, "at": (START + dt.timedelta(seconds=second)).isoformat()}


def silence(spark: Any, root: Path, local_dir: Path) -> sl.Job:
    rows = sl.stream(read(spark, root, SCHEMA)).watermark("at").key_by("card")
    out = rows.process(Silent(), "card string, amount bigint", uid="silent", sides={"large": "card string, sum bigint"})
    tens = rows.window(sl.Tumbling("10s")).agg(amount=sl.agg.sum("amount"), uid="tens")
    sinks = {
        "shown": out.select_expr("upper(card) as name", "amount * 2 as twice"),
        "large": out.side("large"),
        "tens": tens,
        "unnamed": tens.select_expr("amount"),
    }
    return job_of(root, local_dir, *(stream.to(sl.sinks.memory(name=name)) for name, stream in sinks.items()))


@pytest.fixture
def job(spark: Any, tmp_path: Path, local_dir: Path) -> sl.Job:
    """A job of six epochs, with a checkpoint of the second one."""
    run = silence(spark, tmp_path, local_dir).start(spark)
    epochs = [
        [payment("a", 1, 1), payment("b", 2, 2)],
        [payment("a", 3, 3), payment("c", 4, 4)],
        [payment("b", 150, 12), payment("c", 120, 12)],
        [payment("d", 5, 40)],
    ]
    for number, rows in enumerate(epochs):
        write(tmp_path / "in", f"{number}.json", rows)
        run.process_all_available()
        if number == 1:
            run.checkpoint()
    run.stop(checkpoint=True)
    return silence(spark, tmp_path, local_dir)


def explain(job: sl.Job, sink: str, condition: str) -> Explanation:
    found, _ = explain_since_oldest(job, {}, sink, condition)
    assert found is not None
    return found


def last_of(found: Explanation) -> Cause:
    assert found.last is not None
    return found.last


def rows_of(cause: Cause) -> list[tuple[str, int, Any]]:
    """Return the kinds, epochs and rows of what a cause comes of, with times as text, in the order of epochs."""
    plain = [{**(each.row or {}), "at": each.row["at"].isoformat() if each.row else ""} for each in cause.causes]
    rows = zip((each.kind for each in cause.causes), (each.epoch for each in cause.causes), plain, strict=True)
    return sorted(rows, key=lambda row: row[1])


def test_a_timer_behind_steps_of_spark(job: sl.Job) -> None:
    found = explain(job, "shown", "name = 'A'")
    assert (found.matches, found.row) == (2, {"name": "A", "twice": 6})
    timer = last_of(found)
    assert (timer.name, timer.function, timer.key, timer.epoch) == ("silent", "Silent", "a", 4)
    assert timer.call is not None
    assert (timer.call.call, timer.call.event) == ("on_timer", START + dt.timedelta(seconds=11))
    assert [(each.call, each.before, each.after) for each in found.history] == [
        ("on_event", {"last": 0}, {"last": 1}), ("on_event", {"last": 1}, {"last": 3}), ("on_timer", {"last": 3}, {"last": 3}),
    ]  # fmt: skip
    assert found.history[-1].rows == (("a", 3),)
    # The first of both timers gives it: it was set in the first epoch.
    (setter,) = timer.causes
    assert setter.call is not None
    assert (setter.kind, setter.row, setter.epoch, setter.call.event.amount) == ("operator", None, 1, 1)
    assert rows_of(setter) == [("source", 1, payment("a", 1, 1))]


def test_an_event_that_gave_a_row_of_a_side_output(job: sl.Job) -> None:
    found = explain(job, "large", "sum >= 100 and card = 'c'")
    assert (found.matches, found.row) == (1, {"card": "c", "sum": 124})
    by = last_of(found)
    assert by.call is not None
    assert (by.row, by.call.call, by.call.event.amount) == ({"card": "c", "sum": 124}, "on_event", 120)
    assert [each.before["last"] for each in found.history] == [0, 4]
    assert rows_of(by) == [("source", 3, payment("c", 120, 12))]


@pytest.mark.long
def test_results_of_built_in_operators(job: sl.Job) -> None:
    found = explain(job, "tens", "card = 'a'")
    by = last_of(found)
    assert (found.row["amount"], by.name, by.key, by.call) == (4, "tens", "a", None)
    assert [len(each.after["results"]) for each in found.history] == [1, 1, 0]
    assert [[event["amount"] for event in each.event] for each in found.history] == [[1], [3], []]
    # Both rows of the pane, and no other one of its key.
    assert (by.read, by.left_out, by.notes) == (2, 0, [])
    assert rows_of(by) == [("source", 1, payment("a", 1, 1)), ("source", 2, payment("a", 3, 3))]
    # A row without the key's columns is followed, too.
    by = last_of(explain(job, "unnamed", "amount = 2"))
    assert (by.name, by.key, by.read) == ("tens", "b", 1)
    assert explain(job, "unnamed", "amount = 4").cause.notes == [
        "2 equal rows are in this epoch: this is about one of them"
    ]


class Notice(sl.KeyedProcess):
    """Numbers the payments of a card that are not small."""

    count = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.count.value += 1
        yield ctx.key, event.amount, self.count.value, event.at


class Named(sl.KeyedCoProcess):
    """Gives payments the name that the other stream has set for the card."""

    name = sl.Value("string", default="?")

    def on_left(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, self.name.value, event.amount

    def on_right(self, event: Any, ctx: Any) -> Any:
        self.name.value = event.name


class Doubled(sl.KeyedBatchProcess):
    """Doubles amounts, many in one call."""

    def on_batch(self, events: Any, ctx: Any) -> Any:
        return pa.table({"card": events["card"], "twice": pc.multiply(events["amount"], 2)})


@pytest.mark.long
def test_a_chain_of_operators_back_to_both_sources(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    def chain() -> sl.Job:
        payments = sl.stream(read(spark, tmp_path, SCHEMA, "payments"), name="payments").watermark("at")
        names = sl.stream(
            read(spark, tmp_path, "card string, name string, at timestamp", "names"), name="names"
        ).watermark("at")
        large = payments.where("amount > 10").flat_map(lambda row: [row, row] if row.amount == 40 else [row], SCHEMA)
        noticed = large.key_by("card").process(
            Notice(), "card string, amount bigint, count bigint, at timestamp", uid="notice"
        )
        named = noticed.select_expr("card", "amount + count as amount").key_by("card").connect(names.key_by("card"))
        sums = noticed.key_by("card").agg(sum=sl.agg.sum("amount"), uid="sums")
        batches = noticed.key_by("card").process(Doubled(), "card string, twice bigint", uid="doubled")
        joined = noticed.select("card", "amount", "at").key_by("card").join(
            payments.where("amount < 10").select_expr("card", "amount as small", "at").key_by("card"),
            within=("-100s", "100s"), uid="both", prefixes=("", "r_"),
        )  # fmt: skip
        ends = {
            "named": named.process(Named(), "card string, name string, amount bigint", uid="named"),
            "sums": sums,
            "batches": batches,
            "joined": joined,
        }
        return job_of(tmp_path, local_dir, *(stream.to(sl.sinks.memory(name=name)) for name, stream in ends.items()))

    run = chain().start(spark)
    write(tmp_path / "names", "0.json", [{"card": "a", "name": "Ann", "at": START.isoformat()}])
    for number in range(3):
        rows = [payment("a", 20 * number + 20, number), payment("a", 1 + number, number), payment("b", 11, number)]
        write(tmp_path / "payments", f"{number}.json", rows)
        run.process_all_available()
    run.stop(checkpoint=True)
    job = chain()

    found = last_of(explain(job, "named", "card = 'a' and amount = 64"))
    assert (found.name, found.key, found.row) == ("named", "a", {"card": "a", "name": "Ann", "amount": 64})
    assert found.call is not None
    assert (found.call.call, found.call.event.amount, found.call.before) == ("on_left", 64, {"name": "Ann"})
    (notice,) = found.causes
    assert notice.call is not None
    assert (notice.name, notice.call.before, notice.call.after) == ("notice", {"count": 3}, {"count": 4})
    assert [(each.name, each.row["amount"]) for each in notice.causes if each.row] == [("payments", 60)]
    # All rows of the key, of which the newest are followed, each to its source: one gave two rows.
    found = last_of(explain(job, "sums", "card = 'a' and sum = 160"))
    assert (found.read, found.left_out, [each.name for each in found.causes]) == (4, 0, ["notice"] * 4)
    assert sorted(leaf.row["amount"] for each in found.causes for leaf in each.causes if leaf.row) == [20, 40, 40, 60]
    # A function of batches does not say which row gave which.
    found = last_of(explain(job, "batches", "card = 'a' and twice = 120"))
    assert (found.key, found.read, len(found.causes)) == ("a", 1, 1)
    assert "which of its key's rows in this epoch gave this one is not known" in found.notes[0]
    # A join: the rows of both sides that it has put together.
    found = last_of(explain(job, "joined", "card = 'a' and amount = 20 and r_small = 3"))
    (left,) = [each for each in found.causes if each.kind == "operator"]
    (right,) = [each for each in found.causes if each.kind == "source"]
    assert (found.read, left.name, right.row) == (
        2,
        "notice",
        {**payment("a", 3, 2), "at": right.row and right.row["at"]},
    )


class Strict(sl.KeyedProcess):
    """Counts payments; fails for large ones, after it has counted them."""

    count = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.count.value += 1
        if event.amount > 100:
            raise ValueError("too much")
        yield ctx.key, self.count.value


@pytest.mark.long
def test_dead_letters_windows_of_windows_and_views(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    def mixed() -> sl.Job:
        rows = sl.stream(read(spark, tmp_path, SCHEMA)).watermark("at")
        known = rows.where("card is not null")
        counted = rows.key_by("card").process(
            Strict(), "card string, count bigint", uid="strict", on_error="dead-letter"
        )
        tens = known.key_by("card").window(sl.Tumbling("10s")).agg(amount=sl.agg.sum("amount"), uid="tens")
        sinks = {
            "counts": counted,
            "letters": counted.dead_letters,
            "twenties": tens.key_by("card").window(sl.Tumbling("20s")).agg(amount=sl.agg.sum("amount"), uid="twenties"),
            "either": known.select("card", "amount").union(tens.select_expr("card", "-amount as amount")),
            "totals": sl.sql("SELECT card, sum(amount) AS total FROM known GROUP BY card", known=known).changes(),
        }
        return job_of(tmp_path, local_dir, *(stream.to(sl.sinks.memory(name=name)) for name, stream in sinks.items()))

    run = mixed().start(spark)
    epochs = [
        [payment("a", 1, 1), payment("b", 2, 2)],
        [payment("a", 3, 3), payment("b", 150, 12), {**payment("", 7, 12), "card": None}],
        [payment("d", 5, 40)],
    ]
    for number, rows in enumerate(epochs):
        write(tmp_path / "in", f"{number}.json", rows)
        run.process_all_available()
    run.stop(checkpoint=True)
    job = mixed()

    # The call failed: what it did to the state was taken back.
    letter = last_of(explain(job, "letters", "event like '%150%'"))
    assert letter.call is not None
    assert (letter.call.event.amount, letter.call.before, letter.call.after) == (150, {"count": 1}, {"count": 1})
    assert rows_of(letter) == [("source", 2, payment("b", 150, 12))]
    letter = last_of(explain(job, "letters", "event like '%7%'"))
    assert "it comes without any call" in letter.notes[0]
    # Both windows end in one epoch: the smaller one's row comes from its timer.
    twenties = last_of(explain(job, "twenties", "card = 'b' and amount = 152"))
    assert (twenties.read, [each.name for each in twenties.causes], twenties.notes) == (2, ["tens", "tens"], [])
    # A union with a source, in an epoch that has no rows of it.
    tens = last_of(explain(job, "either", "card = 'a' and amount = -4"))
    assert (tens.name, tens.read) == ("tens", 2)
    found = explain(job, "totals", "card = 'a' and total = 4")
    assert (last_of(found).read, len(found.history)) == (2, 2)
    # The key of a view's operator is shown, and may be given, in the columns of the query.
    total = last_of(found)
    assert (total.key, total.row and total.row["card"]) == ({"card": "a"}, "a")
    assert [each["card"] for change in found.history for each in change.event] == ["a", "a"]
    recorded = find_recorded(jobdir_of(job), "start", None, {})
    assert [*history_of(job, recorded, total.name, '{"card": "a"}')] == [*found.history]
    assert "which of them it was made of is not known" in last_of(found).notes[0]
    with pytest.raises(ConfigurationError, match=r"the condition 'card = 1': \[CAST_INVALID_INPUT\]"):
        explain(job, "counts", "card = 1")


def test_the_keys_of_views_are_columns_of_the_query(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    def key_of(query: str) -> QueryKey:
        rows = sl.stream(read(spark, tmp_path, "card string, amount double, tags array<string>"))
        job = job_of(tmp_path, local_dir, sl.sql(query, a=rows, b=rows).changes().to(sl.sinks.memory(name="rows")))
        key = QueryKey.of(job._plan.pipeline.operators[-1])
        assert key is not None
        return key

    two = key_of("SELECT card, amount, count(*) AS n FROM a GROUP BY card, amount")
    assert two.names == ["amount", "card"]
    assert two.row({"__strandline_key": {"k0": 1.5, "k1": "x"}, "n": 1}) == {"amount": 1.5, "card": "x", "n": 1}
    for text in ('[1.5, "x"]', '{"card": "x", "amount": 1.5}', '{"k0": 1.5, "k1": "x"}'):
        assert json.loads(two.parse(text)) == {"k0": 1.5, "k1": "x"}
    assert key_of("SELECT upper(card) AS big, count(*) AS n FROM a GROUP BY upper(card)").names == ["Upper(a.card)"]
    # An array is no key: it is one as text.
    assert key_of("SELECT tags, count(*) AS n FROM a GROUP BY tags").names == ["tags"]
    ranked = "SELECT card, amount, row_number() OVER (PARTITION BY card ORDER BY amount) AS n FROM a"
    assert key_of(f"SELECT * FROM ({ranked}) WHERE n = 1").names == ["card"]
    joined = key_of("SELECT a.card, b.amount FROM a JOIN b ON a.card = b.card")
    assert (joined.columns("x"), joined.parse("x"), joined.parse('{"card": "x"}')) == ({"card": "x"}, "x", "x")
    outer = key_of("SELECT a.card, b.amount FROM a LEFT JOIN b ON a.card = b.card")
    assert outer.columns({"k0": "x", "side": 0}) == {"card": "x"}
    assert json.loads(outer.parse("x")) == {"k0": "x", "side": 0}
    everything = key_of("SELECT count(*) AS n FROM a")
    assert (everything.columns({"side": 0}), json.loads(everything.parse("x"))) == ({}, {"side": 0})


@pytest.mark.long
def test_what_cannot_be_explained(job: sl.Job, tmp_path: Path) -> None:
    assert explain_since_oldest(job, {}, "tens", "card = 'z'")[0] is None
    with pytest.raises(NotFoundError, match="the job has no sink 'rows'"):
        explain(job, "rows", "true")
    with pytest.raises(ConfigurationError, match="the columns are card, window_start"):
        explain(job, "tens", "color = 'a'")
    with pytest.raises(ConfigurationError, match="the condition 'card ='"):
        explain(job, "tens", "card =")
    # Input of the first epoch is gone: epochs after the checkpoint can be run.
    (tmp_path / "in" / "0.json").unlink()
    found, recorded = explain_since_oldest(job, {}, "large", "card = 'c'")
    assert found is not None
    assert (recorded.origin.url[-5:], [each.before["last"] for each in found.history]) == ("chk-1", [4])
    (tmp_path / "in" / "3.json").unlink()
    with pytest.raises(ConfigurationError, match="files, and 1 of them are gone"):
        explain(job, "large", "card = 'c'")


def test_the_command(
    spark: Any, strandline: Command, tmp_path: Path, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, args = tmp_path / "app.py", ["--", tmp_path, local_dir]
    app.write_text(PROGRAM)
    monkeypatch.setattr(sys, "argv", [str(app), str(tmp_path), str(local_dir)])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(app), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.chdir(tmp_path)
    run = totals(spark, tmp_path, local_dir, Total()).start(spark)
    for number in range(3):
        write(tmp_path / "in", f"{number}.json", [{"card": f"c{n}", "amount": n + number} for n in range(3)])
        run.process_all_available()
        run.checkpoint()
    run.stop()
    result = strandline("why", app, "rows", "card = 'c2' and total = 5", *args)
    assert result.code == 0, result.stderr
    # The job's name is enough: its program and its arguments are known.
    os.utime(app, (2**32, 2**32))
    by_name = strandline("why", "replayed", "rows", "card = 'c2' and total = 5", "--local-dir", local_dir)
    assert by_name.stdout == result.stdout
    assert f"job 'replayed' is that of {app}, which has changed since that start\n" in by_name.stderr
    # The program runs where it was started, and a path is meant from here.
    monkeypatch.chdir(tmp_path / "in")
    lost = strandline("why", "replayed", "rows", "card = 'c2'", "--from", "./sp", "--local-dir", local_dir)
    assert f"{tmp_path}/in/sp" in lost.stderr
    assert (
        "what it comes of\n"
        "  epoch 2, operator 'totals' (Total), key 'c2', on_event Record(card='c2', amount=3)\n"
        "    state {'total': 2, 'seen': [2]} to {'total': 5, 'seen': [2, 3]}\n"
        "    gave {'card': 'c2', 'total': 5}\n"
        "    epoch 2, source: {'card': 'c2', 'amount': 3}\n"
    ) in result.stdout
    assert "  by    on_event Record(card='c2', amount=3)" in result.stdout
    assert "  from  {'total': 2, 'seen': [2]}\n  to    {'total': 5, 'seen': [2, 3]}\n" in result.stdout
    result = strandline("why", app, "rows", "card = 'c2'", "--from", "1", "--json", *args)
    (data,) = result.json
    assert [each["row"] for each in data["causes"][0]["causes"]] == [{"card": "c2", "amount": 3}]
    assert (data["row"], data["matches"], data["epoch"]) == ({"card": "c2", "total": 5}, 2, 2)
    assert json.dumps(data["history"][0]["event"]) == '{"card": "c2", "amount": 3}'
    result = strandline("why", app, "rows", "total = 2", "--from", "1", *args)
    assert result.code == 1
    assert "no row of 'rows' matches in the epochs 2 to 3" in result.stderr
    assert "an older row cannot be explained" in result.stderr
