"""Rules that every partition hears of: the state they are in, their order, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.api.joins import Broadcast, KeyedBroadcastProcess
from strandline.api.process import KeyedProcess
from strandline.api.states import List, Map, Value
from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.core.ids import Partition
from strandline.core.times import as_datetime
from strandline.runtime.operators.joins import LEFT, RIGHT
from strandline.runtime.program import state_infos
from tests.runtime.bench import Bench, batch_of
from tests.soak import BACKENDS, examples

INPUT = f"{LEFT} struct<k: string, a: bigint>, {RIGHT} struct<name: string, v: bigint, version: bigint>, k string"
OUTPUT = "k string, a bigint, seen bigint, rules string"


class Check(KeyedBroadcastProcess):
    """Answers with the rules as they are, and how often the key came."""

    rules = Broadcast("string", "struct<v: bigint, tags: array<bigint>>")
    seen = Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        shown = {name: rule.v for name, rule in self.rules.items()}
        yield event.k, event.a, self.seen.value, repr(sorted(shown.items()))
        if event.a == 13:
            self.rules["x"] = {"v": 1, "tags": []}

    def on_broadcast(self, rule: Any, ctx: Any) -> None:
        assert ctx.key is None
        if rule.v is None:
            self.rules.pop(rule.name, None)
        else:
            self.rules[rule.name] = (rule.v, [rule.version])

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        return None


def batch(events: Sequence[Any], rules: Sequence[Any], group: int = 0) -> pa.RecordBatch:
    """Return events and, behind them, rules: those have the partition's first key group, and no key."""
    rows = [(event, None, event[0]) for event in events] + [(None, rule, None) for rule in rules]
    plain = batch_of(rows, INPUT, ["k"])
    groups = plain.column(0).fill_null(group)
    return pa.RecordBatch.from_arrays([groups, *plain.columns[1:]], names=plain.schema.names)


def make(kind: str, root: Path, process: Any = None, **given: Any) -> Bench:
    return Bench(kind, root, process or Check(), input_schema=INPUT, output_schema=OUTPUT, **given)


events = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=4)
rules = st.lists(st.tuples(st.sampled_from("xyz"), st.none() | st.integers(0, 9), st.integers(0, 3)), max_size=4)


@pytest.mark.parametrize("kind", BACKENDS)
@examples(12)
@given(
    epochs=st.lists(st.tuples(events, rules, st.sampled_from(["keep", "abort", "write", "snapshot", "restore"])), max_size=8),
    cache_bytes=st.sampled_from([1, 1 << 20]),
)  # fmt: skip
def test_rules_against_a_dict(
    tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, cache_bytes: int
) -> None:
    bench = make(kind, tmp_path_factory.mktemp("rules"), cache_bytes=cache_bytes, broadcast_order=["version"])
    model: dict[str, int] = {}
    seen: dict[str, int] = {}
    files, then, epoch = bench.snapshot(), (model, seen), 0
    for rows, changes, end in epochs:
        after, count, wanted = dict(model), dict(seen), []
        # By version, then by what they say; null before any number.
        for name, v, _ in sorted(changes, key=lambda c: (c[2], bench_order(c))):
            after.pop(name, None)
            if v is not None:
                after[name] = v
        for k, a in rows:
            count[k] = count.get(k, 0) + 1
            wanted.append((k, a, count[k], repr(sorted(after.items()))))
        # Rules that come last still count for the events before them.
        given_batches = [batch(rows, []), batch([], changes)] if rows and changes else [batch(rows, changes)]
        assert bench.run(*given_batches, abort=end == "abort") == wanted
        if end != "abort":
            model, seen = after, count
        if end == "write":
            bench.write(bench.freeze())
        if end == "snapshot":
            files, then, epoch = bench.snapshot(), (model, seen), bench.epoch
        if end == "restore":
            bench.restore(files, epoch)
            model, seen = then
    bench.close()


def bench_order(rule: Any) -> bytes:
    """Return what rules of one version are sorted by: their encoding."""
    from strandline.format.values import ValueCodec
    from strandline.types.datatypes import parse_schema

    kind = parse_schema(INPUT).fields[1].type
    codec = ValueCodec(kind)
    return codec.encode(codec.coerce(rule))


def test_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    """What two partitions hear in different orders leaves them with the same rules."""
    changes = [("x", 5, 2), ("x", 1, 1), ("x", None, None), ("y", 1, 7), ("y", 2, 7)]
    said = []
    for number, order in enumerate((changes, changes[::-1])):
        (tmp_path / str(number)).mkdir()
        bench = make("memory", tmp_path / str(number), broadcast_order=["version"])
        said.append(bench.run(batch([("a", 1)], order)))
        bench.close()
    assert said[0] == said[1]
    assert "('x', 5)" in said[0][0][3]


