"""Placement of partitions and of their standbys on hosts, which Spark's names stand for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.core.ids import Partition
from strandline.runtime.program import Followed

log = logging.getLogger(__name__)

Slot = tuple[str, Partition]


@dataclass
class Placement:
    """The hosts of a job's partitions and of their standbys, which outlast the attempts of a run.

    The next attempt has each partition where its files are: on its host, or, if that is lost, on its standby's.
    """

    _warm: dict[int, list[tuple[str, ...]]] = field(default_factory=dict, init=False)
    """By parallelism, for each partition: its host, and then its standby's."""
    silent: set[str] = field(default_factory=set, init=False)
    """Spark's numbers of executors that send no heartbeats, although Spark takes them for alive."""
    _has_warned: bool = field(default=False, init=False)

    def preferred(self, parallelisms: Iterable[int], executors: Mapping[str, int]) -> dict[int, list[str]]:
        """Return, by parallelism, the host that each partition is to have; nothing of those that Spark places.

        `executors` are the present hosts with the numbers of their executors.
        """
        # Spark would also place partitions on silent executors.
        known = set(parallelisms) if self.silent else self._warm.keys() & set(parallelisms)
        return {n: choose_hosts(self._warm.get(n, [()] * n), executors) for n in known} if executors else {}

    def note(self, hosts: Mapping[int, Sequence[str]]) -> None:
        """Note the hosts of an attempt's partitions, which have no standbys."""
        self._warm = {number: [(host,) for host in each] for number, each in hosts.items()}

    def follow(
        self, job: str, parallelisms: Mapping[str, int], hosts: Mapping[int, Sequence[str]]
    ) -> dict[str, dict[Partition, list[Followed]]]:
        """Choose the standbys of an attempt's partitions; return, by operator and partition, whose its keeper is."""
        standbys = choose_standbys(hosts, self._warm)
        self._warm = {number: list(zip(each, standbys[number], strict=True)) for number, each in hosts.items()}
        if not any(standby for each in standbys.values() for standby in each) and not self._has_warned:
            self._has_warned = True
            log.warning(
                "job '%s' has no standbys, although it has Checkpoints(standbys=1): its keepers are all on one host; "
                "it gets them with the next restart or rescale on several hosts",
                job,
            )
        return choose_followers(parallelisms, hosts, standbys)


def choose_hosts(warm: Sequence[Sequence[str]], executors: Mapping[str, int]) -> list[str]:
    """Return a host for each partition: the first of its `warm` hosts that is present and has room, else any.

    A host has room for its share of the partitions, by its number of executors.
    """
    total = sum(executors.values())
    room = Counter({host: -(-len(warm) * count // total) for host, count in executors.items()})
    chosen: dict[int, str] = {}
    # First those that have the fewest hosts to go to.
    order = sorted(range(len(warm)), key=lambda partition: len(executors.keys() & set(warm[partition])))
    for rank in range(max(map(len, warm), default=0)):
        for partition in order:
            host = warm[partition][rank] if rank < len(warm[partition]) else ""
            if partition not in chosen and room[host] > 0:
                chosen[partition] = host
                room[host] -= 1
    for partition in range(len(warm)):
        if partition not in chosen:
            chosen[partition] = max(sorted(room), key=room.__getitem__)
            room[chosen[partition]] -= 1
    return [chosen[partition] for partition in range(len(warm))]


def choose_standbys(
    hosts: Mapping[int, Sequence[str]], warm: Mapping[int, Sequence[Sequence[str]]]
) -> dict[int, list[str]]:
    """Return, by parallelism, the host of each partition's standby, which is not its own; "" if there is none.

    All hosts get about as many, and the partitions of one host have theirs on all others: if it is lost, each of those
    gets a part of its work. As far as that allows, it is one that was `warm` before.
    """
    present = sorted({host for each in hosts.values() for host in each if host})
    pairs: Counter[tuple[str, str]] = Counter()
    chosen: dict[int, list[str]] = {}
    for number, each in hosts.items():
        load: Counter[str] = Counter()
        share, chosen[number] = -(-number // max(1, len(present))), []
        before = warm.get(number, [()] * number)
        for owner, known in zip(each, before, strict=True):
            ranked = [
                (load[host] >= share, host not in known, pairs[owner, host], load[host], host)
                for host in present
                if host != owner
            ]
            standby = min(ranked)[-1] if owner and ranked else ""
            load[standby] += 1
            pairs[owner, standby] += 1
            chosen[number].append(standby)
    return chosen


def choose_followers(
    parallelisms: Mapping[str, int], hosts: Mapping[int, Sequence[str]], standbys: Mapping[int, Sequence[str]]
) -> dict[str, dict[Partition, list[Followed]]]:
    """Return, by operator and partition, the partitions whose standby its keeper is: about as many for each of a host.

    A keeper rather follows partitions of its own operator.
    """
    keepers: dict[str, list[Slot]] = {}
    for uid, number in parallelisms.items():
        for partition, host in enumerate(hosts[number]):
            keepers.setdefault(host, []).append((uid, Partition(partition)))
    followed: dict[str, dict[Partition, list[Followed]]] = {}
    load: Counter[Slot] = Counter()
    for uid, number in parallelisms.items():
        for partition, host in enumerate(standbys[number]):
            if host:
                keeper = min(keepers[host], key=lambda slot: (load[slot], slot[0] != uid, slot))
                load[keeper] += 1
                followed.setdefault(keeper[0], {}).setdefault(keeper[1], []).append(Followed(uid, Partition(partition)))
    return followed
