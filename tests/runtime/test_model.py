"""A partition against plain dicts: epochs kept and given up, background writes at any moment, snapshots, restores."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from strandline.backends.base import LocalFile
from strandline.runtime.state import livekeys
from strandline.runtime.state.store import Frozen
from tests.runtime.bench import ANSWERS, EVENTS, OPS, Bench, Event, Model
from tests.soak import examples

SCHEMAS = {"input_schema": EVENTS, "output_schema": ANSWERS}
_NUMBERS: dict[Any, Any] = {"x": 1, "y": -1, "": 0, "é\0": 1 << 40, "z" * 40: -(1 << 63), "z" * 39: 2, "never seen": 7}
_GROUPS_KEPT = livekeys._GROUPS_KEPT
numbers = st.integers(-3, 3)
events = st.tuples(st.sampled_from(["x", "y", "", "é\0", "z" * 40, "z" * 39]), st.sampled_from(OPS), numbers, numbers)
batches = st.lists(st.lists(events, min_size=1, max_size=12), min_size=1, max_size=3)


class PartitionMachine(RuleBasedStateMachine):
    """The rules; one subclass a backend."""

    kind = ""
    key_type = "string"
    """Entries of keys of one size are found in another way than those of keys of any size."""

    @initialize(cache_bytes=st.sampled_from([1, 2000, 1 << 20]))
    def start(self, cache_bytes: int) -> None:
        # Few keys are enough to have their key groups forgotten.
        livekeys._GROUPS_KEPT = 1
        self.root = Path(tempfile.mkdtemp(prefix="sl-model-"))
        schemas = {name: given.replace("k string", f"k {self.key_type}", 1) for name, given in SCHEMAS.items()}
        self.bench = Bench(self.kind, self.root, cache_bytes=cache_bytes, **schemas)
        self.model = Model()
        self.frozen: deque[tuple[Frozen, Model, int]] = deque()
        self.snapshots: list[tuple[list[LocalFile], Model, int]] = []

    def teardown(self) -> None:
        livekeys._GROUPS_KEPT = _GROUPS_KEPT
        if hasattr(self, "root"):
            self.read_everything()
            self.bench.close()
            shutil.rmtree(self.root)

    def epoch(self, given: list[list[Event]], abort: bool) -> None:
        after = self.model.copy()
        if self.key_type == "bigint":
            given = [[(_NUMBERS.get(k, k), *rest) for k, *rest in batch] for batch in given]
        wanted = [(k, repr(after.answer(k, op, a, b))) for batch in given for k, op, a, b in batch]
        assert self.bench.run(*given, abort=abort) == wanted
        if not abort:
            self.model = after

    @rule(given=batches, abort=st.sampled_from([False, False, True]))
    def process(self, given: list[list[Event]], abort: bool) -> None:
        self.epoch(given, abort)

    @rule(key=st.sampled_from(["x", "y"]), times=st.integers(30, 40))
    def append_in_many_epochs(self, key: str, times: int) -> None:
        """Enough chunks that reading the list rewrites it as one."""
        for number in range(times):
            self.epoch([[(key, "append", number, 0)]], abort=False)
        self.epoch([[(key, "read_list", 0, 0)]], abort=False)

    @rule()
    def freeze(self) -> None:
        self.frozen.append((self.bench.freeze(), self.model.copy(), self.bench.epoch))

    @precondition(lambda self: self.frozen)
    @rule(snapshot=st.booleans())
    def write_oldest(self, snapshot: bool) -> None:
        frozen, model, epoch = self.frozen.popleft()
        if snapshot:
            self.snapshots.append((self.bench.persist(frozen), model, epoch))
        else:
            self.bench.write(frozen)

    @precondition(lambda self: self.frozen)
    @rule(given=batches, abort=st.booleans(), snapshot=st.booleans())
    def write_while_processing(self, given: list[list[Event]], abort: bool, snapshot: bool) -> None:
        """What the writer thread does, while an epoch runs."""
        self.in_background(lambda: self.write_oldest(snapshot), lambda: self.epoch(given, abort))

    def in_background(self, work: Callable[[], None], meanwhile: Callable[[], None]) -> None:
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            meanwhile()
        finally:
            thread.join()
        assert not failed, failed

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        files, model, epoch = data.draw(st.sampled_from(self.snapshots), label="snapshot")
        self.frozen.clear()
        self.bench.restore(files, epoch)
        self.model = model.copy()

    @rule()
    def read_everything(self) -> None:
        """Whatever is asked of a key never seen, too."""
        asked: list[Event] = [(key, "read", 0, 0) for key in [*self.model.keys, "never seen"]]
        self.epoch([asked], abort=True)

    @rule()
    def evict(self) -> None:
        self.bench.task.store.evict()


def machine_of(kind: str, key_type: str = "string") -> Any:
    machine = type(f"{kind.title()}Machine", (PartitionMachine,), {"kind": kind, "key_type": key_type}).TestCase
    machine.settings = examples(
        20,
        stateful_step_count=20,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return machine


TestMemory = machine_of("memory")
TestFilesystem = machine_of("filesystem")
TestRocksDB = machine_of("rocksdb")
TestRocksDBOfNumbers = machine_of("rocksdb", "bigint")
