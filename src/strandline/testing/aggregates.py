"""Built-in aggregates in a harness: each event is an accumulator of its own, as Spark makes one, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.aggregates import Aggregate
from strandline.api.windows import Global, Session, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.aggregates import functions as aggfunctions
from strandline.runtime.operators.aggregates.accumulators import Accumulators, FieldSpec, ResultSpec
from strandline.runtime.operators.aggregates.functions import OURS
from strandline.runtime.operators.aggregates.windows import WindowedAggregation
from strandline.runtime.operators.windows.operator import Rules
from strandline.testing.partials import Part, make_result
from strandline.testing.plans import Before, Planned, Prepared, check_timed
from strandline.testing.rows import Rows
from strandline.types.datatypes import Field, LongType, StructType, parse_schema


def agg(results: Mapping[str, Aggregate] | None = None, /, **more: Aggregate) -> Aggregated:
    """Compute built-in aggregates of all events so far, as `KeyedStream.agg` does; those of windows, see `window`.

    They are over columns of the stream: an SQL expression would be Spark's to compute.

    >>> import strandline as sl
    >>> from strandline.testing import Harness, agg
    >>> spent = agg(n=sl.agg.count(), total=sl.agg.sum("amount"))
    >>> with Harness(spent, schema="user string, amount int", key="user") as h:
    ...     first = h.push(("ann", 5), ("bob", 7), ("ann", 1))
    ...     second = h.push(("ann", 2))
    >>> second
    [Record(user='ann', n=3, total=8)]
    """
    return Aggregated(None, Rules(), aggfunctions.named(results, more))


@dataclass(frozen=True, slots=True)
class Aggregated(Prepared):
    """Built-in aggregates, of windows or of everything so far."""

    kind: WindowKind | None
    rules: Rules
    given: Mapping[str, Aggregate]

    def plan(self, schema: StructType, keys: Sequence[str], uid: str, *, timed: bool) -> Planned:
        """Return the operator on a stream, and how its events become accumulators."""
        kind, rules = self.kind, self.rules
        aggfunctions.check(kind, rules, keys, self.given, uid)
        if rules.late is not None:
            raise ConfigurationError(
                f"operator '{uid}': late= was given, and late events of built-in aggregates are Spark's to find",
                hint="leave it out here: the harness's late_rows says how many there were",
            )
        if kind is not None:
            check_timed(kind, rules, timed=timed)
        parts: list[Part] = []
        fields: list[FieldSpec] = []
        results: list[ResultSpec] = []
        for name, aggregate in self.given.items():
            result = make_result(name, aggregate, schema, uid)
            columns = [f"{OURS}_partial_{len(parts) + at}" for at in range(len(result.parts))]
            parts += result.parts
            fields += [FieldSpec(at, part.type.ddl, part.merge) for at, part in zip(columns, result.parts, strict=True)]
            results.append(ResultSpec(name, result.type.ddl, aggregate.kind, tuple(columns), aggregate.ranks))
        accumulators = Accumulators(fields, results)
        key_fields = StructType(tuple(schema.fields[schema.names.index(key)] for key in keys))
        plan = aggfunctions.plan(kind, rules, key_fields, accumulators)
        times = _times_of(kind, rules, plan.operator)
        partials = Partials([schema.names.index(key) for key in keys], times, parts)
        reads = StructType((*key_fields.fields, *times.fields, *parse_schema(accumulators.ddl).fields))
        return Planned(plan.operator, plan.output, {}, Before(reads.ddl, partials))


class Times:
    """What an operator is told of how many events a row is, and of their times: nothing but the number."""

    names: Sequence[str] = ("rows",)
    are_needed = False
    """Whether events without a time are left out."""

    @property
    def fields(self) -> list[Field]:
        """Return the columns."""
        return [Field(f"{OURS}_{name}", LongType()) for name in self.names]

    def columns(self, n: int, at_us: pa.Array | None) -> list[pa.Array]:
        """Return the values of some events."""
        return [pa.array(np.ones(n, np.int64))]


class Panes(Times):
    """The end of each event's pane, and the number."""

    names = ("pane", "rows")
    are_needed = True

    def __init__(self, operator: WindowedAggregation) -> None:
        self._operator = operator

    def columns(self, n: int, at_us: pa.Array | None) -> list[pa.Array]:
        """Return the values of some events."""
        assert at_us is not None
        return [pa.array(self._operator.pane_of(at_us.to_numpy())), *super().columns(n, at_us)]


class Spans(Times):
    """The number, and the times of the first and the last event."""

    names = ("rows", "first", "last")
    are_needed = True

    def columns(self, n: int, at_us: pa.Array | None) -> list[pa.Array]:
        """Return the values of some events."""
        return [*super().columns(n, at_us), at_us, at_us]


def _times_of(kind: WindowKind | None, rules: Rules, operator: object) -> Times:
    if kind is None or isinstance(kind, Global) or rules.processing:
        return Times()
    if isinstance(kind, Session):
        return Spans()
    assert isinstance(operator, WindowedAggregation)
    return Panes(operator)


class Partials:
    """Makes accumulators of events, one of each."""

    def __init__(self, key_at: Sequence[int], times: Times, parts: Sequence[Part]) -> None:
        self._key_at = list(key_at)
        self._times = times
        self._parts = list(parts)

    def __call__(self, rows: Rows) -> Rows:
        if self._times.are_needed:
            assert rows.times is not None
            rows = rows.only(pc.is_valid(rows.times))
        n = len(rows.columns[0])
        keys = [rows.columns[at] for at in self._key_at]
        made = [part.make(rows.columns, n) for part in self._parts]
        return Rows([*keys, *self._times.columns(n, rows.times), *made], rows.times, rows.fired, rows.origins)
