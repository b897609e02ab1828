"""Vectorised functions: keys, arrays of values, units of times, what is given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import strandline as sl
from strandline.core.errors import OutputError, UserCodeError
from tests.mistakes.table import Mistake, mistake


class Batches(sl.KeyedBatchProcess):
    """Puts what a test says."""

    total = sl.Value("bigint")
    at = sl.Value("timestamp")

    def __init__(self, does: Callable[[Any, Any, Any], Any]) -> None:
        self.does = does

    def on_batch(self, batch: Any, ctx: Any) -> Any:
        return self.does(self, batch, ctx)


def batch(
    name: str, does: Callable[[Any, Any, Any], Any], *said: str, error: type[Exception] = sl.errors.StateTypeError
) -> Mistake:
    """Return the mistake of an on_batch of two events of one key and one of another."""
    three = ("ann", 1, None), ("bob", 2, None), ("ann", 3, None)
    return mistake(name, "run", lambda s: s.run(Batches(does), *three), *said, error=error)


MISTAKES = [
    batch(
        "equal keys",
        lambda self, b, c: self.total.put_many(c.keys, b["n"]),
        "the key 'ann' more than once",
        "ctx.keys.unique()",
        "last=True",
    ),
    batch(
        "values of other keys",
        lambda self, b, c: self.total.put_many(c.keys.unique()[0], b["n"]),
        "put_many got 3 values for 2 keys",
    ),
    batch(
        "keys in a list",
        lambda self, b, c: self.total.put_many(["ann"], [1]),
        "was given ['ann'] as keys, a list",
        "ctx.keys",
    ),
    batch(
        "keys of get in a list",
        lambda self, b, c: self.total.get_many(["ann"]),
        "was given ['ann'] as keys, a list",
        "ctx.keys",
    ),
    batch(
        "a number for all keys",
        lambda self, b, c: self.total.put_many(c.keys, 5),
        "put_many got 5, a int, as values",
        "one for each key",
    ),
    batch(
        "text in a list",
        lambda self, b, c: self.total.put_many(c.keys, [1, "x", 2]),
        "put_many got a list, of which number 1 does not fit",
        "'x'",
    ),
    batch(
        "numpy's floats",
        lambda self, b, c: self.total.put_many(c.keys, np.array([1.5, 2, 3])),
        "put_many got double, expected int64",
    ),
    batch(
        "an array of nanoseconds",
        lambda self, b, c: self.at.put_many(c.keys, pa.array([1, 2, 3], pa.timestamp("ns", "UTC"))),
        "timestamps are in microseconds",
        "expected timestamp[us, tz=UTC]",
    ),
    batch(
        "times without zone",
        lambda self, b, c: self.at.put_many(c.keys, pa.array([1, 2, 3], pa.timestamp("us"))),
        "expected timestamp[us, tz=UTC]",
        "it has no time zone: pc.assume_timezone",
    ),
    batch(
        "numbers for times",
        lambda self, b, c: self.at.put_many(c.keys, pa.array([1, 2, 3])),
        "timestamp[us, tz=UTC]",
        "microseconds since 1970",
    ),
    batch(
        ".value of a batch function",
        lambda self, b, c: self.total.value,
        "which has no 'value'; it has get_many()",
        error=UserCodeError,
    ),
    batch(
        "if on a batch function's state",
        lambda self, b, c: 1 if self.total else 2,
        "write self.total.get_many(keys)",
        error=UserCodeError,
    ),
    batch(
        "rows of a batch function",
        lambda self, b, c: [("a", 1)],
        "on_batch returned a list, expected a pyarrow RecordBatch or Table",
        error=OutputError,
    ),
    batch(
        "other columns of a batch function",
        lambda self, b, c: b,
        "on_batch returned the columns user, n, ts; expected user, n",
        error=OutputError,
    ),
]
