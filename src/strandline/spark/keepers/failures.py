"""What went wrong, behind what Spark says of it."""

from __future__ import annotations

import re

from strandline.core.errors import StrandlineError, UserCodeError
from strandline.spark.base.marks import unmark

_DATA_EXCEPTION = re.compile(r"\[[A-Z][A-Z_.0-9]*\] .{0,2000}? SQLSTATE: 22\w{3}", re.DOTALL)


def find_error(error: BaseException) -> BaseException:
    """Return the error that Spark wrapped, if it is one of ours or the rows' own; else the error itself."""
    if isinstance(error, StrandlineError):
        return error
    said = str(error)
    return unmark(said) or _of_rows(said) or error


def _of_rows(said: str) -> UserCodeError | None:
    """Return the error of an expression that rows do not fit, by the SQL standard's class of such errors."""
    found = _DATA_EXCEPTION.search(said)
    if found is None:
        return None
    return UserCodeError(
        f"rows do not fit an expression of the program: {found[0]}",
        hint="cast to a wider type, drop such rows, or take an expression that gives null for them, as try_cast does",
    )
