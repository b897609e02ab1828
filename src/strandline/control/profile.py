"""Profiles of a running job: where the time of its keepers goes, by function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from strandline.keeper.sampling import INTERVAL_S, Samples

Stack = tuple[str, ...]


class PartitionProfile(msgspec.Struct, frozen=True):
    """Samples of the keeper of one partition."""

    uid: str
    partition: int
    samples: Samples


class Profile(msgspec.Struct, frozen=True):
    """Samples of what a job's keepers did, as a flame graph shows them."""

    job: str
    seconds: float
    partitions: list[PartitionProfile]

    def of(self, uid: str) -> Profile:
        """Return the part of one operator."""
        return msgspec.structs.replace(self, partitions=[each for each in self.partitions if each.uid == uid])

    @property
    def operators(self) -> list[str]:
        """The uids of the operators, in the order of the job."""
        return list(dict.fromkeys(each.uid for each in self.partitions))

    @property
    def stacks(self) -> Counter[Stack]:
        """The stacks of functions in all partitions, and how often each was seen. The first name is the operator's."""
        return Counter({
            stack: count
            for uid in self.operators
            for stack, count in _merged(uid, (each.samples for each in self.partitions if each.uid == uid)).items()
        })  # fmt: skip

    @property
    def shares(self) -> tuple[float, float, float]:
        """The shares of time at work, waiting for rows from Spark, and idle between epochs."""
        total = sum(each.samples.count for each in self.partitions) or 1
        waiting = sum(each.samples.waiting for each in self.partitions) / total
        idle = sum(each.samples.idle for each in self.partitions) / total
        return max(0.0, 1 - waiting - idle), waiting, idle

    @property
    def program(self) -> float:
        """The share of the work that is in the program's own functions, and in what they call."""
        in_program = whole = 0
        for samples in (each.samples for each in self.partitions):
            program = set(samples.program)
            in_program += sum(count for positions, count in samples.stacks if program.intersection(positions))
            whole += sum(count for _, count in samples.stacks)
        return in_program / (whole or 1)

    def functions(self) -> list[tuple[str, int, int]]:
        """Return each function with the samples in itself and with what it calls; the most in itself first."""
        itself: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for (_, *stack), count in self.stacks.items():
            names = [name for name in stack if not is_line(name)]
            itself[names[-1]] += count
            total.update(dict.fromkeys(names, count))
        return [
            (name, itself[name], total[name]) for name in sorted(total, key=lambda name: (-itself[name], -total[name]))
        ]

    def folded(self) -> str:
        """Return the stacks as text, a line each, as tools that draw flame graphs read it."""
        return "".join(f"{';'.join(stack)} {count}\n" for stack, count in sorted(self.stacks.items()))

    def speedscope(self) -> dict[str, Any]:
        """Return the stacks in the format of speedscope, an operator a profile."""
        names = sorted({name for stack in self.stacks for name in stack})
        at = {name: position for position, name in enumerate(names)}
        profiles = []
        for uid in self.operators:
            stacks = self.of(uid).stacks
            weights = [round(count * INTERVAL_S, 3) for count in stacks.values()]
            profiles.append({
                "type": "sampled", "name": uid, "unit": "seconds", "startValue": 0, "endValue": sum(weights),
                "samples": [[at[name] for name in stack] for stack in stacks], "weights": weights,
            })  # fmt: skip
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json", "name": self.job, "activeProfileIndex": 0,
            "exporter": "strandline", "shared": {"frames": [{"name": name} for name in names]}, "profiles": profiles,
        }  # fmt: skip


def is_line(name: str) -> bool:
    """Tell whether the name in a stack is a line of the function above it."""
    return name.startswith("line ")


def _merged(uid: str, partitions: Iterable[Samples]) -> Counter[Stack]:
    merged: Counter[Stack] = Counter()
    for samples in partitions:
        for positions, count in samples.stacks:
            merged[uid, *(samples.names[at] for at in positions)] += count
    return merged
