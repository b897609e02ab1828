"""Replays of jobs that were rescaled, of SQL files, and of one key's rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.cli.sqlfiles import run_file
from strandline.replay.breaks import Breaks
from strandline.replay.history import history_of
from strandline.replay.recorded import find_recorded
from strandline.replay.session import EpochReplay, Replay, jobdir_of
from tests.cli.conftest import Command, strandline
from tests.replay.programs import Total, job_of, read, totals, write

__all__ = ["strandline"]
pytestmark = pytest.mark.spark

SCHEMA = "card string, amount long, at timestamp"
SQL = """
CREATE STREAM payments (card STRING, amount BIGINT) USING files OPTIONS (path '{root}/in', format 'json');
CREATE VIEW totals AS SELECT card, count(*) AS payments, sum(amount) AS total FROM payments GROUP BY card;
CREATE SINK out USING sqlite OPTIONS (path '{root}/out.db', table 'totals', key 'card', create 'true');
INSERT INTO out TABLE totals;
SET name = 'sums'; SET trigger = 'available-now'; SET parallelism = 2; SET local_dir = '{local_dir}';
SET checkpoints.directory = '{root}/ck'; SET checkpoints.retain = 10;
"""


def rows(number: int) -> list[dict[str, Any]]:
    return [{"card": f"c{n % 5}", "amount": n + number, "at": f"2026-03-01T00:00:{10 * number:02}Z"} for n in range(20)]


def replay(job: sl.Job, start: str, **options: Any) -> Iterator[EpochReplay]:
    with Replay(job, find_recorded(jobdir_of(job), start, None, {}), Breaks(None), **options) as run:
        yield from run


@pytest.mark.long
@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_a_replay_is_rescaled_where_the_job_was(spark: Any, tmp_path: Path, local_dir: Path, backend: Any) -> None:
    """Up and down, with timers, windows and an operator of a parallelism of its own; state and order are the job's."""

    def program(sink: sl.sinks.MemorySink) -> sl.Job:
        cards = sl.stream(read(spark, tmp_path, SCHEMA)).watermark("at").key_by("card")
        added = cards.process(Total(), "card string, total bigint", uid="totals")
        tens = cards.window(sl.Tumbling("10s")).agg(amount=sl.agg.sum("amount"), uid="tens")
        most = added.key_by("card").agg(most=sl.agg.max("total"), uid="most", parallelism=1)
        job = job_of(tmp_path, local_dir, most.to(sink), tens.to(sl.sinks.noop()))
        return sl.Job(
            "replayed", sinks=[most.to(sink), tens.to(sl.sinks.noop())], checkpoints=job.checkpoints,
            settings=sl.Settings(parallelism=2, local_dir=local_dir, state_memory="128MB", backend=backend),
        )  # fmt: skip

    sink = sl.sinks.memory(name="most")
    run = program(sink).start(spark)
    for number, parallelism in enumerate((None, 3, None, 1, None)):
        if parallelism is not None:
            run.rescale(parallelism)
        write(tmp_path / "in", f"{number}.json", rows(number))
        run.process_all_available()
        run.checkpoint()
    run.stop()
    again = program(sl.sinks.memory(name="most"))
    recorded = find_recorded(jobdir_of(again), "start", None, {})
    assert {record.parallelism["totals"] for record in recorded.epochs} == {1, 2, 3}
    epochs = list(replay(again, "start"))
    compared = [each.differences for each in epochs if each.differences is not None]
    assert len(compared) >= 5
    assert not any(compared)
    given = [tuple(row.values()) for each in epochs if each.output for row in each.output.sinks["most"].to_pylist()]
    assert given == [tuple(row) for row in sink.rows]
    changes = [change.after for change in history_of(again, recorded, "totals.total", "c3")]
    assert changes == [
        sum(r["amount"] for n in range(5) for r in rows(n) if r["card"] == "c3") - left for left in _lefts()
    ]


