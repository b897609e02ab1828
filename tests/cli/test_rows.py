"""Rows as text: what `state show` writes, `state patch --rows` reads, of every kind of state and every type."""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.cli.rowfiles import rows_in
from strandline.cli.rows import print_rows
from strandline.snapshot.rows import rows_of
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
