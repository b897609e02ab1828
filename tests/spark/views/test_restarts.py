"""Views of a job that is stopped, started in another process, rescaled, and that loses keepers: nothing is different."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.spark.harness import eventually, settle
from tests.spark.views import app
from tests.spark.views.harness import Compared, normal
from tests.spark.views.random_lives import MATCHES, PATTERNS
from tests.spark.views.random_queries import EPOCHS, random_tables
from tests.spark.views.test_bounded import AS_OF, needs_asof
from tests.spark.views.test_match import answer

pytestmark = [pytest.mark.spark, pytest.mark.soak]
_ROOT = Path(__file__).parents[3]


def add(compared: Compared, epoch: int) -> None:
    """Add the files of an epoch."""
    for name, table in compared.tables.items():
        compared.write(name, [table.epochs[epoch]], epoch)


def test_views_go_on_in_another_process_and_at_another_parallelism(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    compared = Compared(spark, tmp_path, random_tables(app.TABLES), are_written=False)
    uids = []
    for epoch, how in enumerate((["2"], ["3", "backwards"], ["1"])):
        add(compared, epoch)
        command = [sys.executable, "-m", "tests.spark.views.app", str(tmp_path), str(local_dir), *how]
        if epoch < EPOCHS - 1:
            ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stderr[-3000:]
        else:
            app.run(spark, tmp_path, local_dir, 1, app.QUERIES)
        uids.append(json.loads((tmp_path / "uids").read_text()))
        for query in app.QUERIES:
            wanted = Counter({repr(row): n for row, n in compared.expected(query, epoch + 1).items()})
            assert app.found(tmp_path, query) == wanted, f"after run {epoch + 1}: {query}"
    assert uids[0] == uids[1] == uids[2]


@needs_asof
def test_drivers_of_views_in_event_time_are_killed(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    """Each run is killed at some moment, goes on at another parallelism, and the last one comes to the end of time."""
    rng = random.Random("drivers")
    compared = Compared(spark, tmp_path, app.timed(), are_written=False)
    killed = 0
    for epoch in range(compared.epochs):
        add(compared, epoch)
        is_last = epoch == compared.epochs - 1
        for moment in (rng.uniform(8, 16), None):
            how = [str(rng.choice([1, 2, 3])), "drain" if is_last else "timed"]
            command = [sys.executable, "-m", "tests.spark.views.app", str(tmp_path), str(local_dir), *how]
            with (tmp_path / "log").open("w") as log:
                process = subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log)
                try:
                    process.wait(moment)
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
                ended = process.wait()
            assert ended in (0, -signal.SIGKILL), (tmp_path / "log").read_text()[-3000:]
    assert killed
    asked = {query: query for query in app.TIMED} | AS_OF | MATCHES
    for query in app.TIMED:
        wanted = (
            answer(PATTERNS[query], compared.tables["orders"].until(compared.epochs), by_key=True)
            if query in PATTERNS
            else compared.expected(asked[query], compared.epochs)
        )
        assert app.found(tmp_path, query) == Counter({repr(normal(row)): n for row, n in wanted.items()}), query


def test_keepers_of_views_are_killed(spark: Any, tmp_path: Path, local_dir: Path) -> None:
    compared = Compared(spark, tmp_path, random_tables(app.TABLES), are_written=False)
    for query in app.QUERIES:
        compared.add(query)
    restart = sl.Restart(attempts=10, delay="50ms")
    with compared.job(local_dir, 2, trigger=None, restart=restart).start(spark) as run:
        for epoch in range(EPOCHS):
            add(compared, epoch)
            if epoch == 1:
                settle(run)
            keepers = [keeper for keeper in run.status().keepers if keeper.partition == epoch % 2]
            for keeper in keepers[: 1 + epoch]:
                os.kill(keeper.pid, signal.SIGKILL)
            eventually(lambda: run.status().state == "running", "it runs")
        settle(run)
        for query in app.QUERIES:
            assert compared.rows(query, run.status().epoch) == compared.expected(query, EPOCHS), query
