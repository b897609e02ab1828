"""Functions of two streams: what a user subclasses to handle the events of both with one state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strandline.api.process import Context, KeyedProcess


class KeyedCoProcess(KeyedProcess):
    """A function with state, called for the events of two streams that are keyed alike.

    Both methods see the same state and timers of `ctx.key`. Events of one epoch come in the order in which Spark's
    shuffle delivers them, whichever stream they are of.

    >>> class Enrich(KeyedCoProcess):
    ...     name = Value("string")
    ...     def on_left(self, order, ctx):
    ...         yield {"id": order.id, "customer": self.name.value}
    ...     def on_right(self, customer, ctx):
    ...         self.name.value = customer.name
    """

    def on_left(self, event: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle an event of the stream that connect() was called on; yield or return output rows."""
        raise NotImplementedError

    def on_right(self, event: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle an event of the stream that connect() was given; yield or return output rows."""
        raise NotImplementedError

    def on_event(self, event: Any, ctx: Context) -> Iterable[Any] | None:
        """Tell the streams apart: of a pair, one half is there. Not to be overridden."""
        left, right, *_ = event
        return self.on_right(right, ctx) if left is None else self.on_left(left, ctx)
