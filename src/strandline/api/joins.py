"""Functions of two streams: what a user subclasses to handle both, and the state that all partitions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from strandline.api.process import Context, KeyedProcess
from strandline.api.states import Before, Declaration, MapState
from strandline.types.spark_schema import SparkType


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


class Broadcast(Declaration[MapState]):
    """A map that is the same in all partitions: on_broadcast changes it, everything else reads it.

    >>> class Check(KeyedBroadcastProcess):
    ...     rules = Broadcast("string", "struct<limit: double>")
    """

    kind = "broadcast"
    change = "self.{0}[key] = … in on_broadcast"

    def __init__(self, key: str | SparkType, value: str | SparkType, **before: Unpack[Before]) -> None:
        super().__init__(value, key, **before)


class KeyedBroadcastProcess(KeyedProcess):
    """A function with state on a keyed stream, and with rules from another stream that all partitions hear of.

    The rules of an epoch come before its events, in one order everywhere: that of `broadcast(…, order_by=…)`, then of
    their event times. Events that timers of an operator further up gave come before the rules, and so do timers.

    >>> class Check(KeyedBroadcastProcess):
    ...     rules = Broadcast("string", "struct<limit: double>")
    ...     def on_broadcast(self, rule, ctx):
    ...         self.rules[rule.name] = {"limit": rule.limit}
    ...     def on_event(self, payment, ctx):
    ...         rule = self.rules.get(payment.kind)
    ...         if rule and payment.amount > rule.limit:
    ...             yield {"user": ctx.key, "amount": payment.amount}
    """

    def on_broadcast(self, event: Any, ctx: Context) -> None:
        """Handle an event of the broadcast stream: change Broadcast states. Runs once in every partition.

        There is no current key, and no output. It must do the same everywhere: decide by the event and Broadcast
        states alone.
        """
        raise NotImplementedError
