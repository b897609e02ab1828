"""Errors of a write: they name the sink, its function or the steps before it, and the user's line of code."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pyspark.sql import Row

from strandline.core.errors import ConfigurationError, SinkError, SparkError, StrandlineError, discreet
from strandline.core.failure import shortened
from strandline.core.ids import Epoch
from strandline.plan.callables import call, name_of
from strandline.spark.base.spark_errors import full_text, in_program, is_user_code, unwrap_error
from strandline.spark.base.task_errors import Seal, sealed_errors


def name_error(error: Exception, sink: str, epoch: Epoch | None = None) -> BaseException:
    """Return the error of a sink's step with the sink's name, and the user's line that raised it.

    Errors of earlier steps stay unchanged: the sink only triggered their computation.
    """
    cause = unwrap_error(error)
    if isinstance(cause, StrandlineError) and type(cause) not in (SparkError, ConfigurationError):
        return cause
    where = f"sink '{sink}'" + ("" if epoch is None else f", epoch {epoch}")
    if type(cause) is SparkError and epoch is not None:
        # The sink or an earlier step may have failed: Spark runs both only now.
        where = f"while the rows of epoch {epoch} were computed and written to sink '{sink}'"
    lines = user_lines(error.__traceback__)
    at = f" (at {in_program(lines).strip()})" if lines else ""
    if isinstance(cause, StrandlineError):
        renamed = type(cause)(
            f"{where}: {cause.message}{at}", hint=cause.hint, discreet=f"{where}: {cause.discreet}{at}", **cause.fields
        )
        vars(renamed)["full_text"] = full_text(cause)
        return renamed
    return function_error(f"{where}: writing", error, lines)


def function_error(where: str, error: BaseException, lines: list[str], row: Row | None = None) -> SinkError:
    """Return the error for a user's function that raised."""
    of = "" if row is None else f" on the row {shortened(repr(row))}"
    message = shortened(f"{type(error).__name__}: {error}")
    trace = "".join(f"\n  {line}" for line in lines)
    return SinkError(
        f"{where} raised{of}: {message}{trace}",
        hint="the job goes back to its last checkpoint and writes again; if it fails each time, correct the function",
        discreet=f"{where} raised {discreet(error)}{trace}",
    )


@dataclass(frozen=True)
class ForEach:
    """The task of `foreach`: calls the function for each row of a partition."""

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
                    raise function_error(where, error, user_lines(error.__traceback__), row) from error


def user_lines(trace: TracebackType | None) -> list[str]:
    """Return the lines of the user's code in a traceback."""
    frames = [frame for frame in traceback.extract_tb(trace) if is_user_code(frame.filename)]
    return [f"{each.filename}, line {each.lineno}, in {each.name}: {each.line}".rstrip(": ") for each in frames[-5:]]
