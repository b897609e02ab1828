"""Calls of stateless Python functions on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.api.badrecords import DEAD_LETTER, DEAD_LETTERS, FAIL, OnError
from strandline.core.errors import NullKeyError, UserCodeError
from strandline.core.failure import shortened
from strandline.runtime.output_rows import rows_of
from strandline.runtime.task.badrows import bad_rows, values_at, without_bad
from strandline.runtime.task.deadletters import dead_letter_row, is_event_error, kind_and_place, reason_of
from strandline.runtime.task.outputs import RawOutput
from strandline.runtime.task.usererrors import step_error
from strandline.types.columns import to_python
from strandline.types.datatypes import StructType, parse_schema
from strandline.types.records import record_type

Report = Callable[[int, str], None]
"""Called at the end of a task in which rows failed, with their number and the last one's error."""


@dataclass(frozen=True)
class RowFunction:
    """Calls a function for each row and builds Arrow batches of the rows that it returns.

    With dead letters, it yields one stream of rows and dead letters, as keepers do, and a column tells them apart.
    """

    function: Callable[[Any], Iterable[Any] | None]
    input_schema: str
    output_schema: str
    hidden: int = 0
    """The number of columns at the end that the function does not see. They are copied to the rows that it returns."""
    step: str = "flat_map"
    """The name of the user's method."""
    on_error: OnError = FAIL
    name: str = ""
    """The operator's name in dead letters."""
    time_at: int | None = None
    """The negative index of the hidden column with the row's time, if there is one."""
    report: Report | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on batches of rows, as mapInArrow passes them."""
        schema = parse_schema(self.input_schema)
        fields = schema.fields
        make = record_type([field.name for field in fields])._make
        sides = {DEAD_LETTERS: DEAD_LETTER} if self.on_error.has_dead_letters else {}
        outputs = RawOutput("", self.output_schema, sides, timed=False, step=self.step)
        bad = None if self.on_error.fails else BadRows(self)
        for batch in batches:
            if bad is not None:
                batch = bad.begin(batch, schema)
            records = list(map(make, zip(*self._values(batch.columns[: len(fields)], schema), strict=True)))
            rows, input_rows = self._run(records, outputs, bad)
            try:
                built = outputs.from_rows(rows, ()) if rows else None
            except UserCodeError:
                raise
            except Exception as error:
                raise step_error(self.step, error, records[-1]) from error
            if built is not None:
                yield self._with_hidden(built, batch, input_rows)
            if bad is not None and bad.letters:
                for each in bad.letters:
                    outputs.add_side(DEAD_LETTERS, each, None)
                (built,) = outputs.take_sides()
                yield self._with_hidden(built, bad.batch, bad.input_rows)
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
        """Call the function for each record; return its rows, and for each of them the index of its record."""
        rows: list[Any] = []
        input_rows: list[int] = []
        row = None
        plain, copied = outputs.main.plain, outputs.main.copied
        if bad is not None:
            fitting = outputs.main.fitting
            for at, row in enumerate(records):
                try:
                    outs = [fitting(out) for out in rows_of(self.function(row))]
                except BaseException as error:
                    bad.record(error, row, at)
                    continue
                rows += outs
                input_rows.extend([at] * len(outs))
            return rows, input_rows
        try:
            for at, row in enumerate(records):
                for out in rows_of(self.function(row)):
                    rows.append(out if type(out) is plain else copied(out))
                if self.hidden:
                    input_rows.extend([at] * (len(rows) - len(input_rows)))
        except BaseException as error:
            raise step_error(self.step, error, row) from error
        return rows, input_rows

    def _with_hidden(self, built: pa.RecordBatch, batch: pa.RecordBatch, input_rows: list[int]) -> pa.RecordBatch:
        if not self.hidden:
            return built
        rows = pa.array(input_rows, pa.int64())
        columns = [column.take(rows) for column in batch.columns[-self.hidden :]]
        names = [*built.schema.names, *batch.schema.names[-self.hidden :]]
        return pa.RecordBatch.from_arrays([*built.columns, *columns], names=names)


class BadRows:
    """The failed rows of a task: counts them, and keeps them as dead letters if configured."""

    def __init__(self, function: RowFunction) -> None:
        self._function = function
        self.count = 0
        self.last = ""
        """The error of the last failed row, without its values."""
        self.batch: pa.RecordBatch
        """The present batch, including bad rows."""
        self.letters: list[Any] = []
        """The dead letters of this batch; `input_rows` has the index of each one's row."""
        self.input_rows: list[int] = []
        self._good_rows: list[int] = []
        """The indices in `batch` of the rows that the function is called with."""

    def begin(self, batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
        """Begin a batch; return the rows that the function can be called with."""
        self.batch, self.letters, self.input_rows = batch, [], []
        columns = batch.columns[: len(schema.fields)]
        bad = bad_rows(columns, schema, (), "")
        for each in bad:
            row = record_type(schema.names)._make(values_at(columns, schema, each.at))
            self._add(each.error.discreet, "read", each.error.message, row, each.at, None)
        is_bad = {each.at for each in bad}
        self._good_rows = [at for at in range(batch.num_rows) if at not in is_bad]
        return without_bad(batch, bad) if bad else batch

    def record(self, error: BaseException, row: Any, at: int) -> None:
        """Count a row that failed and keep it as a dead letter; raise an error that a row cannot have caused."""
        function = self._function
        failure = step_error(function.step, error, row)
        if not is_event_error(error):
            raise failure from error
        trace = failure.fields["traceback"] or None
        key = error.fields.get("key") if isinstance(error, NullKeyError) else None
        self._add(kind_and_place(error), function.step, reason_of(error), row, self._good_rows[at], trace, key)

    def _add(self, last: str, step: str, reason: str, row: Any, at: int, trace: str | None, key: Any = None) -> None:
        function = self._function
        self.count += 1
        self.last = last
        if function.on_error.has_dead_letters:
            time_us = None if function.time_at is None else self.batch.columns[function.time_at][at].as_py()
            reason = reason.removeprefix(f"{function.step}: ")
            self.letters.append(dead_letter_row(function.name, step, reason, key, row, time_us, trace))
            self.input_rows.append(at)


@dataclass(frozen=True)
class OneRow:
    """Wraps a function that returns a row as one that returns rows."""

    function: Callable[[Any], Any]

    def __call__(self, row: Any) -> list[Any]:
        return [self.function(row)]
