"""Rows as text: what `state show` writes, `state patch --rows` reads, of every kind of state and every type."""

from __future__ import annotations

import io
import json
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.cli.rowfiles import rows_in
from strandline.cli.rows import print_rows
from strandline.core.errors import StateTypeError
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import rows_of
from tests.snapshot.strategies import Stored, list_states, pane_states, timer_states, value_states
from tests.soak import examples

STATES: Any = st.one_of(
    value_states(), timer_states(), list_states().map(lambda made: made[0]), pane_states().map(lambda made: made[0])
)


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
@given(STATES)
@examples(100)
def test_rows_that_are_shown_are_read_again(form: str, stored: Stored) -> None:
    codec = rows_of(stored.operator, stored.state)
    rows = codec.decode(stored.entries)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"rows.{form}")
        if form == "parquet":
            with redirect_stdout(io.StringIO()):
                print_rows(rows.schema, [rows], json=False, csv=False, parquet=path)
        else:
            with path.open("w", encoding="utf-8", newline="") as file, redirect_stdout(file):
                print_rows(rows.schema, [rows], json=form == "json", csv=form == "csv", parquet=None)
        found = list(rows_in(path, stored.operator, stored.state)(Path(directory)))
    assert [entry for batch in found for entry in codec.encode(batch)] == codec.encode(rows)


TIMERS = OperatorInfo(
    uid="op", parallelism=1, max_parallelism=4, key_schema="k string", backend="memory",
    states=[StateInfo(name="timers.event", kind="timers", value_type="")], partitions=[],
)  # fmt: skip


def times_of_file(path: Path, *texts: str) -> list[int]:
    path.write_text("".join(json.dumps({"k": "a", "time": text}) + "\n" for text in texts), encoding="utf-8")
    batches = rows_in(path, TIMERS, TIMERS.states[0])(path.parent)
    return [at_us for batch in batches for at_us in batch.column("time").view("int64").to_pylist()]


def test_times_are_read_as_what_they_say_and_nothing_else(tmp_path: Path) -> None:
    path, noon_us = tmp_path / "timers.json", 1_769_860_800_000_000
    same = ["2026-01-31 12:00:00Z", "20260131T120000", "2026-01-31T14:00:00+02:00"]
    assert times_of_file(path, *same) == [noon_us] * 3
    assert times_of_file(path, "10000-01-01 00:00:00Z") == [253_402_300_800_000_000]
    for wrong in ("NaT", "now", "12", "300000-01-01 00:00:00Z", "-290310-01-01 00:00:00", "10000-13-01 00:00:00"):
        with pytest.raises(
            StateTypeError, match=re.escape(f"line 1, column 'time' (a timestamp) does not fit: '{wrong}")
        ):
            times_of_file(path, wrong)
