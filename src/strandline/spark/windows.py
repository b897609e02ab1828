"""Keyed streams cut into windows: functions of a window's events, and the layout of what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from strandline.api.windows import WINDOW_END, WINDOW_START, Global, Session, Sliding, Tumbling, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.format.types import Field, StructType, parse_schema, parse_type, quoted
from strandline.runtime.contents import Constant, Contents, FirstOr, Folding, Keeping, Picked, check_value
from strandline.runtime.sessions import SessionWindows
from strandline.runtime.windowing import GlobalWindows, Rules, TimeWindows, WindowOperator
from strandline.spark.aggregation import Aggregates
from strandline.spark.times import TIME

if TYPE_CHECKING:
    from strandline.spark.stream import KeyedStream, Stream


@dataclass(frozen=True)
class WindowedStream(Aggregates):
    """A keyed stream cut into windows: the place for functions of a window's events.

    What they give are rows of the key's columns, `window_start`, `window_end` (neither for Global windows) and the
    columns of the result. A row's time is the last one in its window, so that a following window of the same size
    takes it in.
    """

    keyed: KeyedStream
    kind: WindowKind
    rules: Rules = field(default_factory=Rules)

    def _cut(self) -> tuple[KeyedStream, WindowKind, Rules]:
        return self.keyed, self.kind, self.rules

    def fold(
        self,
        output: str,
        initial: Any,
        function: Callable[[Any, Any], Any],
        uid: str,
        *,
        merge: Callable[[Any, Any], Any] | None = None,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Fold each window's events into one value: `function(value, event)` gives the next value.

        `output` is the DDL of the result's columns. Of one column, the value is what stands in it; of several, it is a
        row of them: read by name, given as a tuple or dict. Session windows need `merge(value, value)` too.

        >>> hours = sales.window(Tumbling("1h"))
        >>> totals = hours.fold("total bigint", 0, lambda total, e: total + e.amount, uid="totals")
        """
        fields = parse_schema(output).fields
        value_type = fields[0].type.ddl if len(fields) == 1 else parse_schema(output).ddl
        check_value(value_type, initial, f"fold '{uid}': the initial value does not fit {output!r}")
        folding = Folding(value_type, _names(fields), create=Constant(initial), add=function, merge=merge)
        return self._run("fold", folding, fields, uid, name, max_parallelism)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        uid: str,
        *,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Reduce each window's events to one: `function(event, event)` gives a row of the same columns.

        >>> top = sales.window(Tumbling("1h")).reduce(lambda a, b: a if a.amount >= b.amount else b, uid="top")
        """
        schema = self._input(uid)
        places = [at for at, field in enumerate(schema.fields) if field.name not in self.keyed.keys]
        fields = [schema.fields[at] for at in places]
        if not fields:
            raise ConfigurationError(f"reduce '{uid}': the stream has no columns beside the key's to reduce")
        folding = Folding(
            schema.ddl, _names(fields), create=Constant(None), add=FirstOr(function), merge=function,
            result=Picked(places),
        )  # fmt: skip
        return self._run("reduce", folding, fields, uid, name, max_parallelism)

    def aggregate(
        self,
        type: str,
        *,
        create: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any] = lambda accumulator: accumulator,
        merge: Callable[[Any, Any], Any] | None = None,
        output: str,
        uid: str,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Aggregate each window's events: `create()`, `add(acc, event) -> acc`, `result(acc)`, as sl.Aggregating does.

        `type` is the accumulator's; the result is the value of the one column of `output`, or a tuple or dict of
        several. Session windows need `merge(acc, acc) -> acc` too.

        >>> mean = sales.window(Session("10 min")).aggregate(
        ...     "struct<n: bigint, total: bigint>", create=lambda: (0, 0),
        ...     add=lambda acc, e: (acc.n + 1, acc.total + e.amount),
        ...     merge=lambda a, b: (a.n + b.n, a.total + b.total), result=lambda acc: acc.total / acc.n,
        ...     output="mean double", uid="mean")
        """
        fields = parse_schema(output).fields
        value_type = parse_type(type).ddl
        folding = Folding(value_type, _names(fields), create=create, add=add, merge=merge, result=result)
        return self._run("aggregate", folding, fields, uid, name, max_parallelism)

    def process(
        self,
        function: Callable[[Any, Any, list[Any]], Iterable[Any] | None],
        output: str,
        uid: str,
        *,
        name: str | None = None,
        max_parallelism: int | None = None,
    ) -> Stream:
        """Keep each window's events and call `function(key, window, events)` with all of them.

        They come in the order of the epochs they came in; within one as key_by() has them. `window` has `start` and
        `end`; it is None for Global windows. The function yields or returns rows, dicts or tuples, of the columns in
        `output`. It may be called more than once for a window: with `early`, with late events, after a failure.

        >>> def top3(key, window, events):
        ...     for event in sorted(events, key=lambda e: -e.amount)[:3]:
        ...         yield {"amount": event.amount}
        >>> best = sales.window(Tumbling("1h")).process(top3, output="amount bigint", uid="top3")
        """
        fields = parse_schema(output).fields
        keeping = Keeping(self._input(uid).ddl, _names(fields), function)
        return self._run("process", keeping, fields, uid, name, max_parallelism)

    def output_schema(self, fields: Iterable[Field], uid: str) -> str:
        """Return the DDL of results: the key's columns, the window's, then these."""
        by_name = {field.name: field for field in self._input(uid).fields}
        parts = [f"{quoted(key)} {by_name[key].type.ddl}" for key in self.keyed.keys]
        if not isinstance(self.kind, Global):
            parts += [f"{WINDOW_START} timestamp", f"{WINDOW_END} timestamp"]
        taken = [*self.keyed.keys, *([] if isinstance(self.kind, Global) else [WINDOW_START, WINDOW_END])]
        for column in fields:
            if column.name in taken:
                raise ConfigurationError(
                    f"operator '{uid}': the result's column '{column.name}' has a name of the key's or the window's",
                    hint="rename it, or select other columns before the window",
                )
            parts.append(f"{quoted(column.name)} {column.type.ddl}")
        return ", ".join(parts)

    def _run(
        self, what: str, contents: Contents, fields: Iterable[Field], uid: str, name: str | None, most: int | None
    ) -> Stream:
        """Add the operator to the pipeline."""
        if isinstance(self.kind, Session) and isinstance(contents, Folding) and not contents.can_merge:
            raise ConfigurationError(
                f"{what} '{uid}': session windows can become one, and there is no `merge`",
                hint="give it merge=function of two values, which returns the value of both windows' events",
            )
        late = self.rules.late
        return self.keyed.process(
            operator_of(self.kind, contents, self.rules),
            output=self.output_schema(fields, uid),
            uid=uid,
            sides=None if late is None else {late: self._input(uid).ddl},
            name=name or f"{type(self.kind).__name__}.{what}",
            max_parallelism=most,
        )

    def _input(self, uid: str) -> StructType:
        return parse_schema(self.keyed.input_schema(f"operator '{uid}'"))


