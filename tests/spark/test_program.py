"""`strandline run` in this process: a program goes on from a copy of its checkpoint; an error of its function ends it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from strandline.cli import driver
from tests.cli.conftest import Command, strandline
from tests.spark import small
from tests.spark.harness import keepers

__all__ = ["strandline"]

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import strandline as sl
from tests.spark import small

class Payments(sl.KeyedProcess):
    seen = sl.Value("bigint", default=0)

    def on_event(self, event, ctx):
        self.seen.value += 1
        if event.v < 0:
            raise ValueError(f"payment {self.seen.value} is a negative payment")
        yield (ctx.key, self.seen.value)

base = Path(sys.argv[1])
stream = sl.stream(small.source(SparkSession.builder.getOrCreate(), base / "in"))
sink = sl.sinks.files(str(base / "out"), format="json")
job = small.job(stream, base, base / "l", sink=sink, process=Payments(), trigger="available-now")
job.start(SparkSession.active()).await_termination()
"""


def test_a_program_goes_on_from_a_copy_and_an_error_of_its_function_ends_it(
    spark: Any, tmp_path: Path, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whose process it is, it would have it to itself, and end the session.
    monkeypatch.setattr(
        driver, "prepare", lambda program, args: monkeypatch.setattr(sys, "argv", [str(program), *args])
    )
    monkeypatch.setattr(driver, "_stop_everything", lambda code: True)
    program, here = tmp_path / "app.py", ("--local-dir", tmp_path / "l")
    program.write_text(PROGRAM)
    small.write_rows(tmp_path / "in", 0, [("ann", "x", 1), ("bob", "x", 1), ("ann", "x", 1)])
    done = strandline("run", program, tmp_path)
    assert done.code == 0, done.stderr
    assert "strandline: job 'small': epoch 1 is the first to be done, 3 rows in" in done.stderr
    (copied,) = strandline("snapshots", "copy", tmp_path / "ck/small", tmp_path / "copy", "--native", "--json").json
    (tmp_path / "ck").rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "out")
    # Afresh, it would be her first.
    (tmp_path / "in" / "00000.json").unlink()
    small.write_rows(tmp_path / "in", 1, [("ann", "x", -5)])
    done = strandline("run", program, "--restore", copied["url"], tmp_path)
    # The message is what a user must know.
    assert done.code == 1
    assert "error: operator 'count'" in done.stderr
    assert "'ann'" in done.stderr
    assert "ValueError: payment 3 is a negative payment" in done.stderr
    assert "next step: " in done.stderr
    assert "runpy" not in done.stderr
    assert keepers(tmp_path / "l") == {}
    after = strandline("status", "small", *here, "--json")
    assert (after.code, after.json[0]["state"], after.json[0]["pid"]) == (1, "failed", os.getpid())
    # What an error says may be somebody's data: it is in the terminal alone.
    assert "on_event of Payments raised ValueError" in after.json[0]["last_failure"]
    assert "app.py, line 16" in after.json[0]["last_failure"]
    assert "small" in strandline("jobs", *here).stdout
    logged = strandline("logs", "--driver", *here, "-n", 100).stdout
    assert "on_event of Payments raised ValueError" in logged
    assert "a negative payment" not in logged + str(after.json)
