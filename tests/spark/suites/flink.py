"""Reads Flink's test programs as cases: the rows before a restore, a restart, and the rows after it."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.suites.cases import HIDDEN, Case, Check, Input, Row, UnreadableError, as_versions, normal
from tests.spark.suites.flinkjars import PROGRAMS

_OTHER = {
    "ProcessTableFunctionTestPrograms": "process table functions, which are Java", "QueryOperationTestPrograms": "the Table API",
    "MLPredictTestPrograms": "models", "VectorSearchTestPrograms": "vector search", "AsyncCalcTestPrograms": "functions in Java",
    "AsyncCorrelateTestPrograms": "functions in Java", "ToChangelogTestPrograms": "process table functions of Flink's own",
    "FromChangelogTestPrograms": "process table functions of Flink's own",
    "ConstraintEnforcerTestPrograms": "what a sink does with NULL and lengths",
}  # fmt: skip
"""Programs that are about something else than queries."""
_INSERT = re.compile(
    r"\s*insert\s+(?:into|overwrite)\s+`?(\w+)`?\s*(?:partition\s*\(([^()]*)\))?\s*(\([^()]*\))?\s*(?=\(|select|with|values|\()", re.I
)  # fmt: skip
"""A sink, its static partition, and the columns that are written."""
_VIEW = re.compile(r"\s*create\s+(?:temporary\s+)?view\s+`?(\w+)`?\s+as\s+", re.I)
_SOON = re.compile(r"STATE_TTL\s*\([^)]*'\d+\s*s'", re.I)
_PARTS = 2
"""Into how many epochs the rows before and after a restore are cut."""


def programs() -> Iterator[tuple[str, Case | str]]:
    """Yield each program's name, and its case or why there is none."""
    times: Counter[str] = Counter()
    for program in json.loads(PROGRAMS.read_text())["programs"]:
        name = f"{program['class'].removesuffix('TestPrograms')}/{program['id']}"
        times[name] += 1
        if times[name] > 1:
            # Flink has two programs of one name.
            name = f"{name}-{times[name]}"
        try:
            if program["class"] in _OTHER:
                raise UnreadableError(f"not about queries: {_OTHER[program['class']]}")
            yield name, _case(name, program["steps"])
        except (UnreadableError, PySparkException, ValueError) as error:
            yield name, str(error)


def _case(name: str, steps: Sequence[dict[str, Any]]) -> Case:
    inputs, sinks, views = [], {}, []
    checks: list[Check] = []
    for step in _statements(steps):
        match step["kind"]:
            case "SourceTestStep":
                inputs.append(_input(step))
            case "SinkTestStep":
                sinks[step["name"]] = step
            case "FunctionTestStep":
                raise UnreadableError("a function in Java")
            case "SqlTestStep" if found := _VIEW.match(step["sql"]):
                query = step["sql"][found.end() :]
                if re.match(r"select\s+\*\s+from\s*\(\s*values\b", query, re.I):
                    inputs.append(_values(found[1], query))
                else:
                    views.append((found[1], query))
            case "SqlTestStep" if _SOON.search(step["sql"]):
                raise UnreadableError("state that is forgotten after seconds, which an epoch takes here")
            case "SqlTestStep" if found := _INSERT.match(step["sql"]):
                sink = sinks.get(found[1])
                if sink is None:
                    raise UnreadableError(f"no sink {found[1]}")
                view = f"{found[1]}_{len(checks)}"
                text = re.sub(r"\bon conflict do \w+\s*$", "", step["sql"][found.end() :].rstrip("; \n"), flags=re.I)
                views.append((view, _inserted(sink, view, text, found[2], found[3])))
                checks += [
                    Check(_PARTS, f"SELECT * FROM {view}", _materialized(sink, sink["before"])),
                    Check(2 * _PARTS, f"SELECT * FROM {view}", _materialized(sink, [*sink["before"], *sink["after"]])),
                ]
            case "SqlTestStep":
                raise UnreadableError(f"not a query: {step['sql'].strip()[:60]}")
            case "FailingSqlTestStep":
                raise UnreadableError("not about queries: what ON CONFLICT of a sink is refused")
            case "TemporalFunctionTestStep":
                raise UnreadableError("not about queries: temporal table functions, which are Java")
            case "ConfigOptionTestStep":
                pass
            case kind:
                raise UnreadableError(f"a {kind}")
    if not checks:
        raise UnreadableError("no query")
    for step in steps:
        for component in _components(step.get("schema", ())):
            column = re.match(r"`?(\w+)`?\s+as\s+.*proctime", component, re.I)
            if column and any(re.search(rf"\b{column[1]}\b", query) for _, query in views):
                raise UnreadableError("the time of processing, which a restart would have otherwise")
    return Case("Flink", name, inputs, views, checks, restart_after=_PARTS)


