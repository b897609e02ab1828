"""Operators of windows: checks the user's rules and functions, and makes the operator and its output columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal

from strandline.api.options import OperatorOptions, with_name
from strandline.api.windows import WINDOW_END, WINDOW_START, Early, Global, Session, Sliding, Tumbling, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.plan.callables import check_function
from strandline.plan.graph import Keyed, OperatorNode
from strandline.plan.operators import process_on
from strandline.runtime.operators.windows.contents import (
    Contents,
    Folding,
    Keeping,
    check_value,
    first_or,
    reduced,
)
from strandline.runtime.operators.windows.operator import GlobalWindows, Rules, TimeWindows, WindowOperator
from strandline.runtime.operators.windows.sessions import SessionWindows
from strandline.types.datatypes import Field, StructType, TimestampType
from strandline.types.plain import identity
from strandline.types.spark_schema import SparkType, resolve_schema, resolve_type

Time = Literal["event", "processing"]


def rules_of(
    keyed: Keyed,
    kind: WindowKind,
    lateness: Duration,
    late: str | None,
    early: Duration | Early | None,
    time: Time,
    accumulate: bool = True,
) -> Rules:
    """Return the rules of windows; refuse options that do not fit together."""
    if not isinstance(kind, Tumbling | Sliding | Session | Global):
        raise ConfigurationError(
            f"window() was given {kind!r}, expected a kind of window",
            hint='write window(sl.Tumbling("10s")), or take Sliding, Session or Global',
        )
    if time not in ("event", "processing"):
        raise ConfigurationError(f"window: time is {time!r}, expected 'event' or 'processing'")
    lateness_us = parse_duration_ms(lateness, "window: lateness") * 1000
    early = _early(early)
    if not isinstance(accumulate, bool):
        raise ConfigurationError(f"window: accumulate is {accumulate!r}, expected True or False")
    if late is not None and (not isinstance(late, str) or not late.strip()):
        raise ConfigurationError(f"window: late is {late!r}, expected a name for the side output of late events")
    rules = Rules(
        lateness_us,
        0 if early is None else early.every_us,
        late=late,
        early_by_event_time=early is not None and early.time == "event",
        early_events=(early is not None and early.events) or 0,
        accumulate=accumulate,
        processing=time == "processing",
    )
    follows_event_time = not rules.processing and not isinstance(kind, Global)
    if not follows_event_time and (lateness_us or late is not None):
        raise ConfigurationError(
            f"window: {type(kind).__name__} windows that do not follow event time have no late events",
            hint="leave lateness= and late= out",
        )
    if follows_event_time and not keyed.columns.is_timed:
        raise ConfigurationError(
            f"window: {type(kind).__name__} windows need the events' times, and the stream has no watermark",
            hint='call watermark("column") before key_by, or window(…, time="processing")',
        )
    if rules.early_by_event_time and (rules.processing or not keyed.columns.is_timed):
        raise ConfigurationError(
            f"window: early is {early!r}, and "
            + ("windows follow the clock" if rules.processing else "the stream has no watermark"),
            hint='leave time="event" out: results so far then come by the clock',
        )
    return rules


def _early(early: Duration | Early | None) -> Early | None:
    if early is None or isinstance(early, Early):
        return early
    if not parse_duration_ms(early, "window: early"):
        raise ConfigurationError(f"window: early is {early!r}, expected more than 0")
    return Early(early)


# -- functions of windows


@dataclass(frozen=True)
class WindowFunction:
    """The state of a window, and the columns of its result."""

    what: str
    """The method that the user called."""
    contents: Contents
    fields: Sequence[Field]


def fold(
    output: str | SparkType,
    initial: Any,
    function: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any] | None,
    uid: str,
) -> WindowFunction:
    """Return a function that keeps one value, which each event updates."""
    check_function(f"fold '{uid}': function", function, ["value", "event"])
    if merge is not None:
        check_function(f"fold '{uid}': merge", merge, ["value", "value"])
    schema = resolve_schema(output, f"fold '{uid}': output")
    fields = schema.fields
    value_type = fields[0].type.ddl if len(fields) == 1 else schema.ddl
    output_text = output if isinstance(output, str) else schema.ddl
    check_value(value_type, initial, f"fold '{uid}': the initial value does not fit {output_text!r}")
    folding = Folding(value_type, _names(fields), create=partial(identity, initial), add=function, merge=merge)
    return WindowFunction("fold", folding, fields)


def reduce(keyed: Keyed, function: Callable[[Any, Any], Any], uid: str) -> WindowFunction:
    """Return a function that keeps one event, and reduces it with each further event."""
    schema = _events(keyed, uid)
    check_function(f"reduce '{uid}': function", function, ["event", "event"])
    places = [at for at, field in enumerate(schema.fields) if field.name not in keyed.keys]
    fields = [schema.fields[at] for at in places]
    if not fields:
        raise ConfigurationError(f"reduce '{uid}': the stream has no columns beside the key's to reduce")
    folding = Folding(
        schema.ddl,
        _names(fields),
        create=partial(identity, None),
        add=partial(first_or, function),
        merge=partial(reduced, function),
        result=itemgetter(*places),
    )
    return WindowFunction("reduce", folding, fields)


def aggregate(
    type: str | SparkType,
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    result: Callable[[Any], Any],
    merge: Callable[[Any, Any], Any] | None,
    output: str | SparkType,
    uid: str,
) -> WindowFunction:
    """Return a function that keeps an accumulator, and computes the result from it."""
    where = f"aggregate '{uid}'"
    check_function(f"{where}: create", create, [])
    check_function(f"{where}: add", add, ["accumulator", "event"])
    check_function(f"{where}: result", result, ["accumulator"])
    if merge is not None:
        check_function(f"{where}: merge", merge, ["accumulator", "accumulator"])
    fields = resolve_schema(output, f"aggregate '{uid}': output").fields
    folding = Folding(
        resolve_type(type, f"aggregate '{uid}': the accumulator's type").ddl,
        _names(fields),
        create=create,
        add=add,
        merge=merge,
        result=result,
    )
    return WindowFunction("aggregate", folding, fields)


def process(
    keyed: Keyed, function: Callable[[Any, Any, list[Any]], Any], output: str | SparkType, uid: str
) -> WindowFunction:
    """Return a function that keeps all events."""
    schema = _events(keyed, uid)
    check_function(f"process '{uid}': function", function, ["key", "window", "events"])
    fields = resolve_schema(output, f"process '{uid}': output").fields
    return WindowFunction("process", Keeping(schema.ddl, _names(fields), function), fields)


def _events(keyed: Keyed, uid: str) -> StructType:
    return keyed.columns.schema(f"operator '{uid}'")


# -- the operator


def windows_on(
    keyed: Keyed,
    kind: WindowKind,
    rules: Rules,
    function: WindowFunction,
    uid: str,
    options: OperatorOptions,
) -> OperatorNode:
    """Return the node of a function of each window's events."""
    contents, schema, keys = function.contents, _events(keyed, uid), keyed.keys
    if isinstance(kind, Session) and isinstance(contents, Folding) and not contents.can_merge:
        raise ConfigurationError(
            f"{function.what} '{uid}': session windows can become one, and there is no `merge`",
            hint="give it merge=function of two values, which returns the value of both windows' events",
        )
    return process_on(
        keyed,
        operator_of(kind, contents, replace(rules, several_keys=len(keys) > 1)),
        output_with_key(kind, function.fields, schema, keys, uid),
        uid,
        sides={} if rules.late is None else {rules.late: schema.ddl},
        keeps_key=True,
        **with_name(function.what, options, f"{type(kind).__name__}.{function.what}"),
    )


