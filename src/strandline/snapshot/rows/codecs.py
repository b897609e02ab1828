"""Choice of the codec for a state, from the manifest alone, without the job's program.

Equal state has equal rows with any backend, parallelism and history; docs/format.md defines that, with its exceptions.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.core.errors import ConfigurationError
from strandline.format.manifest import Manifest, OperatorInfo, StateInfo
from strandline.runtime.watermarks import FIRED_AT
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.lists import ListRows
from strandline.snapshot.rows.panes import PaneRows
from strandline.snapshot.rows.values import BroadcastRows, TimerRows, ValueRows

_KINDS: dict[str, Callable[[OperatorInfo, StateInfo, int | None], RowCodec]] = {
    "value": ValueRows,
    "reducing": ValueRows,
    "aggregating": ValueRows,
    "map": ValueRows,
    "broadcast": BroadcastRows,
    "list": ListRows,
    "timers": TimerRows,
    "panes": PaneRows,
}
_DERIVED = "ttl"


def has_rows(state: StateInfo) -> bool:
    """Whether a state is a table. The cleaning's states are not: `RowCodec.cleaning_of` computes them."""
    return state.kind != _DERIVED


def times_of(manifest: Manifest) -> tuple[int | None, int | None]:
    """Return the clock and the event time up to which a snapshot's state has expired.

    Event time is the watermark up to which timers have fired. The manifest's own watermark is the next epoch's: timers
    that fire in it still read the state of their own times.
    """
    now_us = manifest.triggered_ms * 1000 if manifest.triggered_ms else None
    return now_us, manifest.watermarks.get(FIRED_AT)


def rows_of(
    operator: OperatorInfo, state: StateInfo, *, now_us: int | None = None, watermark_us: int | None = None
) -> RowCodec:
    """Return the codec of a state's entries and rows.

    With `now_us` and `watermark_us` from `times_of`, rows omit what had expired by then.
    Raises ConfigurationError for a kind of state that is not a table.

    >>> seen = StateInfo(name="seen", kind="value", value_type="bigint")
    >>> counter = OperatorInfo(uid="counter", backend="memory", parallelism=1, max_parallelism=128,
    ...                        key_schema="card string", states=[seen], partitions=[])
    >>> codec = rows_of(counter, seen)
    >>> codec.schema.names
    ['key_group', 'card', 'value']
    """
    kind = _KINDS.get(state.kind)
    if kind is None:
        raise ConfigurationError(
            f"operator '{operator.uid}', state '{state.name}': there is no table of states of the kind '{state.kind}'; "
            f"known: {', '.join(_KINDS)}",
            hint="leave it out: it follows from the other states" if state.kind == _DERIVED else "use a newer release",
        )
    over_us = watermark_us if state.ttl and state.ttl.time == "event" else now_us
    return kind(operator, state, over_us)