@pytest.mark.long
def test_the_history_of_built_in_operators_has_the_events(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """Of an aggregation, whose rows Spark makes accumulators of, and of a join behind functions."""

    def program() -> sl.Job:
        cards = sl.stream(read(spark, tmp_path, SCHEMA)).watermark("at").key_by("card")
        sums = cards.agg(amount=sl.agg.sum("amount"), uid="sums")
        added = cards.process(Total(), "card string, total bigint", uid="totals")
        both = added.key_by("card").join(cards, within=("0s", "0s"), uid="both", prefixes=("", "paid_"))
        return job_of(tmp_path, local_dir, sums.to(sl.sinks.noop()), both.to(sl.sinks.noop()))

    run = program().start(spark)
    for number in range(2):
        write(tmp_path / "in", f"{number}.json", rows(number))
        run.process_all_available()
    run.stop(checkpoint=True)
    recorded = find_recorded(jobdir_of(program()), "start", None, {})
    changes = [change for change in history_of(program(), recorded, "sums", "c3") if change.event]
    assert [[event["amount"] for event in change.event] for change in changes] == [[3, 8, 13, 18], [4, 9, 14, 19]]
    changes = list(history_of(program(), recorded, "both", "c3"))
    assert [len(change.event) for change in changes] == [8, 8, 0], "four of each side, and rows without partners go"


def _lefts() -> list[int]:
    """What c3 has still to get after each of its payments."""
    amounts = [row["amount"] for number in range(5) for row in rows(number) if row["card"] == "c3"]
    return [sum(amounts[at + 1 :]) for at in range(len(amounts))]


@pytest.mark.long
def test_only_the_rows_of_a_key_run(spark: Any, strandline: Command, tmp_path: Path, local_dir: Path) -> None:
    run = totals(spark, tmp_path, local_dir).start(spark)
    for number in range(3):
        write(tmp_path / "in", f"{number}.json", [{k: row[k] for k in ("card", "amount")} for row in rows(number)])
        run.process_all_available()
        run.checkpoint()
    run.stop()
    whole = list(replay(totals(spark, tmp_path, local_dir), "1"))
    alone = list(replay(totals(spark, tmp_path, local_dir), "1", key="c2"))
    assert [each.rows_in for each in alone] == [4, 4]
    assert [each.differences for each in alone] == [None, None]
    for one, other in zip(alone, whole, strict=True):
        assert one.output is not None
        assert other.output is not None
        expected = [row for row in other.output.sinks["rows"].to_pylist() if row["card"] == "c2"]
        assert one.output.sinks["rows"].to_pylist() == expected
    app = tmp_path / "app.py"
    app.write_text(
        "import sys\nfrom pathlib import Path\nimport strandline as sl\nfrom tests.replay.programs import totals\n"
        "totals(sl.session('tests'), Path(sys.argv[1]), Path(sys.argv[2])).start().await_termination()\n"
    )
    result = strandline("replay", app, "--from", "1", "--key", "c2", "--", tmp_path, local_dir)
    assert result.code == 0, result.stderr
    assert result.stdout == "epoch 2: 4 rows; 4 to rows\nepoch 3: 4 rows; 4 to rows\n"
    assert "the state of other keys stays as in the snapshot" in result.stderr


@pytest.mark.long
def test_an_sql_file_is_replayed_and_compared_with_its_next_text(
    spark: Any, strandline: Command, tmp_path: Path, local_dir: Path
) -> None:
    program = tmp_path / "totals.sql"
    program.write_text(SQL.format(root=tmp_path, local_dir=local_dir))
    for number in range(3):
        write(tmp_path / "in", f"{number}.json", [{k: row[k] for k in ("card", "amount")} for row in rows(number)])
        run_file(program)
    result = strandline("replay", program, "--from", "start", "--json", "--check", "--output", tmp_path / "rows")
    assert result.code == 0, result.stderr
    # Spark has aggregated the rows of each card.
    assert [(each["rows_in"], each["differences"]) for each in result.json if each["batch"] >= 0] == [(5, [])] * 3
    assert (tmp_path / "rows/out").is_dir()
    new = tmp_path / "new.sql"
    query = "count(*) AS payments, sum(amount) AS total FROM payments"
    new.write_text(program.read_text().replace(query, "count(1) AS payments, sum(p.amount) AS total FROM payments p"))
    result = strandline("test", new, "--old", program, "--from", "1", "--json")
    assert result.code == 0, (result.stdout, result.stderr)
    assert [(each["sink"], each["before"], each["equal"]) for each in result.json[0]["sinks"]] == [("out", 10, True)]
    new.write_text(program.read_text().replace(query, f"{query} WHERE amount > 3"))
    result = strandline("test", new, "--from", "1")
    assert result.code == 2
    assert "which has state" in result.stderr
