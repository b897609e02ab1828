"""The schemas that a state's values were written with: from one to the next, and the codec that reads them all."""

from __future__ import annotations

import msgspec

from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.format.columnways import ColumnCodec, Way, ways_of
from strandline.format.manifest import OlderSchema, StateInfo
from strandline.format.values import MAX_SCHEMA_ID, ValueCodec
from strandline.types.datatypes import ArrayType, DataType, StructType, parse_type
from strandline.types.evolution import Refusal, evolve, fields_of
from strandline.types.hints import Hints
from strandline.types.plain import Convert, each_element


class Schemas(msgspec.Struct, frozen=True, kw_only=True):
    """What the values of a state are, or may be, stored with beside its present type."""

    schema_id: int = 0
    older: dict[int, OlderSchema] = {}

    @classmethod
    def of(cls, info: StateInfo) -> Schemas:
        """Return those that a manifest has of a state."""
        return cls(schema_id=info.schema_id, older=info.older or {})

    def followed_by(self, old: DataType, new: DataType, hints: Hints) -> Schemas:
        """Return these with a new type after the present one, `old`; `hints` are checked ones.

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
        """Return the codec of values, of a list's elements."""
        older = self._older(kind)
        if older and isinstance(kind, StructType) and (ways := ways_of(self.older, kind)):
            return ColumnCodec(kind, self.schema_id, older, ways)
        return ValueCodec(kind, self.schema_id, older)

    def ways(self, kind: StructType) -> dict[int, Way]:
        """Return by older schema id how its columns become the present ones; raise CorruptionError if they cannot."""
        found = ways_of(self.older, kind)
        if found is None:
            raise CorruptionError(
                f"columns that were stored with older schemas cannot become {kind.ddl}: some are of another type",
                hint="the manifest that says so was written by a newer release, or damaged",
            )
        return found

    def codec_of_chunks(self, element: DataType) -> ValueCodec:
        """Return the codec of a list's chunks."""
        older = {
            schema_id: (ArrayType(was), each_element(convert))
            for schema_id, (was, convert) in self._older(element).items()
        }
        return ValueCodec(ArrayType(element), self.schema_id, older)

    def _older(self, kind: DataType) -> dict[int, tuple[DataType, Convert | None]]:
        """Go back from the present type, a schema at a time: each step is what it was when the type was changed."""
        found: dict[int, tuple[DataType, Convert | None]] = {}
        then, rest = kind, None
        for schema_id in sorted(self.older, reverse=True):
            step = self.older[schema_id]
            was = parse_type(step.value_type)
            convert = _step(was, then, step)
            rest = _after(convert, rest)
            found[schema_id] = was, rest
            then = was
        return found


def _step(was: DataType, then: DataType, step: OlderSchema) -> Convert | None:
    fields = fields_of(then)
    unknown = [path for path in step.fill if path not in fields]
    found = Refusal(tuple(f"{then.ddl} has no field {path!r} to be filled" for path in unknown))
    if not unknown:
        fill = {path: ValueCodec(fields[path]).decode(value) for path, value in step.fill.items()}
        # What users may say was looked at when they did.
        made = evolve(was, then, Hints(step.renamed, fill, several=True))
        if not isinstance(made, Refusal):
            return made.convert
        found = made
    raise CorruptionError(
        f"values that were stored as {was.ddl} cannot become {then.ddl}: {'; '.join(found.reasons)}",
        hint="the manifest that says so was written by a newer release, or damaged",
    )


def _after(first: Convert | None, then: Convert | None) -> Convert | None:
    if first is None or then is None:
        return first or then
    return lambda value: then(first(value))


def codec_of(info: StateInfo) -> ValueCodec:
    """Return the codec that reads a state's stored values, of a list its chunks, from what its manifest says."""
    schemas, kind = Schemas.of(info), parse_type(info.value_type)
    return schemas.codec_of_chunks(kind) if info.kind == "list" else schemas.codec(kind)