@pytest.mark.parametrize("kind", BACKENDS)
def test_what_one_partition_has_stored_is_a_copy_for_any_range_of_key_groups(tmp_path: Path, kind: str) -> None:
    bench = make(kind, tmp_path)
    bench.run(batch([], [("x", 1, 1), ("y", 2, 1)]))
    frozen = bench.freeze()
    assert {entry[:2] for entry, _ in frozen.changes()["rules"]} == {b"\xff\xff"}
    files = bench.persist(frozen)
    for partition, parallelism in ((2, 3), (0, 3), (127, 128)):
        bench.number, bench.program = Partition(partition), replace(bench.program, parallelism=parallelism)
        bench.restore(files, 1)
        assert bench.run(batch([("a", 1)], [("y", None, 2)])) == [("a", 1, 1, "[('x', 1)]")]
    bench.close()


class Wrong(Check):
    """Does in on_broadcast what must not be done there."""

    amounts = Map("string", "bigint")
    all = List("bigint")

    def on_broadcast(self, rule: Any, ctx: Any) -> Any:
        if rule.name == "give":
            yield ("k", 1, 1, "")
        elif rule.name == "emit":
            ctx.emit("side", {})
        elif rule.name == "timer":
            ctx.timers.set_processing(as_datetime(0))
        elif rule.name == "value":
            self.seen.value += 1
        elif rule.name == "map":
            self.amounts["x"] = 1
        elif rule.name == "list":
            self.all.append(1)
        elif rule.name == "raise":
            raise ValueError("no such rule")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("give", "on_broadcast gave the row"),
        ("emit", "on_broadcast cannot emit"),
        ("timer", "on_broadcast cannot set a timer, as there is no key"),
        ("value", "operator 'check': on_broadcast used the state of a key, and there is no key"),
        ("map", "operator 'check': on_broadcast used the state of a key, and there is no key"),
        ("list", "operator 'check': on_broadcast used the state of a key, and there is no key"),
        ("raise", "ValueError: no such rule"),
    ],
)
def test_what_a_rule_must_not_do(tmp_path: Path, rule: str, said: str) -> None:
    bench = make("memory", tmp_path, Wrong(), uid="check")
    with pytest.raises(UserCodeError) as caught:
        bench.run(batch([], [(rule, 1, 1)]))
    assert "operator 'check': on_broadcast of Wrong raised" in caught.value.message
    assert f"Record(name='{rule}', v=1, version=1)" in caught.value.message
    assert said in caught.value.message
    # The failed epoch's rules are forgotten.
    assert bench.run(batch([("a", 1)], [])) == [("a", 1, 1, "[]")]
    bench.close()


def test_events_cannot_change_rules(tmp_path: Path) -> None:
    bench = make("memory", tmp_path, uid="check")
    with pytest.raises(UserCodeError, match="state 'rules': a Broadcast was changed outside of on_broadcast"):
        bench.run(batch([("a", 13)], []))
    bench.close()


def test_rules_come_after_what_timers_gave_and_before_other_events(tmp_path: Path) -> None:
    bench = make("memory", tmp_path, timed=True, phased=True)
    plain = batch([("a", 1), ("b", 2)], [("x", 5, 1)])
    times, fired = pa.array([1, 2, None], pa.int64()), pa.array([False, True, False])
    arrays = [plain.column(0), times, fired, *plain.columns[1:]]
    rows = pa.RecordBatch.from_arrays(arrays, names=["group", "time", "fired", *plain.schema.names[1:]])
    found = bench.apply([rows])
    answers = [(row["k"], row["rules"]) for given in found for row in given.to_pylist()]
    assert answers == [("b", "[]"), ("a", "[('x', 5)]")]
    bench.close()


class NotBroadcast(KeyedProcess):
    rules = Broadcast("string", "bigint")

    def on_event(self, event: Any, ctx: Any) -> None: ...


def test_a_broadcast_state_needs_a_broadcast_process() -> None:
    with pytest.raises(ConfigurationError, match="is a Broadcast, which only a KeyedBroadcastProcess has"):
        state_infos(NotBroadcast())
    (rules, *_) = state_infos(Check())
    assert (rules.kind, rules.key_type, rules.value_type) == (
        "broadcast",
        "string",
        "struct<v:bigint,tags:array<bigint>>",
    )
