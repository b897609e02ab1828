"""Flink's test programs, from the jars that Flink publishes: python -m tests.spark.suites.flinkjars

A program is data in a Java class: rows before and after a restore, SQL, and the rows that a sink then has. All of them
are read into build/suites/flink/programs.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.spark.suites.fetching import HOME, UnavailableSuiteError

VERSION = "2.3.0"
_GROUP = "org.apache.flink"
_TESTS = (
    f"{_GROUP}:flink-table-planner_2.12:{VERSION}:jar:tests", f"{_GROUP}:flink-table-api-java:{VERSION}:jar:tests",
    f"{_GROUP}:flink-table-common:{VERSION}:jar:tests",
)  # fmt: skip
_REST = (
    f"{_GROUP}:flink-table-planner_2.12:{VERSION}", f"{_GROUP}:flink-table-api-java-uber:{VERSION}",
    f"{_GROUP}:flink-dist:{VERSION}", f"{_GROUP}:flink-table-runtime:{VERSION}", f"{_GROUP}:flink-cep:{VERSION}",
)  # fmt: skip
PROGRAMS = HOME / "flink" / "programs.json"


def fetch() -> None:
    """Fetch the jars with Maven, and read their programs."""
    if shutil.which("mvn") is None:
        raise UnavailableSuiteError(
            "Flink's test programs are in jars: install Maven (mvn), or give --from a directory of them"
        )
    jars = HOME / "flink" / "jars"
    jars.mkdir(parents=True, exist_ok=True)
    for artifact in (*_TESTS, *_REST):
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={jars}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise UnavailableSuiteError(f"{artifact} cannot be fetched: {done.stdout[-1000:]}")
    read(jars)


def read(jars: Path) -> None:
    """Write what the programs in a directory of jars say."""
    import pyspark

    (py4j,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    paths = sorted(jars.glob("*.jar"))
    port = launch_gateway(jarpath=str(py4j), classpath=":".join(map(str, paths)), die_on_exit=True, javaopts=["-Xmx1g"])
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_field=True))
    try:
        programs = [program for path in paths for program in _programs(gateway.jvm, path)]
    finally:
        gateway.shutdown()
    PROGRAMS.parent.mkdir(parents=True, exist_ok=True)
    PROGRAMS.write_text(json.dumps({"version": VERSION, "programs": programs}, indent=1))
    print(f"{len(programs)} programs in {PROGRAMS}", file=sys.stderr)


def _programs(jvm: Any, path: Path) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith("TestPrograms.class"))
    for name in names:
        kind = name.removesuffix(".class").replace("/", ".")
        try:
            fields = jvm.java.lang.Class.forName(kind).getDeclaredFields()
            values = [_value_of(field) for field in fields]
        except Exception as error:
            yield {"class": kind.rpartition(".")[2], "id": "", "error": str(error).splitlines()[-1][:300]}
            continue
        for value in values:
            if value is not None and value.getClass().getSimpleName() == "TableTestProgram":
                yield {
                    "class": kind.rpartition(".")[2],
                    "id": value.id,
                    "description": value.description,
                    "steps": [_step(step) for step in [*value.setupSteps, *value.runSteps]],
                }


def _value_of(field: Any) -> Any:
    if not str(field.toString()).startswith(("public static", "static", "private static")):
        return None
    field.setAccessible(True)
    value = field.get(None)
    return value if hasattr(value, "getClass") else None


def _step(step: Any) -> dict[str, Any]:
    kind = step.getClass().getSimpleName()
    found: dict[str, Any] = {"kind": kind}
    match kind:
        case "SourceTestStep":
            found |= _table(step)
            found["before"], found["after"] = _rows(step.dataBeforeRestore), _rows(step.dataAfterRestore)
        case "SinkTestStep":
            found |= _table(step)
            found["before"], found["after"] = (
                list(given) if (given := getattr(step, f"get{name}AsStrings")()) is not None else []
                for name in ("ExpectedBeforeRestore", "ExpectedAfterRestore")
            )
            found["materialized"] = list(step.getExpectedMaterializedResultsAsStrings() or [])
        case "SqlTestStep":
            found["sql"] = step.sql
        case "StatementSetTestStep":
            found["statements"] = list(step.statements)
        case "FunctionTestStep":
            found |= {"name": step.name, "function": step.function.getName()}
        case "ConfigOptionTestStep":
            found |= {"option": step.option.key(), "value": str(step.value)}
    return found


def _table(step: Any) -> dict[str, Any]:
    return {"name": step.name, "schema": list(step.schemaComponents), "options": dict(step.options)}


def _rows(rows: Any) -> list[list[Any]]:
    """Return rows, each with its kind first."""
    return [[row.getKind().shortString(), *(_plain(row.getField(at)) for at in range(row.getArity()))] for row in rows]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what it has no type for is a text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return list(value)
    if not hasattr(value, "getClass"):
        return str(value)
    name = value.getClass().getSimpleName()
    if name == "Row":
        return [_plain(value.getField(at)) for at in range(value.getArity())]
    if name.endswith("Map"):
        return [[_plain(key), _plain(value[key])] for key in value]
    if name.endswith("[]") or "List" in name:
        return [_plain(each) for each in value]
    return value.toString()
