"""The bytes of panes: `key group ‖ pane end ‖ epoch` → Arrow columns, and the mark of each key group.

See docs/format.md.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from strandline.core.errors import CorruptionError
from strandline.format.schemas import Schemas
from strandline.types.columns import arrow_schema
from strandline.types.datatypes import StructType

MARK_END = -(1 << 63)
"""In place of a pane's end, this tells that the entry is a mark: the time up to which windows were emitted."""

_KEY = struct.Struct(">HQQ")
_NUMBER = struct.Struct(">q")
_BIAS = 1 << 63
_MARK_HEAD = b"\0\0"


def key_of(group: int, end_us: int, epoch: int) -> bytes:
    """Return the key of one key group's changes to a pane."""
    return _KEY.pack(group, end_us + _BIAS, epoch)


def prefix_of(group: int, end_us: int) -> bytes:
    """Return the prefix of the keys of one key group's changes to a pane."""
    return key_of(group, end_us, 0)[:10]


def parts_of(key: bytes) -> tuple[int, int, int]:
    """Return the key group, the pane's end and the epoch."""
    group, end, epoch = _KEY.unpack(key)
    return group, end - _BIAS, epoch


def pack_mark(mark_us: int) -> bytes:
    """Return the value of a mark."""
    return _MARK_HEAD + _NUMBER.pack(mark_us)


def read_mark(value: bytes) -> int:
    """Return the time in the value of a mark."""
    return int(_NUMBER.unpack(value[2:])[0])


class PaneCodec:
    """Converts rows of one state to values of its entries, and back; migrates values that have older schemas.

    A migration copies, drops or fills whole columns, never row by row.
    """

    def __init__(self, name: str, kind: StructType, schemas: Schemas) -> None:
        """`kind` is the present type of the state `name`."""
        self.schema = arrow_schema(kind)
        self._name = name
        self._head = bytes([0, schemas.schema_id])
        self._older = {bytes([0, schema_id]): mapping for schema_id, mapping in schemas.mappings(kind).items()}

    def pack(self, rows: pa.RecordBatch) -> bytes:
        """Return the value of an entry that holds these rows."""
        return self._head + bytes(rows.serialize().to_pybytes())

    def read(self, value: bytes) -> pa.RecordBatch:
        """Return the rows that an entry holds; raise CorruptionError if it holds none."""
        head = value[:2]
        if head == self._head:
            return self._read(value, self.schema)
        if head not in self._older:
            known = " or ".join(head.hex() for head in (self._head, *self._older))
            raise CorruptionError(
                f"state '{self._name}': an entry begins with {head.hex()}, expected {known}",
                hint="it was written by a newer release or by a program with other aggregates, or damaged",
            )
        mapping = self._older[head]
        return pa.RecordBatch.from_arrays(mapping.apply(self._read(value, mapping.schema).columns), schema=self.schema)

    def _read(self, value: bytes, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(value[2:]), schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise CorruptionError(
                f"state '{self._name}': an entry of {len(value)} bytes cannot be read: {error}"
            ) from error
