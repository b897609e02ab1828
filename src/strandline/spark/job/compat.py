"""Comparison of a program with a checkpoint: whether it can continue from it, or all differences if not."""

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
    from_now: Collection[str] = (),
) -> Upgrade:
    """Return the upgrade of the stored state; raise IncompatibleStateError with all differences that prevent it.

    `drop` names what may be lost: operators as "uid", states as "uid.state", fields as "uid.state.field", aggregates as
    "uid.result". `url` is the snapshot's, and `fork` says that the job begins a new life with it. `from_now` has the
    uids of aggregations of views whose new aggregates may begin empty.
    """
    upgrade, refusals = differences(manifest, operators, sinks, sources, drop, fork=fork, from_now=from_now)
    if refusals:
        read = _compare_sources(manifest, sources)
        regroup = to_regroup(upgrade, operators, url)
        raise IncompatibleStateError(
            f"job '{manifest.job}' cannot go on from checkpoint {manifest.checkpoint}: " + "; ".join(refusals),
            hint=("a source is found by its name in stream(df, name=…), which must never change; " if read else "")
            + (f"{upgrade.hint}; " if upgrade.hint else "")
            + _to_drop(drop, upgrade)
            + (f"{regroup}; else " if regroup else "")
            + f"run the program that made it, or {BEGIN_ANEW}",
            differences=refusals,
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
    from_now: Collection[str] = (),
) -> tuple[Upgrade, list[str]]:
    """Return the upgrade of the stored state, and the differences that prevent it; see `check_compatible`."""
    # Staged rows belong to the job that took the snapshot: a fork neither shows nor loses them.
    lost = {} if fork else lost_sinks(manifest, sinks)
    upgrade = plan_upgrade(manifest.operators, operators, _drop_of_states(manifest, drop, lost), from_now)
    refusals = list(upgrade.refusals)
    for operator in operators:
        stored = upgrade.migrations[operator.uid].stored
        if stored is not None:
            refusals += _compare_operator(stored, operator)
    refusals += [
        f"{why}, or give them up with drop={json.dumps([name])}"
        for name, why in lost.items()
        if why and name not in drop
    ]
    return upgrade, refusals + _compare_sources(manifest, sources)


def lost_sinks(manifest: Manifest, sinks: Mapping[str, Sink]) -> dict[str, str]:
    """Return the snapshot's sinks that the program does not have, by name, each with the reason why they are needed.

    The reason is "" if nothing is lost: no rows wait, or they are those of a file sink, which the job can show.
    """
    lost: dict[str, str] = {}
    names = [stored.name for stored in manifest.sinks]
    for stored in manifest.sinks:
        name, sink = stored.name, sinks.get(stored.name)
        is_shown = not stored.pending or sink_for_pending(name, stored.pending) is not None
        if sink is None:
            lost[name] = "" if is_shown else (
                f"the program has no sink named '{name}', and the checkpoint lists rows that it is to show: have one "
                "of that name until a checkpoint lists none for it"
            )  # fmt: skip
        elif stored.kind and stored.kind != kind_of(sink):
            lost[name] = "" if is_shown else (
                f"the sink '{name}' is of kind {kind_of(sink)}, and the checkpoint lists rows that one of kind "
                f"{stored.kind} is to show: give the new one another name, and have the old one until a checkpoint "
                "lists no rows for it"
            )  # fmt: skip
        elif sink.name is None and stored.destination and stored.destination != sink.destination:
            lost[name] = (
                f"the sink '{name}' has no name=, so that it is known by its place in sinks=: its rows went to "
                f"{stored.destination}, and now go to {sink.destination or 'an unknown place'}: give "
                f"name='{name}' to the sink of {stored.destination}, and names of their own to all others"
            )
        elif sink.name is None and not stored.destination and stored.pending and names != list(sinks):
            lost[name] = (
                f"the sink '{name}' has no name=, so that it is known by its place in sinks=; there are other sinks "
                f"now, and the checkpoint lists rows that it is to show: give name='{name}' to the one that wrote them"
            )
    return lost


def _drop_of_states(manifest: Manifest, drop: Collection[str], lost: Collection[str]) -> list[str]:
    """Return the names in `drop` without those of lost sinks; a name may be both a sink's and a uid."""
    uids = {operator.uid for operator in manifest.operators}
    return [name for name in drop if name not in lost or name in uids]


def to_regroup(upgrade: Upgrade, operators: Sequence[Operator], url: str) -> str:
    """Return the step that gives a snapshot the program's max_parallelism; "" if it is the same."""
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


def _compare_sources(manifest: Manifest, sources: Sequence[str]) -> list[str]:
    source = manifest.source
    return _compare_names(source.names or [], sources, "the checkpoint knows") if source else []


def _to_drop(drop: Collection[str], upgrade: Upgrade) -> str:
    names = sorted({*drop, *upgrade.drop})
    return f"to go on without it, write drop={json.dumps(names)}; else " if upgrade.drop else ""


def check_start(job: str, start: Start, sources: Sequence[str]) -> None:
    """Raise IncompatibleStateError if the job began with other sources and has no checkpoint yet."""
    refusals = _compare_names(start.names, sources, "when it began, the job read")
    if refusals:
        raise IncompatibleStateError(
            f"job '{job}' cannot go on from where it began: " + "; ".join(refusals),
            hint="a source is found by its name in stream(df, name=…), which must never change; run the program that "
            f"began, or {BEGIN_ANEW}",
            differences=refusals,
        )


def _compare_names(before: Sequence[str], now: Sequence[str], knows: str) -> list[str]:
    """Return the differences between the names of sources; a single source needs no name."""
    if len(before) <= 1 and len(now) <= 1 and not (before and now):
        return []
    has = f"it reads {', '.join(now)}" if now else "it reads one source without a name"
    missing = [f"the program has no source named '{name}'; {has}" for name in before if name not in now]
    known = f"{knows} {', '.join(before)}" if before else f"{knows} one source without a name"
    return missing + [f"the source '{name}' is new; {known}" for name in now if name not in before]


def _compare_operator(stored: OperatorInfo, operator: Operator) -> list[str]:
    before, now = stored.max_parallelism, operator.max_parallelism
    return [f"operator '{operator.uid}': max_parallelism is {now}, was {before}"] if before != now else []


def watermark_changes(manifest: Manifest | None, watermarks: Sequence[WatermarkSpec]) -> list[str]:
    """Return sentences about the watermarks of a snapshot that the program does not have."""
    # After a drain, event time restarts.
    if manifest is None or is_drained(manifest.watermarks):
        return []
    return describe_changes(watermarks, manifest.watermarks)


def place_in_sources(manifest: Manifest, where: str, sources: Sequence[str]) -> SourceInfo:
    """Return a snapshot's position in these sources; raise ConfigurationError if it has another one or none."""
    if manifest.source is None:
        raise ConfigurationError(
            f"{where}: has no position in sources, because it was made from tables or history",
            hint="name a savepoint or checkpoint of a job that has run",
        )
    if refusals := _compare_sources(manifest, sources):
        raise IncompatibleStateError(
            f"{where}: has a position in other sources: {'; '.join(refusals)}",
            hint="a source is found by its name in stream(df, name=…), which must never change",
            differences=refusals,
        )
    return manifest.source
