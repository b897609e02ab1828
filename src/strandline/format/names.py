"""What "uid" and "uid.state" name in a snapshot: uids of operators and names of states may have dots themselves.

A name means what there is of it. What may be two things is refused, and is said with quotes, as in SQL: `"a.b"` is the
operator a.b, `"a"."b"` the state b of operator a.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.core.errors import ConfigurationError
from strandline.format.manifest import OperatorInfo

_PART = r'(?:"((?:[^"]|"")+)"|([^"]+?))'
_QUOTED = re.compile(rf"{_PART}(?:\.{_PART})?")


class Named(NamedTuple):
    """An operator, or one of its states."""

    uid: str
    state: str = ""
    """ "" for the operator itself."""

    def __str__(self) -> str:
        return f"the state '{self.state}' of operator '{self.uid}'" if self.state else f"the operator '{self.uid}'"

    @property
    def quoted(self) -> str:
        """The name that can mean nothing else."""
        return ".".join(f'"{part.replace(chr(34), chr(34) * 2)}"' for part in self if part)


def everything_in(operators: Iterable[OperatorInfo]) -> list[Named]:
    """Return all that can be named: operators, each before its states."""
    return [
        named
        for operator in operators
        for named in (Named(operator.uid), *(Named(operator.uid, state.name) for state in operator.states))
    ]


def find_named(what: str, name: str, there: Sequence[Named]) -> Named | None:
    """Return the one of these that a name means; None if it means none.

    Raises ConfigurationError if it may be several, saying which; `what` says where the name was given.
    """
    found = meant(name, there)
    if len(found) > 1:
        raise ConfigurationError(
            f"{what} names '{name}', which may be {' or '.join(map(str, found))}",
            hint=f"write it with quotes: {' or '.join(one.quoted for one in found)}",
        )
    return found[0] if found else None


def name_in(there: Sequence[Named], named: Named) -> str:
    """Return how something that is there is named: with quotes only where it has to be."""
    plain = ".".join(part for part in named if part)
    return plain if meant(plain, there) == [named] else named.quoted


def meant(name: str, there: Sequence[Named]) -> list[Named]:
    """Return which of these a name may mean."""
    found = [one for one in there if ".".join(part for part in one if part) == name]
    if not found and '"' in name and (match := _QUOTED.fullmatch(name)):
        uid, plain_uid, state, plain_state = match.groups()
        parts = Named(*(part.replace('""', '"') for part in (uid or plain_uid, state or plain_state or "")))
        found = [one for one in there if one == parts]
    return found
