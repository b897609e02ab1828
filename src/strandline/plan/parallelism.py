"""How many partitions each operator has: several may say so, and one of them counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strandline.core.errors import ConfigurationError
from strandline.format.manifest import OperatorInfo
from strandline.plan.graph import OperatorNode


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """What is said of operators' parallelism beside what the program says of each.

    The first of these counts: what a running job was told of the operator, what the program says of it, `job`, what the
    operator is stored with, what most stored operators have, `default`.
    """

    default: int
    """Spark's."""
    job: int | None = None
    """Of operators without a parallelism of their own."""
    is_room: bool = False
    """Whether `job` is what there is room for: operators that may not have so many have as many as they may."""
    most: int = 0
    """What `job` may become later, as far as that is known."""
    told: Mapping[str, int] = field(default_factory=dict)
    """By uid: what a running job was told of single operators."""

    def own(self, node: OperatorNode) -> int | None:
        """Return an operator's own parallelism, if it has one."""
        return self.told.get(node.uid) or node.parallelism

    def common(self, stored: Sequence[OperatorInfo] = ()) -> int:
        """Return that of an operator that is new and has none of its own."""
        counted = Counter(info.parallelism for info in stored)
        most = max(counted, key=lambda number: (counted[number], number), default=None)
        return self.job or most or self.default


@dataclass(frozen=True)
class ParallelismOverride:
    """What a running job was told of its parallelism; it outlives restarts, until the job is started again."""

    job: int | None = None
    operators: Mapping[str, int] = field(default_factory=dict)
    is_room: bool = False
    """Whether `job` follows the room that there is; not any more once somebody gives a number."""

    def and_then(self, wanted: int | Mapping[str, int]) -> ParallelismOverride:
        """Return what it was told when it is told something more."""
        if isinstance(wanted, Mapping):
            return replace(self, operators={**self.operators, **wanted})
        return ParallelismOverride(wanted, self.operators)


def most_on_one(parallelisms: Iterable[int], machines: int) -> int:
    """Return how many keepers a machine has at most: those of one parallelism are spread evenly, for themselves."""
    return sum(math.ceil(number / machines) for number in parallelisms)


def check_wanted(wanted: int | Mapping[str, int], known: Sequence[str]) -> None:
    """Refuse what is no parallelism of a job, or of operators that it has."""
    if isinstance(wanted, Mapping):
        for uid in wanted:
            if uid not in known:
                raise ConfigurationError(
                    f"rescale: the job has no operator '{uid}', it has {', '.join(sorted(known)) or 'none'}",
                    hint="name operators by their uids",
                )
    given = dict(wanted) if isinstance(wanted, Mapping) else {"": wanted}
    for uid, number in given.items():
        of = f" of operator '{uid}'" if uid else ""
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigurationError(f"rescale: the parallelism{of} is {number!r}, expected a positive number")
    if not given:
        raise ConfigurationError(
            "rescale: no operator is named", hint='write run.rescale(4) or run.rescale({"uid": 4})'
        )
