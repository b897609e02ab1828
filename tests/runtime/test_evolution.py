"""State that one version of a program wrote, read and written on by the next: every kind of it, on every backend."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

import strandline as sl
from strandline.api.states import State, declared_states
from strandline.backends.heap import HeapBackend
from strandline.backends.rocksdb import RocksDBBackend
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.format.schemas import codec_of
from strandline.plan.upgrade import Upgrade, plan_upgrade
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.joins import LEFT, RIGHT
from strandline.runtime.program import Process, pickle_process, state_infos
from tests.runtime.bench import BUDGET, Bench, batch_of
from tests.runtime.conftest import Make

INPUT = f"{LEFT} struct<k: string, a: bigint>, {RIGHT} struct<name: string, v: bigint>, k string"
OLD, NEW = "struct<n: int, town: string>", "struct<city: string, n: bigint, more: array<int>>"
HINTS: Any = {"renamed": {"city": "town"}, "fill": {"more": [1, 2]}}
BIG = 1 << 40


def larger(one: Any, other: Any) -> Any:
    return max(one, other, key=lambda value: value.n)


def states_of(ddl: str, ttl: sl.TTL | None = None, **hints: Any) -> dict[str, State]:
    return {
        "value": sl.Value(ddl, ttl=ttl, **hints),
        "history": sl.List(ddl, ttl=ttl, **hints),
        "by": sl.Map("bigint", ddl, ttl=ttl, **hints),
        "top": sl.Reducing(ddl, larger, ttl=ttl, **hints),
        "sum": sl.Aggregating(ddl, create=lambda: None, add=lambda acc, x: x, ttl=ttl, **hints),
    }


class Keeping(sl.KeyedBroadcastProcess):
    """Puts what `make` makes of an event into every state that it has, and gives what is in them."""

    def __init__(self, states: Mapping[str, State], make: Any) -> None:
        self.own_states = dict(states)
        self._make = make

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.a:
            for name, state in self.own_states.items():
                self._put(name, state, self._make(event.a))
        found = {name: self._get(name, state) for name, state in self.own_states.items()}
        yield {"k": ctx.key, "answer": repr(found)}

    def on_broadcast(self, rule: Any, ctx: Any) -> None:
        for name, state in self.own_states.items():
            if state.kind == "broadcast":
                getattr(self, name)[rule.name] = self._make(rule.v)

    def _put(self, name: str, state: State, made: Any) -> None:
        handle = getattr(self, name)
        if state.kind == "value":
            handle.value = made
        elif state.kind == "list":
            handle.append(made)
        elif state.kind == "map":
            handle[made["n"]] = made
        elif state.kind == "reducing":
            handle.add(made if handle.value is None else type(handle.value)._make(made.values()))
        elif state.kind == "aggregating":
            handle._cell.value = made

    def _get(self, name: str, state: State) -> Any:
        handle = getattr(self, name)
        if state.kind == "list":
            return list(map(tuple, handle))
        if state.kind in ("map", "broadcast"):
            return {key: tuple(handle[key]) for key in sorted(handle)}
        value = handle.result() if state.kind == "aggregating" else handle.value
        return value if value is None else tuple(value)


class Op:
    """What plan_upgrade asks of an operator of a program."""

    uid, was, group, key_schema, parallelism = "op", "", "", "`k` string", 1
    changed_by = computed_of = ()

    def __init__(self, process: Process) -> None:
        self.declared, self.states = declared_states(process), state_infos(process)
        self.aggregated = process.own_aggregated if isinstance(process, BuiltinOperator) else None


def manifest(states: Sequence[StateInfo]) -> OperatorInfo:
    info = OperatorInfo(
        uid="op", backend="rocksdb", parallelism=1, max_parallelism=128, key_schema="`k` string", states=list(states),
        partitions=[],
    )  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(info), type=OperatorInfo)


def upgrade(bench: Bench, stored: OperatorInfo, process: Process, *drop: str) -> tuple[OperatorInfo, Upgrade]:
    """Restart with another version of the program; return what the next manifests say."""
    found = plan_upgrade([stored], [Op(process)], drop)
    assert not found.refusals
    migration = found.migrations["op"]
    files = bench.snapshot()
    bench.program = replace(
        bench.program, process=pickle_process(process, "op"), schemas=dict(migration.schemas),
        was=dict(migration.was), dropped=list(migration.dropped),
    )  # fmt: skip
    bench.restore(files, bench.epoch)
    return manifest(migration.infos(state_infos(process))), found


def ask(bench: Bench, *events: tuple[str, int], rules: Sequence[tuple[str, int]] = ()) -> dict[str, Any]:
    rows = [(event, None, event[0]) for event in events] + [(None, rule, None) for rule in rules]
    plain = batch_of(rows, INPUT, ["k"])
    groups = plain.column(0).fill_null(0)
    names = plain.schema.names
    batch = pa.record_batch([groups, *plain.columns[1:]], names=names)
    return {k: eval(answer, {"Decimal": Decimal}) for k, answer in bench.run(batch)}


def stored_values(bench: Bench, info: OperatorInfo) -> dict[str, tuple[list[Any], set[int]]]:
    """Read a snapshot's values as its manifest says, without the program; return also with which schema ids they are."""
    directory = bench.place()
    directory.mkdir()
    for file in bench.snapshot():
        shutil.copyfile(file.path, directory / file.name)
    names = [state.name for state in info.states]
    backend: Any = (
        RocksDBBackend(directory, names, memory=BUDGET)
        if bench.kind == "rocksdb"
        else HeapBackend(directory, names, inline=False, limit_bytes=None)
    )
    found = {}
    for state in info.states:
        if state.kind in ("ttl", "timers"):
            continue
        data = [value for _, value in backend.scan(state.name)]
        found[state.name] = codec_of(state).decode_many(data), {value[1] for value in data}
    backend.close()
    return found


