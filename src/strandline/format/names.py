"""Names "uid", "uid.state" and "uid.state.field" of a snapshot: uids and names of states may have dots themselves.

A name means what there is of it. What may be two things is refused, and is said with quotes, as in SQL: `"a.b"` is the
operator a.b, `"a"."b"` the state b of operator a.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.core.errors import ConfigurationError
from strandline.format.manifest import OperatorInfo


class Named(NamedTuple):
    """An operator, one of its states, or a field of one."""

    uid: str
    state: str = ""
    """ "" for the operator itself."""
    field: str = ""
    """A path in the state's type; "" for the state itself."""

    def __str__(self) -> str:
        field = f"the field {self.field} of " if self.field else ""
        return (
            f"{field}the state '{self.state}' of operator '{self.uid}'" if self.state else f"the operator '{self.uid}'"
        )

    @property
    def plain(self) -> str:
        """The name without quotes."""
        return self._joined(self.uid, self.state)

    @property
    def quoted(self) -> str:
        """The name that can mean nothing else."""
        return self._joined(_quoted(self.uid), _quoted(self.state))

    @property
    def spellings(self) -> set[str]:
        """All ways to write the name."""
        uids, states = (self.uid, _quoted(self.uid)), (self.state, _quoted(self.state))
        return {self._joined(uid, state) for uid in uids for state in states}

    def _joined(self, uid: str, state: str) -> str:
        name = f"{uid}.{state}" if self.state else uid
        # Of a list's elements and a map's values, a path begins with brackets.
        return name + (f".{self.field}" if self.field and self.field[0] not in "[{" else self.field)


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
    return named.plain if meant(named.plain, there) == [named] else named.quoted


def meant(name: str, there: Sequence[Named]) -> list[Named]:
    """Return which of these a name may mean."""
    found = [one for one in there if one.plain == name]
    if not found and '"' in name:
        found = [one for one in there if name in one.spellings]
    return found


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
