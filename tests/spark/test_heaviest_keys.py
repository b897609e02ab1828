"""The heaviest key of a skewed stream in the status of a running job, and nowhere in its logs, events and metrics."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import strandline as sl
from strandline.cli.main import app
from strandline.core.heavykey import HeavyKey
from strandline.keeper.paths import Places
from strandline.telemetry.figures import Figures
from strandline.telemetry.metrics import samples
from tests.spark import small
from tests.spark.harness import Case, eventually

pytestmark = pytest.mark.spark

HOT = "the-hot-card"


def users(number: int) -> list[str]:
    """Return the users of one file's rows: three in ten are one and the same."""
    return [HOT if n % 10 < 3 else f"u{number}-{n}" for n in range(1000)]


def test_a_hot_key_is_named_in_the_status_and_nowhere_else(spark: Any, case: Case, tmp_path: Path) -> None:
    stream = sl.stream(small.source(spark, tmp_path / "in"))
    job = small.job(stream, tmp_path, case.local_dir)

    numbers = count()

    def known() -> list[HeavyKey]:
        """Run one more epoch: keepers measure now and then, and tell it with the next one."""
        number, epochs = next(numbers), run.status().epochs
        small.write_rows(tmp_path / "in", number, [(user, "x", 1) for user in users(number)])
        eventually(lambda: run.status().epochs > epochs, "an epoch")
        (operator,) = run.status().operators
        return [key for key in operator.heaviest_keys if key.error < 0.1]

    with job.start(spark) as run:
        (key,) = eventually(known, "the heaviest key is known")
        assert key.key == {"user": HOT}
        # Partitions measure at different times: on a busy machine, one may know of more epochs than another.
        eventually(lambda: any(abs(key.share - 0.3) < 2 * key.error + 0.02 for key in known()), "its share is known")
        assert key.error > 0
        # A program may log its status.
        assert HOT not in repr(run.status())
        keepers = run.status().keepers
        (of_partition,) = keepers[key.partition].heaviest_keys
        assert of_partition.key == key.key
        assert of_partition.share > key.share
        assert all(each.key != key.key for each in keepers[1 - key.partition].heaviest_keys)
        shown = CliRunner().invoke(app, ["status", "small", "--json", "--local-dir", str(case.local_dir)])
        (in_json,) = json.loads(shown.stdout)["operators"]
        assert in_json["heaviest_keys"][0]["key"] == {"user": HOT}
        shown = CliRunner().invoke(app, ["top", "small", "--once", "--local-dir", str(case.local_dir)])
        assert shown.exit_code == 0
        figures = Figures("small", "", "running", 0, 0, status=run.status(), recent=run.recent())
        values = {sample.metric.name: sample for sample in samples(figures)}
        assert (
            values["strandline_operator_heaviest_key_share"].value == run.status().operators[0].heaviest_keys[0].share
        )
        assert HOT not in repr([sample.labels for sample in samples(figures)])
        assert HOT not in repr(asdict(run.recent()))
        run.rescale(3)
        # New keepers have counted nothing yet: the rows that they get from now on.
        assert all(not operator.heaviest_keys for operator in run.status().operators)
        (key,) = eventually(known, "the heaviest key is known again")
        assert key.key == {"user": HOT}
        run.stop()
    logs = [*Places(case.local_dir, "", "small").logs.iterdir()]
    assert logs
    assert [path for path in logs if HOT.encode() in path.read_bytes()] == []
