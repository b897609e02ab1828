"""Options that every operator has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from strandline.api.badrecords import OnError, Then


class OperatorOptions(TypedDict, total=False):
    """Options of process(), reduce(), fold(), aggregate() and the joins."""

    name: str | None
    """The operator's name in status and logs; unless given, that of the function or the method."""
    parallelism: int | None
    """The operator's number of partitions, unless it is the job's; each start may change it."""
    max_parallelism: int | None
    """The greatest parallelism that its state can have. It changes through a savepoint alone (`sl.state.patch`)."""
    on_error: OnError | Then
    """What becomes of an event that the operator fails for: see `dead_letters`."""


def check_options(method: str, options: Mapping[str, object]) -> None:
    """Raise TypeError for options of a method that no operator has, as Python does for other arguments."""
    for name in options.keys() - OperatorOptions.__annotations__.keys():
        known = ", ".join(OperatorOptions.__annotations__)
        raise TypeError(f"{method}() got an unexpected keyword argument '{name}'; all operators have {known}")


def with_name(method: str, options: OperatorOptions, name: str) -> OperatorOptions:
    """Return the options of a method with a name, unless they have one. Raises TypeError as `check_options` does."""
    check_options(method, options)
    return {**options, "name": options.get("name") or name}
