"""Aggregates that are sums, or extremes of rows that are never taken back: a state of a few numbers for each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.states import Value
from strandline.core.errors import CorruptionError
from strandline.runtime.builtin import Aggregated
from strandline.runtime.operators.aggregates.accumulators import Accumulators, FieldSpec
from strandline.runtime.operators.aggregates.grouping import Groups, valid_rows
from strandline.runtime.operators.views.bags import WEIGHT, Numbers, RowType
from strandline.runtime.operators.views.inputs import EpochOperator, output
from strandline.runtime.state.columnar import BatchKeys
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import StructType, parse_schema

TOTALS = "totals"
COUNT = "rows"
"""The first column of an accumulator: the number of a key's rows."""


class Totals(EpochOperator):
    """The accumulator of each key; its columns but the number of rows are the result.

    A row of the input has the key, the number of the stream's rows that it stands for, and an accumulator: Spark may
    have aggregated rows before. `counted` names for each column the one with the number of its values that are not
    null; where that is 0, the result is null. `is_whole`: there is one key, and it has a result without rows, too.
    Spark has made one NaN of all those in keys, and 0.0 of -0.0.
    """

    def __init__(
        self,
        keys: StructType,
        fields: Sequence[FieldSpec],
        counted: Sequence[str],
        aggregated: Aggregated | None = None,
        *,
        is_whole: bool = False,
    ) -> None:
        super().__init__()
        self._keys = keys.names
        self._fields, self._counted, self._is_whole = list(fields), list(counted), is_whole
        self._columns = ", ".join(f"{field.name}: {field.ddl}" for field in fields)
        self.own_aggregated = aggregated
        self.own_states = {TOTALS: Value(f"struct<{self._columns}>")}

    def open(self) -> None:
        """Prepare what cannot be sent to another process."""
        self._accumulators = Accumulators(self._fields, ())
        self._kind = RowType(parse_schema(self._columns))

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        state, count = vars(self)[TOTALS], len(keys)
        stood_for, *added = columns[len(self._keys) :]
        self.source_rows += pc.sum(stood_for).as_py() - len(of_row)
        stored = state.get_many(keys)
        known = valid_rows(stored)
        before = stored.take(pa.array(known)).flatten()
        both = [
            pa.concat_arrays([old, new]) for old, new in zip(before, self._accumulators.conform(added), strict=True)
        ]
        after = self._accumulators.merge(both, Groups(np.append(known, of_row), count))
        rows = after[0].to_numpy(zero_copy_only=False)
        if rows.min() < 0 and self.ttl_ms is None:
            raise CorruptionError(f"operator '{scope.uid}': more rows of a key were taken back than it has")
        values = pa.StructArray.from_arrays(after, fields=self._accumulators.arrow_fields)
        is_changed = np.ones(count, bool)
        bits = [self._kind.comparable(each.take(pa.array(known))) for each in (stored, values)]
        is_changed[known] = ~_equal(bits[0], bits[1], len(known))
        changed = self._written(np.flatnonzero(is_changed), count)
        if not len(changed):
            return None
        has = np.ones(count, bool) if self._is_whole else rows > 0
        state.put_many(keys.take(changed), values.take(pa.array(changed, mask=~has[changed])))
        had = stored.is_valid().to_numpy(zero_copy_only=False)
        results_before, results_after = self._results(stored), self._results(values)
        # A key's number of rows may have changed, and no result.
        differs = ~(had & has & _equal(results_before, results_after, count)) & is_changed
        old, new = np.flatnonzero(had & differs), np.flatnonzero(has & differs)
        if not len(old) and not len(new):
            return None
        pairs = [
            pa.concat_arrays([one.take(pa.array(old)), other.take(pa.array(new))])
            for one, other in zip(results_before, results_after, strict=True)
        ]
        names = [*self._keys, *(field.name for field in self._fields[1:]), WEIGHT]
        signs = np.append(np.full(len(old), -1), np.full(len(new), 1))
        return output(names, [*keys.take(np.append(old, new)).columns, *pairs], signs)

    def _results(self, accumulators: pa.Array) -> list[pa.Array]:
        """Return the columns of the result."""
        by_name = dict(zip((field.name for field in self._fields), accumulators.flatten(), strict=True))
        columns = []
        for field, counted in zip(self._fields[1:], self._counted, strict=True):
            column = by_name[field.name]
            if counted:
                column = pc.if_else(pc.equal(by_name[counted], 0), pa.scalar(None, column.type), column)
            columns.append(column)
        return columns


def _equal(ones: Sequence[pa.Array], others: Sequence[pa.Array], count: int) -> Numbers:
    """Return for each place whether all columns are equal there; null equals null, and NaN NaN."""
    equal: Numbers = np.ones(count, bool)
    for one, other in zip(ones, others, strict=True):
        same = pc.fill_null(pc.equal(one, other), False)
        same = pc.or_(same, pc.and_(pc.is_null(one), pc.is_null(other)))
        if pa.types.is_floating(one.type):
            nans = (pc.fill_null(pc.is_nan(column), False) for column in (one, other))
            same = pc.or_(same, pc.and_(*nans))
        equal &= same.to_numpy(zero_copy_only=False)
    return equal
