"""What a harness is asked to run, checked and made into a program as a job makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.keygroups import check_parallelism, default_max_parallelism
from strandline.core.settings import BackendName
from strandline.runtime.program import Program, check_process, check_sides, pickle_process, state_infos
from strandline.runtime.rowlayout import RowLayout
from strandline.testing.plans import Before, Planned, Prepared
from strandline.types.datatypes import StructType, parse_schema

_PARTITION_MEMORY_BYTES = 64 << 20
_LIMIT_BYTES = 10 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """One operator, in the user's words."""

    process: Any
    key: str | Sequence[str]
    output: str | None
    uid: str
    sides: Mapping[str, str] | None = None
    max_parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """What an operator is given: a schema, and what its rows come with. See Program."""

    schema: str
    layout: RowLayout
    measured: bool = False
    broadcast_order: Sequence[str] = ()


def make_program(wanted: Wanted, reads: Input, backend: BackendName, parallelism: int) -> tuple[Program, Before | None]:
    """Return the program of an operator that reads this, and what becomes of its rows before."""
    uid, schema = wanted.uid, parse_schema(reads.schema)
    keys = checked_keys(wanted.key, schema, f"operator '{uid}': its key")
    planned = _planned(wanted, schema, keys, timed=reads.layout.timed)
    process, sides, before = planned.operator, planned.sides, planned.before
    check_process(process, uid)
    check_sides(uid, sides)
    state_infos(process)
    most = wanted.max_parallelism or default_max_parallelism(parallelism)
    check_parallelism(uid, parallelism, most)
    program = Program(
        job="harness",
        generation=1,
        uid=uid,
        name=type(process).__name__,
        process=pickle_process(process, uid),
        key_columns=keys,
        input_schema=reads.schema if before is None else before.schema,
        output_schema=parse_schema(planned.output).ddl,
        sides={name: parse_schema(ddl).ddl for name, ddl in sides.items()},
        parallelism=parallelism,
        max_parallelism=most,
        backend=backend,
        mode="full",
        store_url="memory://",
        partition_memory_bytes=_PARTITION_MEMORY_BYTES,
        limit_bytes=_LIMIT_BYTES,
        lease_ms=0,
        layout=reads.layout,
        gives_time=reads.layout.timed,
        measured=reads.measured,
        broadcast_order=list(reads.broadcast_order),
    )
    return program, before


def _planned(wanted: Wanted, schema: StructType, keys: Sequence[str], *, timed: bool) -> Planned:
    """Return the process function, its output and its side outputs: of windows and aggregates, they are known."""
    uid, process = wanted.uid, wanted.process
    if isinstance(process, Prepared):
        if wanted.output is not None or wanted.sides is not None:
            raise ConfigurationError(
                f"operator '{uid}': output or sides was given, and windows and aggregates have their own",
                hint="leave them out: window(…, late=name) gives a side output of the input's columns",
            )
        return process.plan(schema, keys, uid, timed=timed)
    if wanted.output is None:
        raise ConfigurationError(
            f"operator '{uid}': it is not said which columns its rows have", hint='give output="user string, n bigint"'
        )
    return Planned(process, wanted.output, wanted.sides or {})


def side_of(program: Program, name: str) -> int:
    """Return the number of a side output, from 1."""
    if name not in program.sides:
        known = ", ".join(program.sides) or "none"
        raise ConfigurationError(
            f"operator '{program.uid}' has no side output '{name}', known: {known}", hint="declare it in `sides`"
        )
    return 1 + list(program.sides).index(name)


def checked_keys(key: str | Sequence[str], schema: StructType, what: str) -> list[str]:
    """Return the key's columns; errors begin with `what`."""
    keys = [key] if isinstance(key, str) else list(key) if isinstance(key, Sequence) else [key]
    missing = [name for name in keys if name not in schema.names]
    if missing or not keys:
        said = ", ".join(map(str, missing)) or "nothing"
        raise ConfigurationError(f"{what} is {said}, expected some of the columns {', '.join(schema.names)}")
    return keys
