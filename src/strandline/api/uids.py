"""What an operator was called before."""

from __future__ import annotations

from strandline.core.errors import ConfigurationError


class Uid(str):
    """An operator's uid that knows the one its state is stored under."""

    __slots__ = ("was",)
    was: str


def uid(name: str, *, was: str) -> Uid:
    """Return a uid for an operator that had another one: state that is stored under `was` is its own.

    Once a checkpoint has it under the new name, `was` means nothing any more, and may stay.

    >>> totals = uid("totals", was="sums")
    """
    for what, given in (("its name", name), ("was", was)):
        if not isinstance(given, str) or not given.strip():
            raise ConfigurationError(
                f"uid: {what} is {given!r}, expected text", hint='write it like uid("totals", was="sums")'
            )
    if name == was:
        raise ConfigurationError(f"uid: '{name}' was called '{was}' before, which is the same", hint="leave was= out")
    found = Uid(name)
    found.was = str(was)
    return found