def old(a: int) -> dict[str, Any]:
    return {"n": a, "town": f"t{a}"}


def new(a: int) -> dict[str, Any]:
    return {"city": f"c{a}", "n": a + BIG, "more": [a]}


@pytest.mark.parametrize("ttl", [None, sl.TTL("1h")], ids=str)
@pytest.mark.parametrize("renaming", [False, True])
def test_every_kind_of_state_goes_on_with_another_type(make: Make, ttl: sl.TTL | None, renaming: bool) -> None:
    before = Keeping({**states_of(OLD, ttl), "rules": sl.Broadcast("string", OLD), "junk": sl.Value(OLD)}, old)
    bench = make(before, input_schema=INPUT)
    ask(bench, ("x", 1), ("y", 2), rules=[("r", 5), ("s", 6)])
    ask(bench, ("y", 3))
    if bench.kind == "rocksdb":
        bench.write(bench.freeze())
    now = {**states_of(NEW, ttl, **HINTS), "rules": sl.Broadcast("string", NEW, **HINTS)}
    if renaming:
        now = {f"new_{name}": state for name, state in now.items()}
        for name, state in now.items():
            state.was = name.removeprefix("new_")
    info, plan = upgrade(bench, manifest(state_infos(before)), Keeping(now, new), "op.junk")
    assert {change.action for change in plan.changes if change.state and change.state != "junk"} <= {
        "migrated", "kept", "renamed",
    }  # fmt: skip
    prefix = "new_" if renaming else ""

    def was(a: int) -> tuple[Any, ...]:
        return f"t{a}", a, [1, 2]

    def is_now(a: int) -> tuple[Any, ...]:
        return f"c{a}", a + BIG, [a]

    def seen(last: Any, history: list[Any], by: dict[int, Any], rules: dict[str, Any]) -> dict[str, Any]:
        found = {"value": last, "history": history, "by": by, "top": last, "sum": last, "rules": rules}
        return {prefix + name: value for name, value in found.items()}

    rules = {"r": was(5), "s": was(6)}
    assert ask(bench, ("x", 0), ("y", 0)) == {
        "x": seen(was(1), [was(1)], {1: was(1)}, rules),
        "y": seen(was(3), [was(2), was(3)], {2: was(2), 3: was(3)}, rules),
    }
    # Old and new ones mixed: in one map, one list, and among the rules.
    rules["s"] = is_now(7)
    mixed = seen(is_now(4), [was(2), was(3), is_now(4)], {2: was(2), 3: was(3), 4 + BIG: is_now(4)}, rules)
    assert ask(bench, ("y", 4), rules=[("s", 7)])["y"] == mixed
    values = stored_values(bench, info)
    assert sorted(map(tuple, values[f"{prefix}value"][0])) == [is_now(4), was(1)]
    assert sorted(map(tuple, values[f"{prefix}rules"][0])) == [is_now(7), was(5)]
    chunks = values[f"{prefix}history"][0]
    assert sorted(tuple(element) for chunk in chunks for element in chunk) == [is_now(4), was(1), was(2), was(3)]
    # RocksDB has what was not written again as it was; the other backends write everything anew.
    ids = {0, 1} if bench.kind == "rocksdb" else {1}
    assert [values[prefix + name][1] for name in ("value", "by", "top", "sum", "rules")] == [ids] * 5
    # A restart of the same program goes on from there.
    again, plan = upgrade(bench, info, Keeping(now, new))
    assert again == info
    assert {change.action for change in plan.changes} == {"kept"}
    assert ask(bench, ("y", 0))["y"] == mixed
    # And a third version reads what the first and the second one wrote.
    last = "struct<n: decimal(20,1), more: array<int>>"
    third = Keeping({f"{prefix}value": sl.Value(last, ttl=ttl)}, new)
    gone = [f"op.{prefix}{name}" for name in ("history", "by", "top", "sum", "rules")]
    info, _ = upgrade(bench, again, third, *gone, f"op.{prefix}value.city")
    assert ask(bench, ("x", 0)) == {"x": {f"{prefix}value": (Decimal("1.0"), [1, 2])}}
    assert set(stored_values(bench, info)) == {f"{prefix}value"}


