"""The current and older schemas of a state's values, and the codec that reads values of all of them."""

from __future__ import annotations

import msgspec

from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.format.columnmapping import ColumnCodec, ColumnMapping, column_mappings
from strandline.format.manifest import OlderSchema, StateInfo
from strandline.format.values import MAX_SCHEMA_ID, ValueCodec
from strandline.types.datatypes import ArrayType, DataType, StructType, parse_type
from strandline.types.evolution import TypeMismatch, evolve, fields_of
from strandline.types.hints import Hints
from strandline.types.plain import Convert, each_element


class Schemas(msgspec.Struct, frozen=True, kw_only=True):
    """The schema id of a state's values, and the older schemas that stored values may have."""

    schema_id: int = 0
    older: dict[int, OlderSchema] = {}

    @classmethod
    def of(cls, info: StateInfo) -> Schemas:
        """Return the schemas of a state in a manifest."""
        return cls(schema_id=info.schema_id, older=info.older or {})

    def followed_by(self, old: DataType, new: DataType, hints: Hints) -> Schemas:
        """Return these schemas with a new type after the current one, `old`; `hints` have been checked.

        Raises ConfigurationError when there are no schema ids left.
        """
        if self.schema_id >= MAX_SCHEMA_ID:
            raise ConfigurationError(
                f"its type was changed {MAX_SCHEMA_ID} times, and no more schema ids are left",
                hint="write the state anew: under another name, from a savepoint",
            )
        fields = fields_of(new)
        fill = {path: ValueCodec(fields[path]).encode(value) for path, value in hints.fill.items()}
        step = OlderSchema(value_type=old.ddl, renamed=dict(hints.renamed), fill=fill)
        return Schemas(schema_id=self.schema_id + 1, older={**self.older, self.schema_id: step})

    def codec(self, kind: DataType) -> ValueCodec:
        """Return the codec of values, for a list that of its elements."""
        older = self._older(kind)
        if older and isinstance(kind, StructType) and (mappings := column_mappings(self.older, kind)):
            return ColumnCodec(kind, self.schema_id, older, mappings)
        return ValueCodec(kind, self.schema_id, older)

    def mappings(self, kind: StructType) -> dict[int, ColumnMapping]:
        """Return the column mapping of each older schema, by its id; raise CorruptionError if there is none."""
        mappings = column_mappings(self.older, kind)
        if mappings is None:
            raise CorruptionError(
                f"columns that were stored with older schemas cannot become {kind.ddl}: some are of another type",
                hint="the manifest that says so was written by a newer release, or damaged",
            )
        return mappings

    def codec_of_chunks(self, element: DataType) -> ValueCodec:
        """Return the codec of a list's chunks."""
        older = {
            schema_id: (ArrayType(stored), each_element(convert))
            for schema_id, (stored, convert) in self._older(element).items()
        }
        return ValueCodec(ArrayType(element), self.schema_id, older)

    def _older(self, kind: DataType) -> dict[int, tuple[DataType, Convert | None]]:
        """Return the type and the conversion of each older schema, by its id: composed of the steps after it."""
        older: dict[int, tuple[DataType, Convert | None]] = {}
        newer, rest = kind, None
        for schema_id in sorted(self.older, reverse=True):
            step = self.older[schema_id]
            stored = parse_type(step.value_type)
            rest = _chain(_step(stored, newer, step), rest)
            older[schema_id] = stored, rest
            newer = stored
        return older


def _step(stored: DataType, newer: DataType, step: OlderSchema) -> Convert | None:
    fields = fields_of(newer)
    unknown = [path for path in step.fill if path not in fields]
    refusal = TypeMismatch(tuple(f"{newer.ddl} has no field {path!r} to be filled" for path in unknown))
    if not unknown:
        fill = {path: ValueCodec(fields[path]).decode(value) for path, value in step.fill.items()}
        # The hints were checked when the user gave them.
        evolution = evolve(stored, newer, Hints(step.renamed, fill, always_rename=True))
        if not isinstance(evolution, TypeMismatch):
            return evolution.convert
        refusal = evolution
    raise CorruptionError(
        f"values that were stored as {stored.ddl} cannot become {newer.ddl}: {'; '.join(refusal.reasons)}",
        hint="the manifest that says so was written by a newer release, or damaged",
    )


def _chain(first: Convert | None, second: Convert | None) -> Convert | None:
    if first is None or second is None:
        return first or second
    return lambda value: second(first(value))


def codec_of(info: StateInfo) -> ValueCodec:
    """Return the codec that reads a state's stored values, for a list its chunks, by its manifest entry."""
    schemas, kind = Schemas.of(info), parse_type(info.value_type)
    return schemas.codec_of_chunks(kind) if info.kind == "list" else schemas.codec(kind)
