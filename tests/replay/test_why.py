"""The cause of an output row: its call, the events and timers of its key, and the state that they found."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.replay.why import Explanation, explain_since_oldest
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


def test_a_timer_behind_steps_of_spark(job: sl.Job) -> None:
    found = explain(job, "shown", "name = 'A'")
    assert (found.matches, found.row) == (2, {"name": "A", "twice": 6})
    assert (found.operator, found.function, found.key) == ("silent", "Silent", "a")
    assert found.call is not None
    assert (found.call.method, found.call.event) == ("on_timer", START + dt.timedelta(seconds=11))
    assert [(each.call, each.before, each.after) for each in found.history] == [
        ("on_event", {"last": 0}, {"last": 1}), ("on_event", {"last": 1}, {"last": 3}), ("on_timer", {"last": 3}, {"last": 3}),
    ]  # fmt: skip
    assert found.history[-1].rows == (("a", 3),)


def test_an_event_that_gave_a_row_of_a_side_output(job: sl.Job) -> None:
    found = explain(job, "large", "sum >= 100 and card = 'c'")
    assert (found.matches, found.row) == (1, {"card": "c", "sum": 124})
    assert found.call is not None
    assert (found.call.method, found.call.event.amount) == ("on_event", 120)
    assert [each.before["last"] for each in found.history] == [0, 4]


@pytest.mark.long
def test_results_of_built_in_operators(job: sl.Job) -> None:
    found = explain(job, "tens", "card = 'a'")
    assert (found.row["amount"], found.operator, found.key, found.call) == (4, "tens", "a", None)
    assert [len(each.after["results"]) for each in found.history] == [1, 1, 0]
    assert [[event["amount"] for event in each.event] for each in found.history] == [[1], [3], []]
    found = explain(job, "unnamed", "amount = 4")
    assert found.why_not == "the row has no column card, a key of 'tens'"


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


def test_the_command(spark: Any, strandline: Command, tmp_path: Path, local_dir: Path) -> None:
    run = totals(spark, tmp_path, local_dir, Total()).start(spark)
    for number in range(3):
        write(tmp_path / "in", f"{number}.json", [{"card": f"c{n}", "amount": n + number} for n in range(3)])
        run.process_all_available()
        run.checkpoint()
    run.stop()
    app, args = tmp_path / "app.py", ["--", tmp_path, local_dir]
    app.write_text(PROGRAM)
    result = strandline("why", app, "rows", "card = 'c2' and total = 5", *args)
    assert result.code == 0, result.stderr
    assert "  by    on_event Record(card='c2', amount=3)" in result.stdout
    assert "  from  {'total': 2, 'seen': [2]}\n  to    {'total': 5, 'seen': [2, 3]}\n" in result.stdout
    result = strandline("why", app, "rows", "card = 'c2'", "--from", "1", "--json", *args)
    (data,) = result.json
    assert (data["row"], data["matches"], data["epoch"]) == ({"card": "c2", "total": 5}, 2, 2)
    assert json.dumps(data["history"][0]["event"]) == '{"card": "c2", "amount": 3}'
    result = strandline("why", app, "rows", "total = 2", "--from", "1", *args)
    assert result.code == 1
    assert "no row of 'rows' is so in the epochs 2 to 3" in result.stderr
    assert "an older row cannot be explained" in result.stderr
