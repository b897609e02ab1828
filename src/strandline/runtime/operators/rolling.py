"""A value a key that every event changes, and that is given each time: reduce() and fold() without windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.api.process import KeyedProcess
from strandline.api.states import TTL, Value
from strandline.runtime.builtin import BuiltinOperator, explained_value
from strandline.runtime.operators.windows.contents import Folding, Row


class Rolling(BuiltinOperator, KeyedProcess):
    """What it gives of an event is the new value, with the key's columns where they belong."""

    value: Any

    def __init__(
        self, contents: Folding, ttl: TTL | None, what: str, *, several_keys: bool, key_at: Sequence[int] | None
    ) -> None:
        self._contents = contents
        self._several_keys = several_keys
        self._key_at = key_at
        """Where the key's columns are in the value; None: they are not, and stand before it."""
        self.own_function = f"the function of {what}()"
        self.own_step = what
        # In a struct: a function may give null, which is not the same as nothing.
        self.own_states = {"value": Value(f"struct<value: {contents.value_type}>", ttl=ttl)}

    def open(self) -> None:
        self._contents.open(self)

    def on_event(self, event: Any, ctx: Any) -> list[Row]:
        """Take an event in, and give the new value."""
        contents, state = self._contents, self.value
        kept = state.value
        value = contents.start() if kept is None else kept.value
        state.value = (contents.add(0, value, event),)
        # As it is kept: what the function gave may be changed by it later.
        (row,) = contents.rows(ctx.key, None, 0, state.value.value)
        key = tuple(ctx.key) if self._several_keys else (ctx.key,)
        if self._key_at is None:
            return [key + row]
        placed = list(row)
        for at, part in zip(self._key_at, key, strict=True):
            placed[at] = part
        return [tuple(placed)]

    def explained(self, error: BaseException) -> BaseException:
        """Return what a function is told whose value does not fit."""
        return explained_value(error, self._contents.value_type)
