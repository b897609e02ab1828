"""Vectorised functions, whole columns in and whole columns out: keys and value handles, and operators of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.api.process import KeyedBatchProcess
from strandline.backends.base import Backend
from strandline.core.errors import ConfigurationError, OutputError, StateTypeError
from strandline.format.keys import KeyCodec
from strandline.format.schemas import Schemas
from strandline.format.values import ValueCodec
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.state.misuse import ALL, Handle, refusing
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable
from strandline.runtime.state.values import ValueTable
from strandline.types.coercion import shown
from strandline.types.columns import build, conform, from_python, to_arrow_type

Given = tuple[pa.RecordBatch, pa.Array | None]
"""Output rows, and their times in microseconds since 1970."""


@dataclass(eq=False, repr=False)
class BatchKeys:
    """The keys of a batch's rows."""

    columns: Sequence[pa.Array]
    groups: pa.Array
    _codec: KeyCodec
    are_distinct: bool = False
    """Whether it is known that no key is there twice."""

    @classmethod
    def decoded(cls, encoded: list[bytes], codec: KeyCodec) -> BatchKeys:
        """Return the keys of encoded ones."""
        groups = np.frombuffer(b"".join([key[:2] for key in encoded]), ">u2").astype(np.int32)
        keys = codec.decode_many(encoded)
        parts = [keys] if len(codec.types) == 1 else zip(*keys, strict=True)
        columns = [build(list(part), kind) for part, kind in zip(parts, codec.types, strict=True)]
        found = cls(columns, pa.array(groups), codec)
        found.encoded = encoded
        return found

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def encoded(self) -> list[bytes]:
        """Each key's bytes, key group first: made once, when first needed."""
        return self._codec.encode_arrow(self.groups, self.columns)

    def unique(self) -> tuple[BatchKeys, np.ndarray[Any, Any]]:
        """Return the distinct keys, and for each row the index of its key among them."""
        kind = self.columns[0].type
        # Arrow knows no equality of structs, and holds 0.0 and -0.0 for different: their encoded bytes are compared.
        plain = len(self.columns) == 1 and not (pa.types.is_floating(kind) or pa.types.is_nested(kind))
        column = self.columns[0] if plain else pa.array(self.encoded, pa.binary())
        coded = column.dictionary_encode()
        row_of = coded.indices.to_numpy(zero_copy_only=False)
        first = np.empty(len(coded.dictionary), dtype=np.int64)
        # Written back to front, so that each key's first row is what stays.
        first[row_of[::-1]] = np.arange(len(row_of) - 1, -1, -1)
        keys = self.take(first)
        keys.are_distinct = True
        return keys, row_of

    def take(self, indices: Any) -> BatchKeys:
        """Return the keys at these rows."""
        chosen = pa.array(indices)
        return BatchKeys([c.take(chosen) for c in self.columns], self.groups.take(chosen), self._codec)


