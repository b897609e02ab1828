"""The bottleneck of a running job: where most of its epochs' time goes, said with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from strandline.control.recent import EpochStats
from strandline.control.skew import heavy_keys, share_text
from strandline.control.status import KeeperStatus, Status

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


@dataclass(frozen=True)
class TimeShares:
    """The parts of the time of a job's last epochs."""

    idle: float
    """Of all time, the share between epochs."""
    plan: float
    """Of the epochs' time, as the next two, the share before their rows are read."""
    busiest: float
    """The share in which the slowest partition of the busiest operator works."""
    spark: float
    """The rest: reading, shuffling and writing."""
    uid: str
    """The busiest operator; "" without one."""


def time_shares(epochs: Sequence[EpochStats]) -> TimeShares | None:
    """Return the shares of the last epochs with rows; None before there are enough."""
    recent = _recent(epochs)
    if len(recent) < _LEAST_EPOCHS:
        return None
    took_ms = max(sum(each.took_ms for each in recent), 0.001)
    busy_ms: dict[str, float] = {}
    for operator in (each for epoch in recent for each in epoch.operators):
        busy_ms[operator.uid] = busy_ms.get(operator.uid, 0.0) + operator.busy_ms
    uid = max(busy_ms, key=lambda uid: busy_ms[uid], default="")
    plan, busiest = sum(each.plan_ms for each in recent) / took_ms, busy_ms.get(uid, 0.0) / took_ms
    return TimeShares(_idle_share(recent), plan, busiest, max(0.0, 1 - plan - busiest), uid)


def find_bottleneck(status: Status, epochs: Sequence[EpochStats]) -> Bottleneck:
    """Find it by the last epochs."""
    if status.state != "running":
        return Bottleneck(f"the job is {status.state}")
    for sink in status.sinks:
        if sink.waiting_rows and sink.failure:
            return Bottleneck(f"sink '{sink.name}' does not take rows: {_line(sink.failure)}", f"sink:{sink.name}")
    shares = time_shares(epochs)
    if shares is None:
        return Bottleneck("not known yet: it takes a few epochs with rows")
    if shares.idle > _IDLE_SHARE:
        return Bottleneck(f"none: {shares.idle:.0%} of the time, the job waits for rows or for its trigger")
    if (uid := shares.uid) and shares.busiest >= max(shares.plan, shares.spark):
        why = _why(uid, _recent(epochs), [keeper for keeper in status.keepers if keeper.uid == uid])
        return Bottleneck(f"operator '{uid}' works {shares.busiest:.0%} of each epoch: {why}", f"operator:{uid}")
    if shares.plan > shares.spark:
        return Bottleneck(
            f"{shares.plan:.0%} of each epoch passes before its rows are read: epochs are small; more rows an "
            "epoch, or a longer trigger, make that less"
        )
    return Bottleneck(
        f"Spark: {shares.spark:.0%} of each epoch passes in reading, shuffling and writing rows, not in operators"
    )


def _recent(epochs: Sequence[EpochStats]) -> list[EpochStats]:
    return [each for each in epochs if each.rows][-_EPOCHS:]


def _why(uid: str, epochs: Sequence[EpochStats], keepers: Sequence[KeeperStatus]) -> str:
    """Say whether one partition holds up the others, and whether for one key, which is not named."""
    of_uid = [each for epoch in epochs for each in epoch.operators if each.uid == uid]
    skew = sum(each.busy_ms for each in of_uid) / max(sum(each.mean_busy_ms for each in of_uid), 0.001)
    partitions = [each.partition for each in of_uid]
    slowest = max(set(partitions), key=partitions.count)
    if skew >= _SKEW and partitions.count(slowest) > len(partitions) / 2:
        heavy = [key for key in heavy_keys(keepers) if key.partition == slowest][:1]
        keys = "".join(f"; one key has about {share_text(key.share)} of the operator's rows" for key in heavy)
        return f"its partition {slowest} works {skew:.1f} times as long as the mean, and the others wait for it{keys}"
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
