"""The operator of reduce() and fold() without windows: one value a key, which it emits after every event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.api.process import KeyedProcess
from strandline.api.states import TTL, Value
from strandline.runtime.builtin import BuiltinOperator, explained_value
from strandline.runtime.operators.windows.contents import Folding, Row


class Rolling(BuiltinOperator, KeyedProcess):
    """Emits the new value for each event, with the key's columns at their places."""

    value: Any

    def __init__(
        self, contents: Folding, ttl: TTL | None, what: str, *, several_keys: bool, key_at: Sequence[int] | None
    ) -> None:
        self._contents = contents
        self._several_keys = several_keys
        self._key_at = key_at
        """The indices of the key's columns in the value; None: they are not in it, and are put before it."""
        self.own_function = f"the function of {what}()"
        self.own_step = what
        # In a struct: a function may return null, which differs from no value.
        self.own_states = {"value": Value(f"struct<value: {contents.value_type}>", ttl=ttl)}

    def open(self) -> None:
        self._contents.open(self)

    def on_event(self, event: Any, ctx: Any) -> list[Row]:
        """Apply an event, and return the new value."""
        contents, state = self._contents, self.value
        kept = state.value
        value = contents.start() if kept is None else kept.value
        state.value = (contents.add(0, value, event),)
        # Read back from state: the function may change the object that it returned later.
        (row,) = contents.rows(ctx.key, None, 0, state.value.value)
        key = tuple(ctx.key) if self._several_keys else (ctx.key,)
        if self._key_at is None:
            return [key + row]
        placed = list(row)
        for at, part in zip(self._key_at, key, strict=True):
            placed[at] = part
        return [tuple(placed)]

    def explained(self, error: BaseException) -> BaseException:
        """Return the error for the function, if its value does not fit."""
        return explained_value(error, self._contents.value_type)
