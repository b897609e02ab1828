"""Whether a program can go on from a checkpoint; if not, everything that differs, before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from shlex import quote

from strandline.checkpoint.start import Start
from strandline.core.errors import BEGIN_ANEW, ConfigurationError, IncompatibleStateError
from strandline.format.manifest import Manifest, OperatorInfo, SourceInfo
from strandline.plan.pipeline import Operator
from strandline.plan.upgrade import Upgrade, plan_upgrade
from strandline.runtime.watermarks import WatermarkSpec, describe_changes, is_drained
from strandline.spark.sinks.base import Sink, kind_of
from strandline.spark.sinks.files import sink_for_pending


def check_compatible(
    manifest: Manifest,
    operators: Sequence[Operator],
    sinks: Mapping[str, Sink],
    sources: Sequence[str],
    drop: Collection[str] = (),
    *,
    url: str = "SNAPSHOT",
    fork: bool = False,
) -> Upgrade:
    """Return what becomes of what is stored; raise IncompatibleStateError naming all that stands against it.

    `drop` names what may be lost: operators as "uid", states as "uid.state", fields as "uid.state.field", aggregates as
    "uid.result". `url` is where the snapshot is, and `fork` says that the job begins a life of its own with it.
    """
    upgrade, found = differences(manifest, operators, sinks, sources, drop, fork=fork)
    if found:
        read = _sources_differ(manifest, sources)
        regroup = to_regroup(upgrade, operators, url)
        raise IncompatibleStateError(
            f"job '{manifest.job}' cannot go on from checkpoint {manifest.checkpoint}: " + "; ".join(found),
            hint=("a source is found by its name in stream(df, name=…), which must never change; " if read else "")
            + (f"{upgrade.hint}; " if upgrade.hint else "")
            + _to_drop(drop, upgrade)
            + (f"{regroup}; else " if regroup else "")
            + f"run the program that made it, or {BEGIN_ANEW}",
            differences=found,
        )
    return upgrade


def differences(
    manifest: Manifest,
    operators: Sequence[Operator],
    sinks: Mapping[str, Sink],
    sources: Sequence[str],
    drop: Collection[str] = (),
    *,
    fork: bool = False,
) -> tuple[Upgrade, list[str]]:
    """Return what becomes of what is stored, and all that stands against it; see `check_compatible`."""
    # What is staged is the job's that the snapshot is of: a fork neither shows it nor loses it.
    lost = {} if fork else lost_sinks(manifest, sinks)
    upgrade = plan_upgrade(manifest.operators, operators, _of_states(manifest, drop, lost))
    found = list(upgrade.refusals)
    for operator in operators:
        stored = upgrade.migrations[operator.uid].stored
        if stored is not None:
            found += _differences(stored, operator)
    found += [
        f"{why}, or give them up with drop={json.dumps([name])}"
        for name, why in lost.items()
        if why and name not in drop
    ]
    return upgrade, found + _sources_differ(manifest, sources)


def lost_sinks(manifest: Manifest, sinks: Mapping[str, Sink]) -> dict[str, str]:
    """Return the snapshot's sinks that the program does not have, by name, and what stands against going on without.

    That is "" where nothing is lost: no rows are listed, or they are a file sink's, and whoever goes on shows them.
    """
    found: dict[str, str] = {}
    names = [stored.name for stored in manifest.sinks]
    for stored in manifest.sinks:
        name, sink = stored.name, sinks.get(stored.name)
        is_shown = not stored.pending or sink_for_pending(name, stored.pending) is not None
        if sink is None:
            found[name] = "" if is_shown else (
                f"the program has no sink named '{name}', and the checkpoint lists rows that it is to show: have one "
                "of that name until a checkpoint lists none for it"
            )  # fmt: skip
        elif stored.kind and stored.kind != kind_of(sink):
            found[name] = "" if is_shown else (
                f"the sink '{name}' is of kind {kind_of(sink)}, and the checkpoint lists rows that one of kind "
                f"{stored.kind} is to show: give the new one another name, and have the old one until a checkpoint "
                "lists no rows for it"
            )  # fmt: skip
        elif sink.name is None and stored.destination and stored.destination != sink.destination:
            found[name] = (
                f"the sink '{name}' has no name=, so that it is known by its place in sinks=: its rows went to "
                f"{stored.destination}, and now go to {sink.destination or 'a place that it does not tell'}: give "
                f"name='{name}' to the sink of {stored.destination}, and names of their own to all others"
            )
        elif sink.name is None and not stored.destination and stored.pending and names != list(sinks):
            found[name] = (
                f"the sink '{name}' has no name=, so that it is known by its place in sinks=; there are other sinks "
                f"now, and the checkpoint lists rows that it is to show: give name='{name}' to the one that they are of"
            )
    return found


def _of_states(manifest: Manifest, drop: Collection[str], lost: Collection[str]) -> list[str]:
    """Return what `drop` names beside sinks that the program has no more; a name may be both a sink's and a uid."""
    uids = {operator.uid for operator in manifest.operators}
    return [name for name in drop if name not in lost or name in uids]