def operator_of(kind: WindowKind, contents: Contents, rules: Rules) -> WindowOperator:
    """Return the process function of a kind of window."""
    if isinstance(kind, Session):
        return SessionWindows(kind, contents, rules)
    if isinstance(kind, Global):
        return GlobalWindows(kind, contents, rules)
    return TimeWindows(kind, contents, rules)


def windowed(
    keyed: KeyedStream,
    kind: WindowKind,
    lateness: str,
    late: str | None,
    early: str | None,
    time: Literal["event", "processing"],
) -> WindowedStream:
    """Check what window() was given."""
    if not isinstance(kind, Tumbling | Sliding | Session | Global):
        raise ConfigurationError(
            f"window() was given {kind!r}, expected a kind of window",
            hint='write window(sl.Tumbling("10s")), or take Sliding, Session or Global',
        )
    if time not in ("event", "processing"):
        raise ConfigurationError(f"window: time is {time!r}, expected 'event' or 'processing'")
    lateness_us = parse_duration_ms(lateness, "window: lateness") * 1000
    early_us = 0 if early is None else parse_duration_ms(early, "window: early") * 1000
    if early is not None and not early_us:
        raise ConfigurationError(f"window: early is {early!r}, expected more than 0")
    in_event_time = time == "event" and not isinstance(kind, Global)
    if not in_event_time and (lateness_us or late is not None):
        raise ConfigurationError(
            f"window: {type(kind).__name__} windows that do not follow event time have no late events",
            hint="leave lateness= and late= out",
        )
    if in_event_time and TIME not in keyed.hidden:
        raise ConfigurationError(
            f"window: {type(kind).__name__} windows need the events' times, and the stream has no watermark",
            hint='call watermark("column") before key_by, or window(…, time="processing")',
        )
    rules = Rules(lateness_us, early_us, late, processing=time == "processing", several_keys=len(keyed.keys) > 1)
    return WindowedStream(keyed, kind, rules)


def _names(fields: Iterable[Field]) -> list[str]:
    return [field.name for field in fields]