@refusing(*ALL)
class VectorValueHandle(Handle):
    """A value state of a vectorised function: `get_many` and `put_many` on the keys of a batch."""

    what = "Value"
    to_read = "self.{0}.get_many(keys)"
    has = "get_many() and put_many(), as it is one of a KeyedBatchProcess: .value is a KeyedProcess'"

    def __init__(self, scope: Scope, table: ValueTable, codec: ValueCodec, name: str, default: Any) -> None:
        self._scope = scope
        self._table = table
        self._codec = codec
        self._name = name
        self._arrow_type = to_arrow_type(codec.type)
        self._default = None if default is None else pa.scalar(default, type=self._arrow_type)

    def get_many(self, keys: BatchKeys) -> pa.Array:
        """Return the value of each key, in order; the default, or null, where there is none."""
        self._check_keys(keys)
        values = self._codec.decode_arrow(self._stored(keys))
        return values if self._default is None else values.fill_null(self._default)

    def put_many(self, keys: BatchKeys, values: Any, *, last: bool = False) -> None:
        """Set the value of each key; null clears it. With `last`, of equal keys the last one counts."""
        self._check_keys(keys)
        values = self._as_arrow(values)
        if len(values) != len(keys):
            raise self._error(f"put_many got {len(values)} values for {len(keys)} keys")
        try:
            values = conform(values, self._codec.type)
        except (StateTypeError, ConfigurationError) as error:
            why = error.fields.get("why", f": {error.message}")
            raise self._error(f"put_many got {values.type}, expected {self._arrow_type}{why}", error.hint) from None
        if not last and not keys.are_distinct:
            self._refuse_equal(keys)
        encoded = keys.encoded
        undo = self._table.undo
        before = self._stored(keys)
        written = zip(encoded, before, strict=True)
        # What the epoch's first write found stays; what later ones find was written by it.
        undo.update([found for found in written if found[0] not in undo] if undo else written)
        given = self._codec.encode_arrow(values.drop_null() if values.null_count else values)
        stored: list[bytes | None] = list(given)
        if values.null_count:
            each = iter(given)
            stored = [next(each) if valid else None for valid in values.is_valid().to_pylist()]
        self._table.live.update(zip(encoded, self._finished(encoded, before, stored), strict=True))

    def _check_keys(self, keys: Any) -> None:
        if not isinstance(keys, BatchKeys):
            raise self._error(
                f"it was given {shown(keys)} as keys, a {type(keys).__name__}",
                "give ctx.keys, or the distinct ones: keys, row_of = ctx.keys.unique()",
            )

    def _as_arrow(self, values: Any) -> pa.Array:
        """Return what a function gave as an Arrow array: numpy's and pandas' as they are, Python's values checked."""
        if isinstance(values, pa.Array):
            return values
        if isinstance(values, pa.ChunkedArray):
            return values.combine_chunks()
        try:
            if isinstance(values, list | tuple):
                return from_python(list(values), self._codec.type, self._name)
            if isinstance(values, np.ndarray) or hasattr(values, "to_numpy"):
                return pa.array(values)
        except (OutputError, pa.ArrowException, TypeError, ValueError) as error:
            why = error.message.partition("does not fit: ")[2] if isinstance(error, OutputError) else str(error)
            at = f", of which number {error.index} does not fit" if isinstance(error, OutputError) else ""
            raise self._error(f"put_many got a {type(values).__name__}{at}: {why}") from None
        raise self._error(
            f"put_many got {shown(values)}, a {type(values).__name__}, as values",
            "give one for each key: a pyarrow or numpy array, or a list",
        )

    def _refuse_equal(self, keys: BatchKeys) -> None:
        """Refuse equal keys: whoever adds up what `get_many` gave would lose all but one of them."""
        if len(set(keys.encoded)) == len(keys):
            keys.are_distinct = True
            return
        seen: set[bytes] = set()
        at = next(at for at, key in enumerate(keys.encoded) if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        key = ", ".join(repr(column[at].as_py()) for column in keys.columns)
        raise self._error(
            f"put_many got the key {key} more than once, and only one of its values would be kept",
            "write keys, row_of = ctx.keys.unique(), put together the rows of each key, and put them at these keys; "
            "or write put_many(…, last=True) if the last value of each is what is meant",
        )

    def _finished(
        self, encoded: Sequence[bytes], before: Sequence[bytes | None], given: list[bytes | None]
    ) -> list[bytes | None]:
        """Return the bytes to keep for encoded values."""
        return given

    def _stored(self, keys: BatchKeys) -> list[bytes | None]:
        encoded, live = keys.encoded, self._table.live
        try:
            return list(map(live.__getitem__, encoded))
        except KeyError:
            self._table.load(encoded)
            return list(map(live.__getitem__, encoded))

    def _error(self, message: str, hint: str = "") -> StateTypeError:
        return StateTypeError(f"operator '{self._scope.uid}', state '{self._name}': {message}", hint=hint)


@dataclass(frozen=True)
class InputRows:
    """A batch of an operator's input."""

    keys: BatchKeys
    times: pa.Array | None
    columns: list[pa.Array]


class ColumnarProcess(BuiltinOperator, KeyedBatchProcess):
    """An operator on Arrow columns.

    In each epoch: on_watermark if it has moved, on_clock, on_rows for each batch, on_end; then commit or forget. Where
    rows come that timers gave further up, on_rows gets them before on_watermark, and on_fired is called behind them.
    """

    own_step = "agg"

    late_rows = 0
    """Rows of this epoch that came too late and were dropped."""
    source_rows = 0
    """Rows of the stream that this epoch's rows were made of."""

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        """Get ready to work on a partition's state; return the tables that it makes itself.

        `schemas` are those of states whose types were changed.
        """
        return ()

    def on_watermark(self, scope: Scope) -> Iterator[Given]:
        """Give what is due now that the watermark has reached scope.watermark_us."""
        yield from ()

    def on_clock(self, scope: Scope) -> Iterator[Given]:
        """Give what is due now that the clock has reached scope.now_us."""
        yield from ()

    def shown(self, keys: BatchKeys) -> Iterator[Given]:
        """Give what is kept of some keys as results, for tests to look at."""
        raise NotImplementedError

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Take rows in."""
        raise NotImplementedError

    def on_fired(self, scope: Scope) -> Iterator[Given]:
        """Give what came of rows that timers gave further up, before the watermark moves on."""
        yield from ()

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        """Do nothing: rows come to on_rows."""

    def on_end(self, scope: Scope) -> Iterator[Given]:
        """Give what is to be given once an epoch when all rows are in."""
        yield from ()

    def commit(self) -> None:
        """Keep the epoch."""

    def forget(self) -> None:
        """Forget the epoch."""

    @property
    def next_due_us(self) -> int | None:
        """A time of the watermark before which nothing is due; None when nothing is pending."""
        return None

    @property
    def next_due_clock_us(self) -> int | None:
        """A time of the clock before which nothing is due; None when nothing is pending."""
        return None