def to_regroup(upgrade: Upgrade, operators: Sequence[Operator], url: str) -> str:
    """Return how a snapshot gets the max_parallelism that the program wants; "" if it has it."""
    stored = {operator.uid: upgrade.migrations[operator.uid].stored for operator in operators}
    wanted = [
        f"--max-parallelism {quote(f'{before.uid}={operator.max_parallelism}')}"
        for operator in operators
        if (before := stored[operator.uid]) is not None and before.max_parallelism != operator.max_parallelism
    ]
    if not wanted:
        return ""
    return (
        f"to change max_parallelism, make a savepoint with it, `strandline state patch {quote(url)} NEW_SAVEPOINT "
        f"{' '.join(wanted)}`, and restore that"
    )


def _sources_differ(manifest: Manifest, sources: Sequence[str]) -> list[str]:
    source = manifest.source
    return _name_differences(source.names or [], sources, "the checkpoint knows") if source else []


def _to_drop(drop: Collection[str], upgrade: Upgrade) -> str:
    names = sorted({*drop, *upgrade.drop})
    return f"to go on without what is gone, write drop={json.dumps(names)}; else " if upgrade.drop else ""


def check_start(job: str, start: Start, sources: Sequence[str]) -> None:
    """Raise IncompatibleStateError if the job began with other sources and has no checkpoint yet."""
    found = _name_differences(start.names, sources, "when it began, the job read")
    if found:
        raise IncompatibleStateError(
            f"job '{job}' cannot go on from where it began: " + "; ".join(found),
            hint="a source is found by its name in stream(df, name=…), which must never change; run the program that "
            f"began, or {BEGIN_ANEW}",
            differences=found,
        )


def _name_differences(before: Sequence[str], now: Sequence[str], knows: str) -> list[str]:
    """Compare the names of the sources; a single one needs none, then or now."""
    if len(before) <= 1 and len(now) <= 1 and not (before and now):
        return []
    has = f"it reads {', '.join(now)}" if now else "it reads one source without a name"
    gone = [f"the program has no source named '{name}'; {has}" for name in before if name not in now]
    known = f"{knows} {', '.join(before)}" if before else f"{knows} one source without a name"
    return gone + [f"the source '{name}' is new; {known}" for name in now if name not in before]


def _differences(stored: OperatorInfo, operator: Operator) -> list[str]:
    return [
        f"operator '{operator.uid}': {what} is {now}, was {before}"
        for what, before, now in (("max_parallelism", stored.max_parallelism, operator.max_parallelism),)
        if before != now
    ]


def watermark_changes(manifest: Manifest | None, watermarks: Sequence[WatermarkSpec]) -> list[str]:
    """Return what is to be known of watermarks that a snapshot has and a program has not, as sentences."""
    # After a drain, event time begins anew.
    if manifest is None or is_drained(manifest.watermarks):
        return []
    return describe_changes(watermarks, manifest.watermarks)


def place_in_sources(manifest: Manifest, where: str, sources: Sequence[str]) -> SourceInfo:
    """Return how far a snapshot's job had read these sources; raise ConfigurationError if it read others, or none."""
    if manifest.source is None:
        raise ConfigurationError(
            f"{where}: does not say how far any source was read: it was made of tables or history",
            hint="name a savepoint or checkpoint of a job that has run",
        )
    if found := _sources_differ(manifest, sources):
        raise IncompatibleStateError(
            f"{where}: says how far other sources were read: {'; '.join(found)}",
            hint="a source is found by its name in stream(df, name=…), which must never change",
            differences=found,
        )
    return manifest.source
