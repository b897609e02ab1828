"""Reads Flink's test programs as cases: the rows before a restore, a restart, and the rows after it."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException

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
_INSERT = re.compile(r"\s*insert\s+into\s+`?(\w+)`?\s*(\([^()]*\))?\s*(?=\(|select|with|values|\()", re.I)
_VIEW = re.compile(r"\s*create\s+(?:temporary\s+)?view\s+`?(\w+)`?\s+as\s+", re.I)
_PARTS = 2
"""Into how many epochs the rows before and after a restore are cut."""


def programs() -> Iterator[tuple[str, Case | str]]:
    """Yield each program's name, and its case or why there is none."""
    for program in json.loads(PROGRAMS.read_text())["programs"]:
        name = f"{program['class'].removesuffix('TestPrograms')}/{program['id']}"
        try:
            if program["class"] in _OTHER:
                raise UnreadableError(f"not about queries: {_OTHER[program['class']]}")
            yield name, _case(name, program["steps"])
        except (UnreadableError, PySparkException, ValueError) as error:
            yield name, str(error)


def _case(name: str, steps: Sequence[dict[str, Any]]) -> Case:
    inputs, sinks, views, checks = [], {}, [], []
    for step in steps:
        match step["kind"]:
            case "SourceTestStep":
                inputs.append(_input(step))
            case "SinkTestStep":
                sinks[step["name"]] = step
            case "FunctionTestStep":
                raise UnreadableError("a function in Java")
            case "SqlTestStep" if found := _VIEW.match(step["sql"]):
                views.append((found[1], step["sql"][found.end() :]))
            case "SqlTestStep" if (found := _INSERT.match(step["sql"])) and not found[2]:
                sink = sinks.get(found[1])
                if sink is None:
                    raise UnreadableError(f"no sink {found[1]}")
                names = [name for name, _ in _columns(sink["schema"])]
                view = f"{found[1]}_{len(checks)}"
                text = re.sub(r"\bon conflict do \w+\s*$", "", step["sql"][found.end() :].rstrip("; \n"), flags=re.I)
                query = f"SELECT * FROM (\n{text}\n) AS {view}({', '.join(f'`{each}`' for each in names)})"
                views.append((view, query))
                checks += [
                    Check(_PARTS, f"SELECT * FROM {view}", _materialized(sink, sink["before"])),
                    Check(2 * _PARTS, f"SELECT * FROM {view}", _materialized(sink, [*sink["before"], *sink["after"]])),
                ]
            case "SqlTestStep":
                raise UnreadableError(f"not a query: {step['sql'].strip()[:60]}")
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
    kind = re.sub(r"\s*(not null|null|primary key|not enforced|unique)\b", "", text.strip(), flags=re.I)
    if re.search(r"\bmetadata\b", kind, re.I):
        raise UnreadableError(f"a column of metadata: {text}")
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
    columns, computed, watermark, key = _columns(step["schema"]), [], None, []
    for text in _components(step["schema"]):
        if found := re.match(r"(?:constraint\s+\S+\s+)?`?primary`?\s+key\s*\(([^)]*)\)", text, re.I):
            key = [each.strip(" `") for each in found[1].split(",")]
        elif found := re.match(
            r"watermark\s+for\s+`?(\w+)`?\s+as\s+`?\w+`?\s*(?:-\s*interval\s+'(\d+)'\s+(\w+))?", text, re.I
        ):
            watermark = (found[1], f"{found[2] or 0} {(found[3] or 'second').lower()}")
        elif found := re.match(r"`?(\w+)`?\s+as\s+(.*)", text, re.I | re.S):
            if "proctime" not in found[2].lower():
                ltz = re.sub(r"to_timestamp_ltz\s*\((.*),\s*3\s*\)", r"timestamp_millis(\1)", found[2], flags=re.I)
                computed.append((found[1], ltz))
        elif re.search(r"\bprimary key\b", text, re.I):
            key = [text.split()[0].strip("`")]
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


def _cut(changes: list[tuple[str, Row]]) -> list[list[tuple[str, Row]]]:
    middle = (len(changes) + 1) // 2
    return [changes[:middle], changes[middle:]]


def _change(row: Sequence[Any], types: Sequence[str]) -> tuple[str, Row]:
    from pyspark.sql.types import StructType

    kind, *values = row
    fields = StructType.fromDDL(", ".join(f"c{at} {each}" for at, each in enumerate(types))).fields
    if len(values) != len(fields):
        raise UnreadableError("rows with other columns than the table")
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
    names = [name for name, _ in _columns(sink["schema"])]
    key = next(
        (
            found[1]
            for text in sink["schema"]
            if (found := re.match(r"`?primary`?\s+key\s*\(([^)]*)\)", text.strip(), re.I))
        ),
        next(
            (text.split()[0] for text in _components(sink["schema"]) if re.search(r"\w+\s+.*primary key", text, re.I)),
            "",
        ),
    )
    at = [names.index(each.strip(" `")) for each in key.split(",")] if key else []
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
