"""Stateless Python functions on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.api.badrecords import DEAD_LETTER, DEAD_LETTERS, FAIL, OnError
from strandline.core.errors import NullKeyError, UserCodeError
from strandline.core.failure import shortened
from strandline.runtime.output_rows import rows_of
from strandline.runtime.task.badrows import bad_rows, values_at, without
from strandline.runtime.task.deadletters import is_the_events, kind_and_place, letter, reason_of
from strandline.runtime.task.outputs import RawOutput
from strandline.runtime.task.usererrors import step_error
from strandline.types.columns import to_python
from strandline.types.datatypes import StructType, parse_schema
from strandline.types.records import record_type

Report = Callable[[int, str], None]
"""Hears at the end of a task, if some rows failed, how many, and with what the last one did."""


@dataclass(frozen=True)
class RowFunction:
    """Calls a function for each row and builds Arrow batches of what it gives.

    With dead letters, it gives rows as keepers do: both outputs in one, told apart by a column.
    """

    function: Callable[[Any], Iterable[Any] | None]
    input_schema: str
    output_schema: str
    hidden: int = 0
    """How many columns at the end the function does not see: what it gives for a row keeps them."""
    step: str = "flat_map"
    """What users call it."""
    on_error: OnError = FAIL
    name: str = ""
    """What dead letters call it."""
    time_at: int | None = None
    """Which of the hidden columns is the row's time, counted from the end, if there is one: -1 is the last."""
    report: Report | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on batches of rows, as mapInArrow gives them."""
        schema = parse_schema(self.input_schema)
        fields = schema.fields
        make = record_type([field.name for field in fields])._make
        sides = {DEAD_LETTERS: DEAD_LETTER} if self.on_error.gives else {}
        outputs = RawOutput("", self.output_schema, sides, timed=False, step=self.step)
        bad = None if self.on_error.fails else BadRows(self)
        for batch in batches:
            if bad is not None:
                batch = bad.begin(batch, schema)
            records = list(map(make, zip(*self._values(batch.columns[: len(fields)], schema), strict=True)))
            rows, came_of = self._run(records, outputs, bad)
            try:
                built = outputs.from_rows(rows, ()) if rows else None
            except UserCodeError:
                raise
            except Exception as error:
                raise step_error(self.step, error, records[-1]) from error
            if built is not None:
                yield self._with_hidden(built, batch, came_of)
            if bad is not None and bad.letters:
                for each in bad.letters:
                    outputs.add_side(DEAD_LETTERS, each, None)
                (built,) = outputs.take_sides()
                yield self._with_hidden(built, bad.batch, bad.came_of)
        if bad is not None and bad.count and self.report is not None:
            self.report(bad.count, bad.last)

    def _values(self, columns: Sequence[pa.Array], schema: StructType) -> list[list[Any]]:
        try:
            return [to_python(column, field.type) for column, field in zip(columns, schema.fields, strict=True)]
        except UserCodeError:
            bad, *_ = bad_rows(columns, schema, (), "")
            row = shortened(repr(record_type(schema.names)._make(values_at(columns, schema, bad.at))))
            message = f"{self.step}: {bad.error.message}, in the row {row}"
            discreet = f"{self.step}: {bad.error.discreet}"
            raise UserCodeError(message, hint=bad.error.hint, discreet=discreet, event=row) from None

    def _run(self, records: Sequence[Any], outputs: RawOutput, bad: BadRows | None) -> tuple[list[Any], list[int]]:
        """Call the function for each record; return what it gives, and of which record each row came."""
        rows: list[Any] = []
        came_of: list[int] = []
        row = None
        plain, taken = outputs.main.plain, outputs.main.taken
        if bad is not None:
            fitting = outputs.main.fitting
            for at, row in enumerate(records):
                try:
                    found = [fitting(out) for out in rows_of(self.function(row))]
                except BaseException as error:
                    bad.bear(error, row, at)
                    continue
                rows += found
                came_of.extend([at] * len(found))
            return rows, came_of
        try:
            for at, row in enumerate(records):
                for out in rows_of(self.function(row)):
                    rows.append(out if type(out) is plain else taken(out))
                if self.hidden:
                    came_of.extend([at] * (len(rows) - len(came_of)))
        except BaseException as error:
            raise step_error(self.step, error, row) from error
        return rows, came_of

    def _with_hidden(self, built: pa.RecordBatch, batch: pa.RecordBatch, came_of: list[int]) -> pa.RecordBatch:
        if not self.hidden:
            return built
        rows = pa.array(came_of, pa.int64())
        columns = [column.take(rows) for column in batch.columns[-self.hidden :]]
        names = [*built.schema.names, *batch.schema.names[-self.hidden :]]
        return pa.RecordBatch.from_arrays([*built.columns, *columns], names=names)


class BadRows:
    """The rows of a task that fail: borne, counted, and kept as dead letters if they are to be."""

    def __init__(self, function: RowFunction) -> None:
        self._function = function
        self.count = 0
        self.last = ""
        """What the last one failed with, without anything of the row itself."""
        self.batch: pa.RecordBatch
        """The rows that are looked at, bad ones among them."""
        self.letters: list[Any] = []
        """Those of this batch, each with its place in it."""
        self.came_of: list[int] = []
        self._places: list[int] = []

    def begin(self, batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
        """Begin with a batch; return the rows that the function can be called with."""
        self.batch, self.letters, self.came_of = batch, [], []
        columns = batch.columns[: len(schema.fields)]
        found = bad_rows(columns, schema, (), "")
        for each in found:
            row = record_type(schema.names)._make(values_at(columns, schema, each.at))
            self._note(each.error.discreet, "read", each.error.message, row, each.at, None)
        is_bad = {each.at for each in found}
        self._places = [at for at in range(batch.num_rows) if at not in is_bad]
        return without(batch, found) if found else batch

    def bear(self, error: BaseException, row: Any, at: int) -> None:
        """Count a row that failed and keep it as a dead letter; raise what is no row's error."""
        function = self._function
        said = step_error(function.step, error, row)
        if not is_the_events(error):
            raise said from error
        trace = said.fields["traceback"] or None
        key = error.fields.get("key") if isinstance(error, NullKeyError) else None
        self._note(kind_and_place(error), function.step, reason_of(error), row, self._places[at], trace, key)

    def _note(self, last: str, step: str, reason: str, row: Any, at: int, trace: str | None, key: Any = None) -> None:
        function = self._function
        self.count += 1
        self.last = last
        if function.on_error.gives:
            time_us = None if function.time_at is None else self.batch.columns[function.time_at][at].as_py()
            reason = reason.removeprefix(f"{function.step}: ")
            self.letters.append(letter(function.name, step, reason, key, row, time_us, trace))
            self.came_of.append(at)


@dataclass(frozen=True)
class OneRow:
    """Makes a function that returns a row one that returns rows."""

    function: Callable[[Any], Any]

    def __call__(self, row: Any) -> list[Any]:
        return [self.function(row)]
