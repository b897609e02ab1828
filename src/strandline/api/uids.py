"""Uids of renamed operators."""

from __future__ import annotations

from strandline.core.errors import ConfigurationError


class Uid(str):
    """An operator's uid, with the former uid under which its state is stored."""

    __slots__ = ("was",)
    was: str


def uid(name: str, *, was: str) -> Uid:
    """Return a uid for a renamed operator, which restores the state that is stored under `was`.

    Once a checkpoint holds the state under the new name, `was` has no effect and may stay.

    >>> totals = uid("totals", was="sums")
    """
    for option, value in (("its name", name), ("was", was)):
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(
                f"uid: {option} is {value!r}, expected text", hint='write it like uid("totals", was="sums")'
            )
    if name == was:
        raise ConfigurationError(f"uid: '{name}' was called '{was}' before, which is the same", hint="leave was= out")
    renamed = Uid(name)
    renamed.was = str(was)
    return renamed