class Batches(sl.KeyedBatchProcess):
    """Gives the value of each row's key, and sets what `make` makes of it."""

    def __init__(self, value: State, make: Any) -> None:
        self.own_states = {"value": value}
        self._make = make

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        state: Any = self.value  # type: ignore[attr-defined]
        found = state.get_many(ctx.keys)
        state.put_many(ctx.keys, pa.array([self._make(a) for a in batch["a"].to_pylist()], found.type), last=True)
        return pa.record_batch([batch["k"], pa.array(map(repr, found.to_pylist()))], names=["k", "answer"])


@pytest.mark.parametrize(
    ("before", "now", "make_old", "make_new", "seen"),
    [
        ("int", "bigint", lambda a: a, lambda a: a + BIG, (1, 2 + BIG)),
        (
            "struct<n: int>",
            "struct<m: double, n: bigint>",
            lambda a: {"n": a},
            lambda a: {"m": 0.5, "n": a},
            ({"m": None, "n": 1}, {"m": 0.5, "n": 2}),
        ),
        ("array<int>", "array<bigint>", lambda a: [a], lambda a: [a + BIG], ([1], [2 + BIG])),
    ],
)
@pytest.mark.parametrize("ttl", [None, sl.TTL("1h")], ids=str)
def test_a_vectorised_function_goes_on_with_another_type(
    make: Make, before: str, now: str, make_old: Any, make_new: Any, seen: Any, ttl: sl.TTL | None
) -> None:
    process = Batches(sl.Value(before, ttl=ttl), make_old)
    bench = make(process)
    bench.run([("x", "", 1, 0), ("y", "", 1, 0), ("z", "", 1, 0)])
    info, _ = upgrade(bench, manifest(state_infos(process)), Batches(sl.Value(now, ttl=ttl), make_new))
    assert [eval(answer) for _, answer in bench.run([("x", "", 2, 0)])] == [seen[0]]
    assert [eval(answer) for _, answer in bench.run([("x", "", 2, 0), ("y", "", 2, 0)])] == [seen[1], seen[0]]
    values, ids = stored_values(bench, info)["value"]
    assert len(values) == 3
    # Values are bytes to a vectorised function's table: what was not written again stays as it was.
    assert ids == {0, 1}


@pytest.mark.parametrize("ttl", [sl.TTL("10s"), sl.TTL("10s", time="event")], ids=lambda ttl: ttl.time)
def test_what_expires_is_cleaned_under_its_new_name(make: Make, ttl: sl.TTL) -> None:
    before = Keeping({"value": sl.Value(OLD, ttl=ttl), "junk": sl.Value(OLD, ttl=ttl)}, old)
    bench = make(before, input_schema=INPUT, timed=ttl.time == "event")
    rows: Any = batch_of([(("x", 1), None, "x")], INPUT, ["k"])
    if ttl.time == "event":
        rows = rows.add_column(1, "time", pa.array([0], pa.int64()))
    bench.apply([rows], 0, 0)
    now = Keeping({"val": sl.Value(NEW, ttl=ttl, was="value", **HINTS)}, new)
    info, _ = upgrade(bench, manifest(state_infos(before)), now, "op.junk")
    assert len(stored_values(bench, info)["val"][0]) == 1
    bench.apply([], 60_000_000, 60_000_000)
    assert stored_values(bench, info)["val"][0] == []