def _statements(steps: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield steps; those that run several statements become one for each."""
    for step in steps:
        if step["kind"] == "StatementSetTestStep":
            yield from ({"kind": "SqlTestStep", "sql": text} for text in step["statements"])
        else:
            yield step


def _inserted(sink: dict[str, Any], view: str, text: str, partition: str | None, columns: str | None) -> str:
    """Return a query of the sink's columns, in the order in which its rows are expected."""
    names = [name for name, _ in _columns(sink["schema"])]
    fixed = dict(re.split(r"\s*=\s*", each.strip(), maxsplit=1) for each in partition.split(",")) if partition else {}
    written = columns.split(",") if columns else [name for name in names if name not in fixed]
    given = [each.strip(" `()\n") for each in written]
    listed = ", ".join(
        f"`{name}`" if name in given else f"{fixed.get(name, 'NULL')} AS `{name}`" for name in _stored(sink)
    )
    return f"SELECT {listed} FROM (\n{text}\n) AS {view}({', '.join(f'`{each}`' for each in given)})"


def _stored(table: dict[str, Any]) -> list[str]:
    """Return names of columns in the order of Flink's rows: metadata is behind, in the order that the connector gives."""
    names = [name for name, _ in _columns(table["schema"])]
    listed = table["options"].get("writable-metadata") or table["options"].get("readable-metadata") or ""
    metadata = [each for found in listed.split(",") if (each := found.partition(":")[0].strip()) in names]
    return [*(name for name in names if name not in metadata), *metadata]


def _key(schema: Sequence[str]) -> list[str]:
    """Return the columns of the primary key."""
    for text in _components(schema):
        if found := re.match(r"(?:constraint\s+\S+\s+)?`?primary`?\s+key\s*\(([^)]*)\)", text, re.I):
            return [each.strip(" `") for each in found[1].split(",")]
        if re.search(r"\w+\s+.*primary key", text, re.I):
            return [text.split()[0].strip("`")]
    return []


def _components(schema: Sequence[str]) -> list[str]:
    """Return the parts of a schema, of which one text may have several."""
    return [part.strip() for text in schema for part in re.split(r",(?![^(<]*[)>])", text)]


def _columns(schema: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names and types of columns that are stored."""
    found = []
    for text in _components(schema):
        if re.match(r"(watermark|`?primary`? key|constraint|index)\b", text, re.I):
            continue
        name, _, rest = text.replace("`", "").partition(" ")
        if re.match(r"(as|metadata)\b", rest.strip(), re.I):
            continue
        found.append((name, spark_type(rest)))
    return found


def spark_type(text: str) -> str:
    """Return a type of Flink as one of Spark's."""
    kind = re.sub(
        r"\s*(not null|null|primary key|not enforced|unique|metadata(\s+from\s+'[^']*')?(\s+virtual)?)(?!\w)", "", text.strip(), flags=re.I
    )  # fmt: skip
    for pattern, other in (
        (r"\bROW\s*<", "struct<"), (r"\b(VAR)?CHAR\s*\(\d+\)", "string"), (r"\b(VAR)?CHAR\b", "string"), (r"\bINTEGER\b", "int"),
        (r"\bTIMESTAMP_LTZ\b(\(\d\))?", "timestamp"), (r"\bTIMESTAMP\(\d\) WITH LOCAL TIME ZONE", "timestamp"),
        (r"\bTIMESTAMP\b(\(\d\))?( WITHOUT TIME ZONE)?", "timestamp"), (r"\b(VAR)?BINARY\s*\(\d+\)|\bBYTES\b", "binary"),
        (r"\bTIME\b(\(\d\))?", "string"), (r"\bNUMERIC\b", "decimal"),
    ):  # fmt: skip
        kind = re.sub(pattern, other, kind, flags=re.I)
    if re.search(r"\b(multiset|raw|structured|variant|interval)\b", kind, re.I):
        raise UnreadableError(f"a column of type {text}")
    return kind.strip()


def _input(step: dict[str, Any]) -> Input:
    stored = dict(_columns(step["schema"]))
    columns, key = [(name, stored[name]) for name in _stored(step)], _key(step["schema"])
    computed, watermark = [], None
    for text in _components(step["schema"]):
        if found := re.match(
            r"watermark\s+for\s+`?(\w+)`?\s+as\s+`?\w+`?\s*(?:-\s*interval\s+'(\d+)'\s+(\w+))?", text, re.I
        ):
            watermark = (found[1], f"{found[2] or 0} {(found[3] or 'second').lower()}")
        elif (found := re.match(r"`?(\w+)`?\s+as\s+(.*)", text, re.I | re.S)) and "proctime" not in found[2].lower():
            ltz = re.sub(r"to_timestamp_ltz\s*\((.*),\s*3\s*\)", r"timestamp_millis(\1)", found[2], flags=re.I)
            computed.append((found[1], ltz))
    types = [kind for _, kind in columns]
    epochs = [each for part in ("before", "after") for each in _cut([_change(row, types) for row in step[part]])]
    kinds = {kind for changes in epochs for kind, _ in changes}
    rows: list[list[Row]]
    if kinds <= {"+I"}:
        return Input(step["name"], columns, [[row for _, row in some] for some in epochs], [], computed, watermark)
    if key and "-U" not in kinds:
        rows = [[(*row, kind == "-D") for kind, row in some] for some in epochs]
        return Input(step["name"], columns, rows, key, computed, watermark)
    columns = [(HIDDEN, "bigint"), *columns]
    return Input(step["name"], columns, as_versions(epochs), [HIDDEN], computed, watermark)


def _values(name: str, query: str) -> Input:
    """Return a table of rows that stand in a query."""
    df = SparkSession.active().sql(query)
    columns = [(each.name, each.dataType.simpleString()) for each in df.schema.fields]
    parts = _cut([("+I", tuple(row)) for row in df.collect()])
    return Input(name, columns, [[row for _, row in some] for some in parts])


def _cut(changes: list[tuple[str, Row]]) -> list[list[tuple[str, Row]]]:
    middle = (len(changes) + 1) // 2
    return [changes[:middle], changes[middle:]]


def _change(row: Sequence[Any], types: Sequence[str]) -> tuple[str, Row]:
    from pyspark.sql.types import StructType

    # Columns behind those of the table are metadata that it does not declare.
    kind, *values = row[: len(types) + 1]
    fields = StructType.fromDDL(", ".join(f"c{at} {each}" for at, each in enumerate(types))).fields
    return kind, tuple(_value(value, each.dataType) for value, each in zip(values, fields, strict=True))


def _value(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    match kind.typeName():
        case "decimal":
            return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
        case "timestamp":
            return dt.datetime.fromisoformat(value.replace("Z", "").replace(" ", "T"))
        case "date":
            return dt.date.fromisoformat(value)
        case "struct":
            return tuple(_value(each, of.dataType) for each, of in zip(value, kind.fields, strict=True))
        case "array":
            return [_value(each, kind.elementType) for each in value]
        case "map":
            return {_value(k, kind.keyType): _value(v, kind.valueType) for k, v in value}
        case "double" | "float":
            return float(value)
        case "string":
            return str(value)
        case "binary":
            return bytes(each % 256 for each in value)
    return value


def _materialized(sink: dict[str, Any], changes: Sequence[str]) -> list[str] | None:
    """Return the rows that changes make, of a table with a key or a bag; None if they do not add up."""
    names = _stored(sink)
    at = [names.index(each) for each in _key(sink["schema"])]
    rows: dict[Any, list[str]] = {}
    for change in changes:
        kind, row = change[:2], normal(change[3:-1])
        values = row.split(",")
        of = tuple(values[i] for i in at) if at and len(values) == len(names) else row
        if kind in ("+I", "+U"):
            rows[of] = [row] if at else [*rows.get(of, []), row]
        elif rows.get(of):
            rows[of].pop()
        elif not at:
            return None
    return [row for some in rows.values() for row in some]
