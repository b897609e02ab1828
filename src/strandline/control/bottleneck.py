"""The bottleneck of a running job: where most of its epochs' time goes, said with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from strandline.control.recent import EpochStats
from strandline.control.status import Status

_LEAST_EPOCHS = 3
_EPOCHS = 20
_IDLE_SHARE = 0.5
_SKEW = 1.5
"""How much longer than the mean a partition works that is said to be skewed."""


@dataclass(frozen=True)
class Bottleneck:
    """The node that holds up a job, and why; without a node, the sentence says that none does, or what else does."""

    text: str
    node: str = ""
    """Its id in the graph."""


def find_bottleneck(status: Status, epochs: Sequence[EpochStats]) -> Bottleneck:
    """Find it by the last epochs."""
    if status.state != "running":
        return Bottleneck(f"the job is {status.state}")
    for sink in status.sinks:
        if sink.waiting_rows and sink.failure:
            return Bottleneck(f"sink '{sink.name}' does not take rows: {_line(sink.failure)}", f"sink:{sink.name}")
    recent = [each for each in epochs if each.rows][-_EPOCHS:]
    if len(recent) < _LEAST_EPOCHS:
        return Bottleneck("not known yet: it takes a few epochs with rows")
    took_ms = sum(each.took_ms for each in recent)
    if (idle := _idle_share(recent)) > _IDLE_SHARE:
        return Bottleneck(f"none: {idle:.0%} of the time, the job waits for rows or for its trigger")
    busy_ms: dict[str, float] = {}
    for operator in (each for epoch in recent for each in epoch.operators):
        busy_ms[operator.uid] = busy_ms.get(operator.uid, 0.0) + operator.busy_ms
    plan_ms = sum(each.plan_ms for each in recent)
    uid = max(busy_ms, key=lambda uid: busy_ms[uid], default="")
    rest_ms = took_ms - plan_ms - (busy_ms[uid] if uid else 0.0)
    if uid and busy_ms[uid] >= max(plan_ms, rest_ms):
        share = busy_ms[uid] / took_ms
        return Bottleneck(f"operator '{uid}' works {share:.0%} of each epoch: {_why(uid, recent)}", f"operator:{uid}")
    if plan_ms > rest_ms:
        return Bottleneck(
            f"{plan_ms / took_ms:.0%} of each epoch passes before its rows are read: epochs are small; more rows an "
            "epoch, or a longer trigger, make that less"
        )
    return Bottleneck(
        f"Spark: {rest_ms / took_ms:.0%} of each epoch passes in reading, shuffling and writing rows, not in operators"
    )


def _why(uid: str, epochs: Sequence[EpochStats]) -> str:
    """Say whether one partition holds up the others."""
    of_uid = [each for epoch in epochs for each in epoch.operators if each.uid == uid]
    skew = sum(each.busy_ms for each in of_uid) / max(sum(each.mean_busy_ms for each in of_uid), 0.001)
    partitions = [each.partition for each in of_uid]
    slowest = max(set(partitions), key=partitions.count)
    if skew >= _SKEW and partitions.count(slowest) > len(partitions) / 2:
        return f"its partition {slowest} works {skew:.1f} times as long as the mean, and the others wait for it"
    return "all of its partitions work about as long; a higher parallelism divides the work, if there are processors"


def _idle_share(epochs: Sequence[EpochStats]) -> float:
    """Return the share of the time between the epochs' ends in which none ran."""
    whole_ms = idle_ms = 0.0
    for before, after in pairwise(epochs):
        gap_ms = after.ended_ms - before.ended_ms
        whole_ms, idle_ms = whole_ms + gap_ms, idle_ms + max(0.0, gap_ms - after.took_ms)
    return idle_ms / whole_ms if whole_ms > 0 else 0.0


def _line(text: str) -> str:
    return text.partition("\n")[0]
