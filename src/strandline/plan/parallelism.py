"""Parallelism of a job and of its operators: the values that apply, in order of precedence."""

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
    """Values from outside the program for the parallelism of operators.

    The first that exists applies: an override of a running job for the operator, the program's value for it, `job`, the
    operator's stored value, the most frequent stored value, `default`.
    """

    default: int
    """Spark's default parallelism."""
    job: int | None = None
    """The parallelism of operators without an explicit one."""
    is_room: bool = False
    """Whether `job` follows the cluster's size: an operator with a lower maximum then has its maximum."""
    most: int = 0
    """The largest value that `job` may have later; 0 if unknown."""
    max_parallelism: int | None = None
    """The maximum for operators without an explicit one."""
    overrides: Mapping[str, int] = field(default_factory=dict)
    """By uid: overrides of a running job for single operators."""

    def explicit(self, node: OperatorNode) -> int | None:
        """Return an operator's explicit parallelism, or None."""
        return self.overrides.get(node.uid) or node.parallelism

    def common(self, stored: Sequence[OperatorInfo] = ()) -> int:
        """Return the parallelism of a new operator without an explicit one."""
        counted = Counter(info.parallelism for info in stored)
        most = max(counted, key=lambda number: (counted[number], number), default=None)
        return self.job or most or self.default


@dataclass(frozen=True)
class ParallelismOverride:
    """Override of a running job's parallelism. It survives restarts, and ends with the run."""

    job: int | None = None
    operators: Mapping[str, int] = field(default_factory=dict)
    is_room: bool = False
    """Whether `job` follows the cluster's size. An explicit number ends that."""

    def merge(self, wanted: int | Mapping[str, int]) -> ParallelismOverride:
        """Return this override with a later one applied to it."""
        if isinstance(wanted, Mapping):
            return replace(self, operators={**self.operators, **wanted})
        return ParallelismOverride(wanted, self.operators)


def most_on_one(parallelisms: Iterable[int], machines: int) -> int:
    """Return the maximum of keepers on a machine: each operator's keepers are spread evenly."""
    return sum(math.ceil(number / machines) for number in parallelisms)


def check_wanted(wanted: int | Mapping[str, int], known: Sequence[str]) -> None:
    """Refuse an invalid parallelism, and operators that the job does not have."""
    if isinstance(wanted, Mapping):
        for uid in wanted:
            if uid not in known:
                raise ConfigurationError(
                    f"rescale: the job has no operator '{uid}', it has {', '.join(sorted(known)) or 'none'}",
                    hint="name operators by their uids",
                )
    numbers = dict(wanted) if isinstance(wanted, Mapping) else {"": wanted}
    for uid, number in numbers.items():
        of = f" of operator '{uid}'" if uid else ""
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigurationError(f"rescale: the parallelism{of} is {number!r}, expected a positive number")
    if not numbers:
        raise ConfigurationError(
            "rescale: no operator is named", hint='write run.rescale(4) or run.rescale({"uid": 4})'
        )
