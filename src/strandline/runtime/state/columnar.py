"""Keys and value handles of vectorised functions, and the base class of built-in operators on Arrow columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from strandline.runtime.state.vectors import KeySlots, VectorTable
from strandline.types.coercion import short_repr
from strandline.types.columns import build, conform, from_python, to_arrow_type, to_python

TimedRows = tuple[pa.RecordBatch, pa.Array | None]
"""Output rows, and their times in microseconds since 1970."""


@dataclass(eq=False, repr=False)
class BatchKeys:
    """The keys of a batch's rows."""

    columns: Sequence[pa.Array]
    groups: pa.Array
    _codec: KeyCodec
    are_distinct: bool = False
    """Whether the keys are known to be distinct."""
    places: dict[str, KeySlots] = field(default_factory=dict)
    """The keys' slots in the tables of states, by state."""

    @classmethod
    def decoded(cls, encoded: list[bytes], codec: KeyCodec) -> BatchKeys:
        """Return keys from their bytes."""
        groups = np.frombuffer(b"".join([key[:2] for key in encoded]), ">u2").astype(np.int32)
        keys = codec.decode_many(encoded)
        parts = [keys] if len(codec.types) == 1 else zip(*keys, strict=True)
        columns = [build(list(part), kind) for part, kind in zip(parts, codec.types, strict=True)]
        batch_keys = cls(columns, pa.array(groups), codec)
        batch_keys.encoded = encoded
        return batch_keys

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def encoded(self) -> list[bytes]:
        """Each key's bytes, key group first: computed on first use."""
        return self._codec.encode_arrow(self.groups, self.columns)

    def values(self) -> list[Any]:
        """Return each key in Python: a value or, of several columns, a tuple; equal keys are equal."""
        parts = [to_python(column, kind) for column, kind in zip(self.columns, self._codec.types, strict=True)]
        return self._codec.normalise(parts[0] if len(parts) == 1 else list(zip(*parts, strict=True)))

    def unique(self) -> tuple[BatchKeys, np.ndarray[Any, Any]]:
        """Return the distinct keys, and for each row the index of its key among them."""
        kind = self.columns[0].type
        # Arrow cannot compare structs, and takes 0.0 and -0.0 for different values: their encoded bytes are compared.
        plain = len(self.columns) == 1 and not (pa.types.is_floating(kind) or pa.types.is_nested(kind))
        column = self.columns[0] if plain else pa.array(self.encoded, pa.binary())
        coded = column.dictionary_encode()
        row_of = coded.indices.to_numpy(zero_copy_only=False)
        first = np.empty(len(coded.dictionary), dtype=np.int64)
        # Written back to front: each key's first row overwrites later ones.
        first[row_of[::-1]] = np.arange(len(row_of) - 1, -1, -1)
        keys = self.take(first)
        keys.are_distinct = True
        return keys, row_of

    def take(self, indices: Any) -> BatchKeys:
        """Return the keys at these rows."""
        chosen = pa.array(indices)
        keys = BatchKeys([c.take(chosen) for c in self.columns], self.groups.take(chosen), self._codec)
        if "encoded" in vars(self) and self._codec.size_bytes is None:
            keys.encoded = list(map(self.encoded.__getitem__, chosen.to_pylist()))
        return keys


