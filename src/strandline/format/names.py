"""Names "uid", "uid.state" and "uid.state.field" in a snapshot, where uids and names of states may contain dots.

A name refers to what exists in the snapshot. An ambiguous name is refused and needs quotes, as in SQL: `"a.b"` is the
operator a.b, `"a"."b"` the state b of operator a.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strandline.core.errors import ConfigurationError
from strandline.format.manifest import OperatorInfo


class StatePath(NamedTuple):
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
        """The name with quotes, which is unambiguous."""
        return self._joined(_quoted(self.uid), _quoted(self.state))

    @property
    def spellings(self) -> set[str]:
        """All spellings of the name, with and without quotes."""
        uids, states = (self.uid, _quoted(self.uid)), (self.state, _quoted(self.state))
        return {self._joined(uid, state) for uid in uids for state in states}

    def _joined(self, uid: str, state: str) -> str:
        name = f"{uid}.{state}" if self.state else uid
        # A path in a list's elements or a map's values begins with brackets.
        return name + (f".{self.field}" if self.field and self.field[0] not in "[{" else self.field)


def everything_in(operators: Iterable[OperatorInfo]) -> list[StatePath]:
    """Return the names of all operators and their states, each operator before its states."""
    return [
        named
        for operator in operators
        for named in (StatePath(operator.uid), *(StatePath(operator.uid, state.name) for state in operator.states))
    ]


def find_named(what: str, name: str, there: Sequence[StatePath]) -> StatePath | None:
    """Return the operator or state that a name refers to; None if there is none.

    Raises ConfigurationError, with all candidates, if the name is ambiguous; `what` is the place of the name.
    """
    matches = matching_names(name, there)
    if len(matches) > 1:
        raise ConfigurationError(
            f"{what} names '{name}', which may be {' or '.join(map(str, matches))}",
            hint=f"write it with quotes: {' or '.join(one.quoted for one in matches)}",
        )
    return matches[0] if matches else None


def name_in(there: Sequence[StatePath], named: StatePath) -> str:
    """Return the name of an operator or state, with quotes only if it would be ambiguous."""
    return named.plain if matching_names(named.plain, there) == [named] else named.quoted


def matching_names(name: str, there: Sequence[StatePath]) -> list[StatePath]:
    """Return the operators and states that a name may refer to."""
    matches = [one for one in there if one.plain == name]
    if not matches and '"' in name:
        matches = [one for one in there if name in one.spellings]
    return matches


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
