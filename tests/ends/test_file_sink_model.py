"""Random lives of a job with a file sink: crashes, moves, older checkpoints, and a consumer that takes what it sees."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.core.ids import Epoch
from strandline.spark.sinks.visibility_log import Committable
from tests.crashing import Crash
from tests.ends.filesinks import Disk, Rows, rows_in, shown_files, sink_at, visible
from tests.soak import examples

crashes = st.none() | st.integers(0, 60)
files_of_an_epoch = st.lists(st.integers(1, 2), max_size=3)


@dataclass
class Published:
    """A checkpoint: what a restart from it needs, and which rows are to be seen from then on."""

    epoch: int = 0
    pending: list[str] = field(default_factory=list)
    history: dict[int, Counter[str]] = field(default_factory=dict)
    none: bool = False
    """It stands for that there is none yet."""

    def rows(self) -> Counter[str]:
        return sum(self.history.values(), Counter())


class FileSinkMachine(RuleBasedStateMachine):
    """Seen is what is visible and what was taken. Once a commit or a restart is through, it is every published row, once."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        self.disk = Disk(self.patch)
        self.path = Path(self.folder.name) / "out-0"
        self.paths = [self.path]
        """Where output was written, and still is."""
        self.names = 0
        self.generation = 0
        self.published = [Published(none=True)]
        self.taken: Counter[str] = Counter()
        self.alive = self.settled = False
        self.start()

    # -- the engine

    def start(self, crash_at: int | None = None) -> None:
        """One life begins, from the newest checkpoint that is left."""
        newest = self.published[-1]
        self.generation += 1
        self.epoch, self.staged, self.history = newest.epoch, [], dict(newest.history)
        self.alive = self.settled = False
        self.disk.forget(crash_at)
        try:
            self.sink = sink_at(self.path, self.generation)
            self.sink.recover(newest.pending, Epoch(newest.epoch), fresh=newest.none)
        except Crash:
            return
        finally:
            self.disk.forget()
        self.alive = self.settled = True

    @precondition(lambda self: self.alive)
    @rule(files=files_of_an_epoch, crash_at=st.none() | st.integers(0, 3))
    def run_epoch(self, files: list[int], crash_at: int | None) -> None:
        self.epoch += 1
        rows = [[f"g{self.generation} e{self.epoch} f{i} {n}" for n in range(many)] for i, many in enumerate(files)]
        self.disk.forget(crash_at)
        try:
            written: Any = Rows(*rows)
            staged = self.sink.write(written, Epoch(self.epoch))
        except Crash:
            self.alive = False
            return
        finally:
            self.disk.forget()
        self.staged += [staged] if staged is not None else []
        self.history[self.epoch] = Counter(row for file in rows for row in file)

    @precondition(lambda self: self.alive)
    @rule(crash_at=crashes, told_late=st.booleans())
    def checkpoint(self, crash_at: int | None, told_late: bool) -> None:
        """`told_late`: the next checkpoint is triggered before this one's commit is done, and lists its epochs again."""
        self.published.append(Published(self.epoch, list(self.staged), dict(self.history)))
        self.settled = False
        self.disk.forget(crash_at)
        try:
            self.sink.commit(self.staged)
        except Crash:
            self.alive = False
            return
        finally:
            self.disk.forget()
        self.settled = True
        self.staged = self.staged if told_late else []

    # -- what happens to it

    @rule(crash_at=crashes)
    def restart(self, crash_at: int | None) -> None:
        self.start(crash_at)

    @rule(crash_at=crashes, back=st.integers(1, 3))
    def restart_from_an_older_checkpoint(self, crash_at: int | None, back: int) -> None:
        # Not from none at all: then the job begins anew, and what is visible is none of its business.
        self.published = self.published[: max(2, len(self.published) - back)]
        self.start(crash_at)

    @precondition(lambda self: self.path.exists())
    @rule(crash_at=crashes)
    def restart_where_the_directory_was_moved_to(self, crash_at: int | None) -> None:
        self.paths.remove(self.path)
        self.path = self.path.rename(self.new_path())
        self.paths.append(self.path)
        self.start(crash_at)

    @rule(crash_at=crashes, data=st.data())
    def restart_with_another_path(self, crash_at: int | None, data: Any) -> None:
        """Only while the directories that the checkpoint names are where they were: else it is an error, and must be."""
        newest = self.published[-1]
        named = {msgspec.json.decode(text, type=Committable).root for text in newest.pending}
        if named <= {f"file:{path}" for path in self.paths}:
            self.path = data.draw(st.sampled_from([*self.paths, self.new_path()]))
            self.paths += [self.path] if self.path not in self.paths else []
            # What was shown elsewhere is not taken back.
            self.published = [newest]
            self.start(crash_at)

    @rule(data=st.data())
    def consume(self, data: Any) -> None:
        seen = [file for path in self.paths for file in shown_files(path)]
        for file in data.draw(st.lists(st.sampled_from(seen), unique=True) if seen else st.just([])):
            self.taken.update(rows_in(file))
            file.unlink()

    def new_path(self) -> Path:
        self.names += 1
        return Path(self.folder.name) / f"out-{self.names}"

    # -- what must hold

    @invariant()
    def nothing_is_seen_twice(self) -> None:
        if hasattr(self, "taken"):
            seen = self.taken + visible(*self.paths)
            assert all(n == 1 for n in seen.values()), seen

    @invariant()
    def all_that_is_published_is_seen(self) -> None:
        if hasattr(self, "settled") and self.settled:
            wanted, shown = self.published[-1].rows(), visible(*self.paths)
            assert shown <= wanted, shown - wanted
            assert wanted <= shown + self.taken, wanted - shown - self.taken

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.patch.undo()
            self.folder.cleanup()


@pytest.mark.hypothesis
def test_what_is_seen_is_what_was_published_through_any_sequence_of_lives() -> None:
    case = FileSinkMachine.TestCase
    case.settings = examples(
        300, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    case("runTest").runTest()