@refusing(*ALL)
class VectorValueHandle(Handle):
    """A value state of a vectorised function: `get_many` and `put_many` on the keys of a batch."""

    what = "Value"
    to_read = "self.{0}.get_many(keys)"
    has = "get_many() and put_many(), as it is one of a KeyedBatchProcess: .value is a KeyedProcess'"

    def __init__(self, scope: Scope, table: VectorTable, codec: ValueCodec, name: str, default: Any) -> None:
        self._scope = scope
        self._table = table
        self._codec = codec
        self._name = name
        self._arrow_type = to_arrow_type(codec.type)
        self._default = None if default is None else pa.scalar(default, type=self._arrow_type)

    def get_many(self, keys: BatchKeys) -> pa.Array:
        """Return the value of each key, in order; the default, or null, where there is none."""
        self._check_keys(keys)
        values = self._codec.decode_arrow(self._table.get(self._find(keys)))
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
        non_null = self._codec.encode_arrow(values.drop_null() if values.null_count else values)
        stored: list[bytes | None] = list(non_null)
        if values.null_count:
            each = iter(non_null)
            stored = [next(each) if valid else None for valid in values.is_valid().to_pylist()]
        places = self._find(keys)
        self._table.put(places, self._finished(keys, places, stored))

    def chunks(self, codec: KeyCodec, size: int) -> Iterator[tuple[BatchKeys, pa.Array]]:
        """Yield all keys that have a value, with the values, so many at a time."""
        stored = self._table.stored()
        while chunk := list(itertools.islice(stored, size)):
            keys, values = zip(*chunk, strict=True)
            yield BatchKeys.decoded([*keys], codec), self._codec.decode_arrow(self._present([*values]))

    def _present(self, stored: list[bytes]) -> Sequence[bytes | None]:
        """Return the encoded values of stored bytes."""
        return stored

    def _check_keys(self, keys: Any) -> None:
        if not isinstance(keys, BatchKeys):
            raise self._error(
                f"it was given {short_repr(keys)} as keys, a {type(keys).__name__}",
                "give ctx.keys, or the distinct ones: keys, row_of = ctx.keys.unique()",
            )

    def _as_arrow(self, values: Any) -> pa.Array:
        """Convert a function's values to an Arrow array: numpy's and pandas' as they are, Python's values checked."""
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
            f"put_many got {short_repr(values)}, a {type(values).__name__}, as values",
            "give one for each key: a pyarrow or numpy array, or a list",
        )

    def _refuse_equal(self, keys: BatchKeys) -> None:
        """Refuse equal keys: a function that adds to what `get_many` returned would lose all but one of the sums."""
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

    def _finished(self, keys: BatchKeys, places: KeySlots, values: list[bytes | None]) -> list[bytes | None]:
        """Return the bytes to store for encoded values."""
        return values

    def _find(self, keys: BatchKeys) -> KeySlots:
        places = keys.places[self._name] = self._table.find(keys.encoded, keys.places.get(self._name))
        return places

    def _error(self, message: str, hint: str = "") -> StateTypeError:
        return StateTypeError(f"operator '{self._scope.uid}', state '{self._name}': {message}", hint=hint)


@dataclass(frozen=True)
class InputRows:
    """A batch of an operator's input."""

    keys: BatchKeys
    times: pa.Array | None
    columns: list[pa.Array]


class ColumnarProcess(BuiltinOperator, KeyedBatchProcess):
    """A built-in operator on Arrow columns.

    In each epoch: on_watermark if it has moved, on_clock, on_rows for each batch, on_end; then commit or forget. If the
    input has output rows of upstream timers, on_rows gets them before on_watermark, and on_fired is called after them.
    """

    own_step = "agg"

    late_rows = 0
    """Rows of this epoch that were dropped because they were too late."""
    source_rows = 0
    """Rows of the stream that this epoch's input rows were aggregated from."""

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        """Create the operator's own tables of a partition, and return them.

        `schemas` are those of states whose types were changed.
        """
        return ()

    def on_watermark(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the results that are due when the watermark has reached scope.watermark_us."""
        yield from ()

    def on_clock(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the results that are due when the clock has reached scope.now_us."""
        yield from ()

    def current_results(self, keys: BatchKeys) -> Iterator[TimedRows]:
        """Yield results from the present state of some keys, for tests to look at."""
        raise NotImplementedError

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Process a batch of input rows."""
        raise NotImplementedError

    def on_fired(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the results of rows from upstream timers, before the watermark moves on."""
        yield from ()

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        """Do nothing: rows come to on_rows."""

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the results that are due once an epoch, after all rows."""
        yield from ()

    def commit(self) -> None:
        """Commit the epoch."""

    def forget(self) -> None:
        """Discard the epoch."""

    @property
    def next_due_us(self) -> int | None:
        """A time of the watermark before which nothing is due; None when nothing is pending."""
        return None

    @property
    def next_due_clock_us(self) -> int | None:
        """A time of the clock before which nothing is due; None when nothing is pending."""
        return None
