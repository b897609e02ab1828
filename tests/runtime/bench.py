"""What the runtime's tests share: a process function that can do everything, and a partition to run it in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.api.process import KeyedProcess
from strandline.api.states import Aggregating, List, Map, Reducing, Value
from strandline.backends.base import Backend, LocalFile
from strandline.backends.heap import HeapBackend
from strandline.backends.options import MIB, MemoryBudget
from strandline.backends.rocksdb import RocksDBBackend
from strandline.core.ids import Epoch, Partition
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.program import Process, Program, groupings, pickle_process, state_infos
from strandline.runtime.rowlayout import RowLayout
from strandline.runtime.state.migration import move_states
from strandline.runtime.state.store import Frozen
from strandline.runtime.task.task import EpochTimes, Task
from strandline.types.columns import arrow_schema, from_python
from strandline.types.datatypes import parse_schema
from strandline.types.murmur import key_group
from tests.soak import MODE, SMALL_LOG

KINDS = ("memory", "filesystem", "rocksdb")
MAX_PARALLELISM = 128
BUDGET = MemoryBudget(block_cache_bytes=2 * MIB, write_buffer_bytes=2 * MIB)
EVENTS = "k string, op string, a bigint, b bigint"
ANSWERS = "k string, answer string"
Event = tuple[Any, ...]


class Everything(KeyedProcess):
    """Does to its states what each event says, and answers with what it found."""

    value = Value("bigint", default=7)
    pair = Value("struct<a: bigint, s: string>")
    tags = Value("array<bigint>")
    history = List("bigint")
    by_kind = Map("bigint", "bigint")
    top = Reducing("bigint", max)
    mean = Aggregating(
        "struct<n: bigint, total: bigint>",
        create=lambda: (0, 0),
        add=lambda acc, x: (acc[0] + 1, acc[1] + x),
        result=lambda acc: acc[1] // acc[0],
    )

    def on_event(self, event: Any, ctx: Any) -> Any:
        answer = getattr(self, event.op)(event.a, event.b)
        yield {"k": ctx.key, "answer": repr(answer)}

    def set_value(self, a: int, b: int) -> None:
        self.value.value = a

    def clear_value(self, a: int, b: int) -> None:
        self.value.value = None

    def set_pair(self, a: int, b: int) -> None:
        self.pair.value = {"a": a, "s": str(b)} if b % 2 else (a, str(b))

    def clear_pair(self, a: int, b: int) -> None:
        self.pair.clear()

    def add_tag(self, a: int, b: int) -> None:
        self.tags.value = [*(self.tags.value or []), a]

    def append(self, a: int, b: int) -> None:
        self.history.append(a)

    def extend(self, a: int, b: int) -> None:
        self.history.extend([a, b])

    def set_list(self, a: int, b: int) -> None:
        self.history.set([a] * (b % 3))

    def clear_list(self, a: int, b: int) -> None:
        self.history.clear()

    def read_list(self, a: int, b: int) -> Any:
        return len(self.history), bool(self.history), self.history.get()

    def put(self, a: int, b: int) -> None:
        self.by_kind[a] = b

    def pop(self, a: int, b: int) -> Any:
        return self.by_kind.pop(a, "none")

    def get(self, a: int, b: int) -> Any:
        return self.by_kind.get(a), a in self.by_kind

    def read_map(self, a: int, b: int) -> Any:
        return len(self.by_kind), sorted(self.by_kind.items())

    def clear_map(self, a: int, b: int) -> None:
        self.by_kind.clear()

    def reduce(self, a: int, b: int) -> Any:
        self.top.add(a)
        return self.top.value

    def clear_top(self, a: int, b: int) -> None:
        self.top.clear()

    def average(self, a: int, b: int) -> Any:
        self.mean.add(a)
        return self.mean.result()

    def clear_mean(self, a: int, b: int) -> None:
        self.mean.clear()

    def read(self, a: int, b: int) -> Any:
        pair = None if self.pair.value is None else tuple(self.pair.value)
        plain = self.value.value, self.value.exists(), pair, self.tags.value, self.top.value, self.mean.result()
        return plain, self.read_list(a, b), self.read_map(a, b)


class Model:
    """What Everything does, with plain dicts."""

    def __init__(self, states: dict[str, dict[str, Any]] | None = None) -> None:
        self.keys: dict[str, dict[str, Any]] = states or {}

    def copy(self) -> Model:
        return Model(
            {k: {n: v.copy() if hasattr(v, "copy") else v for n, v in s.items()} for k, s in self.keys.items()}
        )

    def answer(self, k: str, op: str, a: int, b: int) -> Any:
        s = self.keys.setdefault(k, {"list": [], "map": {}})
        if op == "set_value":
            s["value"] = a
        elif op == "set_pair":
            s["pair"] = (a, str(b))
        elif op == "add_tag":
            s["tags"] = [*s.get("tags", []), a]
        elif op == "append":
            s["list"].append(a)
        elif op == "extend":
            s["list"] += [a, b]
        elif op == "set_list":
            s["list"] = [a] * (b % 3)
        elif op == "clear_list":
            s["list"] = []
        elif op == "put":
            s["map"][a] = b
        elif op == "clear_map":
            s["map"] = {}
        elif op.startswith("clear_"):
            s.pop(op.removeprefix("clear_"), None)
        return self.asked(s, op, a)

    def asked(self, s: dict[str, Any], op: str, a: int) -> Any:
        if op == "pop":
            return s["map"].pop(a, "none")
        if op == "get":
            return s["map"].get(a), a in s["map"]
        if op == "reduce":
            s["top"] = max(s.get("top", a), a)
            return s["top"]
        if op == "average":
            n, total = s.get("mean", (0, 0))
            s["mean"] = (n + 1, total + a)
            return (total + a) // (n + 1)
        if op == "read_list":
            return len(s["list"]), bool(s["list"]), s["list"]
        if op == "read_map":
            return len(s["map"]), sorted(s["map"].items())
        if op == "read":
            mean = s["mean"][1] // s["mean"][0] if "mean" in s else None
            plain = s.get("value", 7), "value" in s, s.get("pair"), s.get("tags"), s.get("top"), mean
            return plain, self.asked(s, "read_list", a), self.asked(s, "read_map", a)
        return None


OPS = sorted(
    name for name, member in vars(Everything).items() if callable(member) and name not in ("on_event", "__init__")
)


def program(process: Process, *, uid: str = "op", **given: Any) -> Program:
    """Return a program of one partition, keyed by k; `timed`, `phased` and `origins` say what rows come with."""
    given["layout"] = RowLayout(*(given.pop(name, False) for name in ("timed", "phased", "origins")))
    fields: dict[str, Any] = {
        "job": "job",
        "generation": 1,
        "uid": uid,
        "name": uid,
        "process": pickle_process(process, uid),
        "key_columns": ["k"],
        "input_schema": EVENTS,
        "output_schema": ANSWERS,
        "parallelism": 1,
        "max_parallelism": MAX_PARALLELISM,
        "backend": "rocksdb",
        "mode": MODE,
        "changelog": SMALL_LOG,
        "store_url": "memory://",
        "partition_memory_bytes": 64 * MIB,
        "limit_bytes": 64 * MIB,
        "lease_ms": 60_000,
    }
    state_infos(process)
    return Program(**{**fields, **given})


def batch_of(events: Sequence[Event], schema: str = EVENTS, keys: Sequence[str] = ("k",)) -> pa.RecordBatch:
    """Return events as a keeper receives them: the key group, then the columns."""
    parsed = parse_schema(schema)
    columns = [list(c) for c in zip(*events, strict=True)] if events else [[] for _ in parsed.fields]
    at = [parsed.names.index(key) for key in keys]
    types = [parsed.fields[i].type for i in at]
    groups = [
        None if None in key else int(key_group(key, types, MAX_PARALLELISM))
        for key in zip(*(columns[i] for i in at), strict=True)
    ]
    arrays = [from_python(values, f.type, f.name) for values, f in zip(columns, parsed.fields, strict=True)]
    fields = [pa.field("key_group", pa.int32()), *arrow_schema(parsed)]
    return pa.RecordBatch.from_arrays([pa.array(groups, pa.int32()), *arrays], schema=pa.schema(fields))


class Bench:
    """A partition over one kind of backend: epochs, background writes, snapshots, restores."""

    number = Partition(0)

    def __init__(
        self, kind: str, root: Path, process: Process | None = None, cache_bytes: int = MIB, **given: Any
    ) -> None:
        self.kind = kind
        self.root = root
        self.cache_bytes = cache_bytes
        self.program = program(process or Everything(), backend=kind, **given)
        self.epoch = 0
        self._count = 0
        self._backends: list[Backend] = []
        self.open(self.place())

    def place(self) -> Path:
        self._count += 1
        return self.root / str(self._count)

    def open(self, directory: Path) -> None:
        process = self.program.load()
        states = [info.name for info in state_infos(process)]
        if self.kind == "rocksdb":
            self.backend: Backend = RocksDBBackend(
                directory, states, memory=BUDGET, groupings=groupings(self.program, process)
            )
        else:
            inline = self.kind == "memory"
            limit = self.program.limit_bytes if inline else None
            self.backend = HeapBackend(directory, states, inline=inline, limit_bytes=limit)
        self._backends.append(self.backend)
        move_states(self.backend, self.program, process)
        self.process = process
        self.task = Task(self.program, process, self.number, self.backend, self.cache_bytes)
        self.partition = OperatorPartition(self.task, Epoch(self.epoch))

    def run(self, *batches: Sequence[Event] | pa.RecordBatch, abort: bool = False) -> list[tuple[Any, ...]]:
        """Process an epoch; return its output rows."""
        schema, keys = self.program.input_schema, self.program.key_columns
        made = (some if isinstance(some, pa.RecordBatch) else batch_of(some, schema, keys) for some in batches)
        return _rows(*self.apply(made, abort=abort))

    def apply(
        self,
        batches: Iterable[pa.RecordBatch],
        watermark_us: int | None = None,
        now_us: int = 0,
        fired_us: int | None = None,
        *,
        abort: bool = False,
    ) -> list[pa.RecordBatch]:
        """Process an epoch at a time, and keep it or forget it; return its output."""
        times = EpochTimes(watermark_us, now_us, fired_us)
        try:
            found = list(self.partition.run(Epoch(self.epoch + 1), times, batches))
        except BaseException:
            self.partition.abort()
            raise
        self.end(abort=abort)
        return found

    def end(self, *, abort: bool) -> None:
        """Keep what the epoch wrote, or forget it."""
        if abort:
            self.partition.abort()
            return
        self.partition.commit()
        self.epoch += 1

    def left(self) -> list[bytes]:
        """Return what state and timers the backend would keep: for tests that look for what was forgotten."""
        self.write(self.freeze())
        assert not self.backend.keeps_all
        return [entry for info in state_infos(self.process) for entry, _ in self.backend.scan(info.name)]

    def freeze(self) -> Frozen:
        return self.task.store.freeze()

    def write(self, frozen: Frozen) -> None:
        """Do what a background thread does between snapshots; backends whose caller keeps all have no such thing."""
        if not self.backend.keeps_all:
            self.backend.write(frozen.changes())
        frozen.release()

    def persist(self, frozen: Frozen) -> list[LocalFile]:
        files = self.backend.persist(frozen.changes(), self.place())
        frozen.release()
        return files

    def snapshot(self) -> list[LocalFile]:
        return self.persist(self.freeze())

    def restore(self, files: list[LocalFile], epoch: int) -> None:
        directory = self.place()
        directory.mkdir()
        for file in files:
            (os.link if file.shared else shutil.copyfile)(file.path, directory / file.name)
        self.backend.close()
        self.open(directory)
        self.epoch = epoch

    def close(self) -> None:
        for backend in self._backends:
            backend.close()


def _rows(*batches: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
