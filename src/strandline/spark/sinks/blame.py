"""Whose failure it is when an epoch is written: the sink's, its function's, or that of what gives the rows."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
from pyspark.sql import Row

from strandline.core.errors import ConfigurationError, SinkError, SparkError, StrandlineError, discreet
from strandline.core.failure import shortened
from strandline.core.ids import Epoch
from strandline.plan.callables import call, name_of
from strandline.spark.base.spark_errors import full_text, unwrap_error
from strandline.spark.base.task_errors import Seal, sealed_errors

_OURS = (str(Path(__file__).parents[2]), str(Path(pyspark.__file__).parent), "pyspark.zip", "py4j")
_STANDARD = sysconfig.get_paths()["stdlib"]
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARIES = ("psycopg", "psycopg_pool", "confluent_kafka", "pyiceberg", "deltalake", "duckdb", "pyarrow", "obstore")
"""What sinks of ours call: a line of theirs is neither the user's nor the sink's."""


def named(error: Exception, sink: str, epoch: Epoch | None = None) -> BaseException:
    """Return the error of a sink's step with the sink's name, and the line of the user's that raised it.

    What came of the rows on their way is left as it is: the sink was only the first to ask for them.
    """
    found = unwrap_error(error)
    if isinstance(found, StrandlineError) and type(found) not in (SparkError, ConfigurationError):
        return found
    where = f"sink '{sink}'" + ("" if epoch is None else f", epoch {epoch}")
    if type(found) is SparkError and epoch is not None:
        # It may be the sink's, or that of the steps before it, which run only now.
        where = f"while the rows of epoch {epoch} were made and given to sink '{sink}'"
    lines = users_lines(error.__traceback__)
    at = f" (at {lines[-1].strip()})" if lines else ""
    if isinstance(found, StrandlineError):
        renamed = type(found)(
            f"{where}: {found.message}{at}", hint=found.hint, discreet=f"{where}: {found.discreet}{at}", **found.fields
        )
        vars(renamed)["full_text"] = full_text(found)
        return renamed
    return raised(f"{where}: writing", error, lines)


def raised(where: str, error: BaseException, lines: list[str], row: Row | None = None) -> SinkError:
    """Return the error of a function that raised."""
    of = "" if row is None else f" on the row {shortened(repr(row))}"
    said = shortened(f"{type(error).__name__}: {error}")
    trace = "".join(f"\n  {line}" for line in lines)
    return SinkError(
        f"{where} raised{of}: {said}{trace}",
        hint="the job goes back to its last checkpoint and writes again; if it fails each time, mend the function",
        discreet=f"{where} raised {discreet(error)}{trace}",
    )


@dataclass(frozen=True)
class ForEach:
    """What runs in a task of `foreach`: the function, for each row of a partition."""

    seal: Seal
    sink: str
    function: Callable[[Row], Any]

    def __call__(self, rows: Iterable[Row]) -> None:
        with sealed_errors(self.seal):
            where = f"sink '{self.sink}': its function {name_of(self.function)}"
            for row in rows:
                try:
                    call(where, self.function, row)
                except ConfigurationError:
                    raise
                except Exception as error:
                    raise raised(where, error, users_lines(error.__traceback__), row) from error


def users_lines(trace: TracebackType | None) -> list[str]:
    """Return the places in the user's own code that a traceback leads through."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if _is_users(frame.filename)]
    return [f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}".rstrip(": ") for frame in own[-5:]]


def _is_users(filename: str) -> bool:
    if filename.startswith("<frozen") or any(part in filename for part in _OURS):
        return False
    parts = Path(filename).parts
    installed = next((at for at, part in enumerate(parts) if part in _INSTALLED), None)
    if installed is not None:
        return parts[installed + 1] not in _LIBRARIES
    return not filename.startswith(_STANDARD)
