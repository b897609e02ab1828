"""Base classes of functions on two streams, and the state that all partitions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Unpack

from strandline.api.process import Context, KeyedProcess
from strandline.api.states import Declaration, K, MapState, Migration, T
from strandline.types.spark_schema import SparkType


class KeyedCoProcess(KeyedProcess):
    """A function with state, called for the events of two streams with the same keys.

    Both methods see the same state and timers of `ctx.key`. Within an epoch, events of the two streams come in the
    order in which Spark's shuffle delivers them.

    >>> class Enrich(KeyedCoProcess):
    ...     name = Value("string")
    ...     def on_left(self, order, ctx):
    ...         yield {"id": order.id, "customer": self.name.value}
    ...     def on_right(self, customer, ctx):
    ...         self.name.value = customer.name
    """

    def on_left(self, event: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Handle an event of the stream that connect() was called on; yield or return output rows."""
        raise NotImplementedError

    def on_right(self, event: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Handle an event of the stream that connect() was given; yield or return output rows."""
        raise NotImplementedError

    def on_event(self, event: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Call on_left or on_right: one half of the pair is None. Do not override this."""
        left = event[0]
        return self.on_right(event[1], ctx) if left is None else self.on_left(left, ctx)


class Broadcast(Declaration[MapState[K, T]], Generic[K, T]):
    """A map that is the same in all partitions: on_broadcast changes it, all other methods read it.

    >>> class Check(KeyedBroadcastProcess):
    ...     rules = Broadcast("string", "struct<limit: double>")
    """

    kind = "broadcast"
    change = "self.{0}[key] = … in on_broadcast"

    def __init__(self, key: str | SparkType, value: str | SparkType, **migration: Unpack[Migration]) -> None:
        super().__init__(value, key, **migration)


class KeyedBroadcastProcess(KeyedProcess):
    """A function with state on a keyed stream, and rules from a second stream that every partition receives.

    The rules of an epoch come before its events, in the same order in all partitions: by `broadcast(…, order_by=…)`,
    then by event time. Timers, and events from timers of upstream operators, come before the rules.

    >>> class Check(KeyedBroadcastProcess):
    ...     rules = Broadcast("string", "struct<limit: double>")
    ...     def on_broadcast(self, rule, ctx):
    ...         self.rules[rule.name] = {"limit": rule.limit}
    ...     def on_event(self, payment, ctx):
    ...         rule = self.rules.get(payment.kind)
    ...         if rule and payment.amount > rule.limit:
    ...             yield {"user": ctx.key, "amount": payment.amount}
    """

    def on_broadcast(self, event: Any, ctx: Context, /) -> None:
        """Handle an event of the broadcast stream: change Broadcast states. Runs once in every partition.

        There is no current key, and no output. The result must be the same in all partitions: use only the event and
        Broadcast states.
        """
        raise NotImplementedError
