"""Keyed rows cut into windows: what is asked of them, checked, and as nodes."""

from __future__ import annotations

from strandline.api.windows import WindowKind
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.windows import functions as windowfunctions
from strandline.runtime.operators.windows.operator import Rules
from strandline.spark.streams.nodes import Keyed, OperatorNode
from strandline.spark.streams.operators import process_on
from strandline.types.datatypes import StructType, parse_schema


def rules_of(
    keyed: Keyed, kind: WindowKind, lateness: str, late: str | None, early: str | None, time: windowfunctions.Time
) -> Rules:
    """Return how windows of keyed rows behave; raise ConfigurationError for what does not go together."""
    rules = windowfunctions.rules_of(kind, lateness, late, early, time)
    if windowfunctions.follows_event_time(kind, rules) and not keyed.is_timed:
        raise ConfigurationError(
            f"window: {type(kind).__name__} windows need the events' times, and the stream has no watermark",
            hint='call watermark("column") before key_by, or window(…, time="processing")',
        )
    return rules


def event_schema(keyed: Keyed, uid: str) -> StructType:
    """Return the schema of a window's events."""
    return parse_schema(keyed.schema(f"operator '{uid}'"))


def windows_on(
    keyed: Keyed,
    kind: WindowKind,
    rules: Rules,
    function: windowfunctions.WindowFunction,
    uid: str,
    name: str | None,
    max_parallelism: int | None,
) -> OperatorNode:
    """Return the node of a function of each window's events."""
    plan = windowfunctions.plan_windows(kind, rules, function, event_schema(keyed, uid), keyed.keys, uid)
    return process_on(
        keyed,
        plan.operator,
        plan.output,
        uid,
        sides=plan.sides,
        name=name or f"{type(kind).__name__}.{function.what}",
        max_parallelism=max_parallelism,
    )