def operator_of(kind: WindowKind, contents: Contents, rules: Rules) -> WindowOperator:
    """Return the process function of a kind of window."""
    if isinstance(kind, Session):
        return SessionWindows(kind, contents, rules)
    if isinstance(kind, Global):
        return GlobalWindows(kind, contents, rules)
    return TimeWindows(kind, contents, rules)


def output_with_key(
    kind: WindowKind | None, fields: Sequence[Field], schema: StructType, keys: Sequence[str], uid: str
) -> str:
    """Return the DDL of results: the key's columns, the window's if there are windows, then the function's."""
    bounds = bounds_of(kind)
    if bounds:
        check_window_keys(keys, uid)
    reserved = [name.lower() for name in (*keys, *bounds)]
    for column in fields:
        if column.name.lower() in reserved:
            raise ConfigurationError(
                f"operator '{uid}': the result's column '{column.name}' has a name of the key's"
                + (" or the window's" if bounds else ""),
                hint="rename it, or select other columns before",
            )
    first = map(Field, (*keys, *bounds), (*schema.types_of(keys), *[TimestampType()] * len(bounds)))
    return StructType((*first, *fields)).ddl


def bounds_of(kind: WindowKind | None) -> tuple[str, ...]:
    """Return the columns of a result's window; there are none without windows and for Global ones."""
    return () if kind is None or isinstance(kind, Global) else (WINDOW_START, WINDOW_END)


def check_window_keys(keys: Sequence[str], uid: str) -> None:
    """Refuse keys with the names of a window's columns."""
    for key in keys:
        if key.lower() in (WINDOW_START, WINDOW_END):
            raise ConfigurationError(
                f"operator '{uid}': the key '{key}' has the name of a column that the window's results have",
                hint=f"rename it before key_by: with_column('of_window', F.col('{key}'))",
            )


def _names(fields: Sequence[Field]) -> list[str]:
    return [field.name for field in fields]
