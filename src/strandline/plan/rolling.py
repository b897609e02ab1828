"""reduce() and fold() of a keyed stream without windows: checks arguments and makes nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from strandline.api.options import OperatorOptions, with_name
from strandline.api.states import TTL
from strandline.core.errors import ConfigurationError
from strandline.plan import windows
from strandline.plan.callables import check_function
from strandline.plan.checks import check_uid
from strandline.plan.graph import Keyed, OperatorNode
from strandline.plan.operators import process_on
from strandline.runtime.operators.rolling import Rolling
from strandline.runtime.operators.windows.contents import Folding, first_or
from strandline.types.spark_schema import SparkType


def reduce_on(
    keyed: Keyed, function: Callable[[Any, Any], Any], uid: str, ttl: TTL | None, options: OperatorOptions
) -> OperatorNode:
    """Return the node of reduce(), which keeps one event for each key."""
    schema, keys = keyed.columns.schema(f"operator '{uid}'"), keyed.keys
    check_function(f"reduce '{uid}': function", function, ["event", "event"])
    if len(schema.fields) == len(keys):
        raise ConfigurationError(f"reduce '{uid}': the stream has no columns beside the key's to reduce")
    reducing = Folding(schema.ddl, schema.names, create=_nothing, add=partial(first_or, function))
    key_at = [schema.names.index(key) for key in keys]
    _check(keyed, "reduce", uid, ttl)
    rolling = Rolling(reducing, ttl, "reduce", several_keys=len(keys) > 1, key_at=key_at)
    return process_on(keyed, rolling, schema.ddl, uid, keeps_key=True, **with_name("reduce", options, "reduce"))


def fold_on(
    keyed: Keyed,
    output: str | SparkType,
    initial: Any,
    function: Callable[[Any, Any], Any],
    uid: str,
    ttl: TTL | None,
    options: OperatorOptions,
) -> OperatorNode:
    """Return the node of fold(), which keeps one value for each key."""
    schema, keys = keyed.columns.schema(f"operator '{uid}'"), keyed.keys
    folded = windows.fold(output, initial, function, None, uid)
    output_ddl = windows.output_with_key(None, folded.fields, schema, keys, uid)
    assert isinstance(folded.contents, Folding)
    _check(keyed, "fold", uid, ttl)
    rolling = Rolling(folded.contents, ttl, "fold", several_keys=len(keys) > 1, key_at=None)
    return process_on(keyed, rolling, output_ddl, uid, keeps_key=True, **with_name("fold", options, "fold"))


def _check(keyed: Keyed, what: str, uid: str, ttl: TTL | None) -> None:
    check_uid(f"{what}()", uid)
    if ttl is not None and not isinstance(ttl, TTL):
        raise ConfigurationError(f"{what} '{uid}': ttl is {ttl!r}, expected a TTL", hint="write ttl=sl.TTL('1h')")
    if ttl is not None and ttl.time == "event" and not keyed.columns.is_timed:
        raise ConfigurationError(
            f"{what} '{uid}': what it keeps is to expire by event time, and the stream has none",
            hint='call watermark("column") before key_by, or give a TTL with time="processing"',
        )


def _nothing() -> None:
    """Return None, the value before the first event."""
