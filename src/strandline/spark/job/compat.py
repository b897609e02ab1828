"""Whether a program can go on from a checkpoint; if not, everything that differs, before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.checkpoint.start import Start
from strandline.core.errors import IncompatibleStateError
from strandline.format.manifest import Manifest, OperatorInfo
from strandline.plan.pipeline import Operator


def check_compatible(
    manifest: Manifest,
    operators: Sequence[Operator],
    sinks: Sequence[str],
    sources: Sequence[str],
) -> None:
    """Raise IncompatibleStateError naming every difference."""
    by_uid = {operator.uid: operator for operator in operators}
    found: list[str] = []
    for stored in manifest.operators:
        operator = by_uid.get(stored.uid)
        if operator is None:
            found.append(
                f"the program has no operator with uid '{stored.uid}', which has state; it has "
                f"{', '.join(sorted(by_uid)) or 'none'}"
            )
        else:
            found += _differences(stored, operator)
    found += [
        f"the program has no sink named '{sink.name}', which has {len(sink.pending)} committables pending"
        for sink in manifest.sinks
        if sink.pending and sink.name not in sinks
    ]
    source = manifest.source
    read = _name_differences(source.names or [], sources, "the checkpoint knows") if source else []
    found += read
    if found:
        raise IncompatibleStateError(
            f"job '{manifest.job}' cannot go on from checkpoint {manifest.checkpoint}: " + "; ".join(found),
            hint=("a source is found by its name in stream(df, name=…), which must never change; " if read else "")
            + "run the program that made it, or start afresh with another job name or checkpoint directory",
            differences=found,
        )


def check_start(job: str, start: Start, sources: Sequence[str]) -> None:
    """Raise IncompatibleStateError if the job began with other sources and has no checkpoint yet."""
    found = _name_differences(start.names, sources, "when it began, the job read")
    if found:
        raise IncompatibleStateError(
            f"job '{job}' cannot go on from where it began: " + "; ".join(found),
            hint="a source is found by its name in stream(df, name=…), which must never change; run the program that "
            "began, or start afresh with another job name or checkpoint directory",
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
    where = f"operator '{stored.uid}'"
    found = [
        f"{where}: {what} is {now}, was {before}"
        for what, before, now in (
            ("its key", stored.key_schema, operator.key_schema),
            ("max_parallelism", stored.max_parallelism, operator.max_parallelism),
        )
        if before != now
    ]
    states = {state.name: state for state in operator.states}
    for before_state in stored.states:
        now_state = states.get(before_state.name)
        if now_state is None:
            if before_state.kind == "ttl":
                # No state has a TTL any more: what the cleaning would have done next is carried along unused.
                continue
            found.append(f"{where}: the state '{before_state.name}' is not declared any more")
            continue
        for what, was, is_now in (
            ("kind", before_state.kind, now_state.kind),
            ("type", before_state.value_type, now_state.value_type),
            ("key type", before_state.key_type, now_state.key_type),
        ):
            if was != is_now:
                found.append(f"{where}: the {what} of state '{before_state.name}' is {is_now}, was {was}")
        if before_state.windows and before_state.windows != now_state.windows:
            found.append(
                f"{where}: the windows of state '{before_state.name}' are {now_state.windows or 'of another kind'}, "
                f"were {before_state.windows}"
            )
    return found
