"""What a harness is asked to run, checked and made into a program as a job makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.keygroups import check_parallelism, default_max_parallelism
from strandline.core.settings import BackendName
from strandline.format.types import StructType, TimestampType, parse_schema
from strandline.runtime.program import Program, check_process, check_sides, pickle_process, state_infos

_PARTITION_MEMORY_BYTES = 64 << 20
_LIMIT_BYTES = 10 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """One operator, in the user's words."""

    process: Any
    key: str | Sequence[str]
    output: str
    uid: str
    sides: Mapping[str, str] | None = None
    max_parallelism: int | None = None


def make_program(
    wanted: Wanted, schema: str, backend: BackendName, parallelism: int, *, timed: bool, phased: bool, measured: bool
) -> Program:
    """Return the program of an operator whose events have a schema."""
    uid, process = wanted.uid, wanted.process
    check_process(process, uid)
    check_sides(process, uid, wanted.sides or {})
    state_infos(process)
    most = wanted.max_parallelism or default_max_parallelism(parallelism)
    check_parallelism(uid, parallelism, most)
    return Program(
        job="harness",
        generation=1,
        uid=uid,
        name=type(process).__name__,
        process=pickle_process(process, uid),
        key_columns=_checked_keys(wanted, parse_schema(schema)),
        input_schema=schema,
        output_schema=parse_schema(wanted.output).ddl,
        sides={name: parse_schema(ddl).ddl for name, ddl in (wanted.sides or {}).items()},
        parallelism=parallelism,
        max_parallelism=most,
        backend=backend,
        mode="full",
        store_url="memory://",
        partition_memory_bytes=_PARTITION_MEMORY_BYTES,
        limit_bytes=_LIMIT_BYTES,
        lease_ms=0,
        timed=timed,
        gives_time=timed,
        phased=phased,
        measured=measured,
    )


def check_event_time(schema: StructType, event_time: str | None, watermark: str | None) -> None:
    """Refuse an event time that no column has."""
    if event_time is None:
        if watermark is not None:
            raise ConfigurationError(
                "Harness: watermark was given without event_time", hint='say which column it follows: event_time="ts"'
            )
        return
    kinds = {field.name: field.type for field in schema.fields}
    if event_time not in kinds:
        raise ConfigurationError(f"Harness: event_time='{event_time}' is no column; there are {', '.join(kinds)}")
    if not isinstance(kinds[event_time], TimestampType):
        raise ConfigurationError(f"Harness: the column '{event_time}' is {kinds[event_time].ddl}, expected timestamp")


def side_of(program: Program, name: str) -> int:
    """Return the number of a side output, from 1."""
    if name not in program.sides:
        known = ", ".join(program.sides) or "none"
        raise ConfigurationError(
            f"operator '{program.uid}' has no side output '{name}', known: {known}", hint="declare it in `sides`"
        )
    return 1 + list(program.sides).index(name)


def _checked_keys(wanted: Wanted, schema: StructType) -> list[str]:
    keys = [wanted.key] if isinstance(wanted.key, str) else list(wanted.key)
    missing = [name for name in keys if name not in schema.names]
    if missing or not keys:
        raise ConfigurationError(
            f"operator '{wanted.uid}': its key is {', '.join(missing) or 'nothing'}, expected some of the columns "
            f"{', '.join(schema.names)}"
        )
    return keys
