"""A job that is started with snapshots of somebody else and of its own, killed, started again and rolled back.

It never begins empty after it restored something, never takes a void checkpoint, and changes nothing of what is not
its own. A Hypothesis state machine against what each start must find.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.checkpoint import parallel
from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.gc import execute, plan
from strandline.core import failpoints, ids
from strandline.core.errors import CorruptionError, FencedError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import Manifest
from strandline.snapshot.opening.origin import decide, rollback
from tests.checkpoint.helpers import HOUR_MS, every_epoch, late_clock
from tests.crashing import Crash, crash
from tests.snapshot.helpers import Job, jobdir_at, tree, url, write_savepoint
from tests.soak import examples

BASE_STEPS = ("generation.base.before", "generation.base.copied", "generation.base.after")
STEPS = (
    "upload.file", "checkpoint.publish.before", "checkpoint.publish.after", "checkpoint.commit_sinks.before",
    "checkpoint.subsume.before", "checkpoint.subsume.manifest_deleted",
)  # fmt: skip
WANTED = ("nothing", "first", "second", "checkpoint", "job", "own", "again")


class Origins(RuleBasedStateMachine):
    """`lineage` are the job's own checkpoints that count; `foreign` is what it needs while it has none."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(parallel, "_THREADS", 1)
        self.patch.setattr(ids, "_random", random.Random(seed))
        self.scratch = tempfile.TemporaryDirectory()
        self.root = Path(self.scratch.name)
        self.clock = late_clock()
        self.config = every_epoch(retain=3, tolerable_failures=None)
        for number, name in enumerate(("first", "second")):
            write_savepoint(self.root / name, seed=number, life=f"{number}" * 32)
        self.theirs = Job(self.root, self.clock, name="theirs", config=every_epoch(retain=2))
        self.theirs.checkpoint()
        self.jobdir = jobdir_at(self.root)
        self.lineage: list[int] = []
        self.foreign: Manifest | None = None
        self.last: str | None = None
        self.asked: list[tuple[str | None, str]] = []
        self.highest = self.runs = 0
        self.job: Job | None = None
        self.others = self._others()

    def _others(self) -> list[dict[str, bytes]]:
        return [tree(self.root / name) for name in ("first", "second", "ck/theirs")]

    def _url(self, wanted: str, which: int) -> str | None:
        if wanted == "own" and self.highest:
            return url(self.root / f"ck/job/chk-{which % self.highest + 1}")
        newest = self.theirs.confirmed
        places = {
            "first": "first", "second": "second", "job": "ck/theirs", "checkpoint": f"ck/theirs/chk-{newest.checkpoint}"
        }  # fmt: skip
        return self.last if wanted == "again" else url(self.root / places[wanted]) if wanted in places else None

    @rule(
        wanted=st.sampled_from(WANTED), which=st.integers(0, 99), step=st.sampled_from((None, None, *BASE_STEPS)),
        again=st.sampled_from(("", "", "once", "twice")),
    )  # fmt: skip
    def start(self, wanted: str, which: int, step: str | None, again: str = "") -> None:
        asked = self._url(wanted, which)
        named = (asked, again)
        is_new = asked is not None and named not in (self.asked if self.lineage else self.asked[-1:])
        number = int(asked.rpartition("-")[2]) if asked and "/ck/job/chk-" in asked else None
        if step is not None:
            failpoints.arm(step, crash)
        before, self.job = self.job, None
        had = bool(self.lineage or self.foreign)
        self.runs += 1
        try:
            self.job = Job(self.root, self.clock, asked, again=again, config=self.config, seed=self.runs)
        except Crash:
            if step != "generation.base.after":
                return
        except NotFoundError:
            assert is_new
            assert number not in read_catalog(self.jobdir).manifests, "what is there can be restored"
            return
        except CorruptionError as error:
            gone = self.foreign is not None and "cannot restore it again" in error.message
            assert gone or (is_new and number not in self.lineage), "only what is void or gone is refused"
            return
        finally:
            failpoints.disarm_all()
        del before
        if is_new:
            assert asked is not None
            self.last = asked
            self.asked.append(named)
            self.lineage = [i for i in self.lineage if number is not None and i <= number]
            self.foreign = None if number is not None else decide(self.jobdir, asked, fsync=False).manifest
        if self.job is None:
            return
        found = self.job.origin
        if self.lineage:
            assert found.is_own
            assert found.manifest.checkpoint == self.lineage[-1]
        else:
            assert found.manifest == self.foreign
            assert found.is_own == (self.foreign is None)
        assert found.manifest is not None or not (had or is_new), "it begins empty"
        assert bool(found.depends_on) == (self.foreign is not None)
        if found.manifest is not None:
            assert self.job.claim.restored is not None or not is_new

    @precondition(lambda self: self.job is not None)
    @rule(step=st.sampled_from((None, None, *STEPS)))
    def checkpoint(self, step: str | None) -> None:
        if step is not None:
            failpoints.arm(step, crash)
        number = self.job.coordinator.next_id
        depended = self.job.coordinator.depends_on
        try:
            self.clock.advance(1000)
            self.job.checkpoint()
            newest = self.job.coordinator.history[-1]
            assert newest.frees == depended
            assert not self.job.coordinator.depends_on
        except Crash:
            self.job = None
            if step in ("upload.file", "checkpoint.publish.before"):
                return
        finally:
            failpoints.disarm_all()
        assert number > self.highest, "numbers only grow"
        self.highest = number
        self.lineage.append(number)
        self.foreign = None

    @precondition(lambda self: self.job is not None)
    @rule(wanted=st.sampled_from(WANTED), which=st.integers(0, 99))
    def replaced_while_publishing(self, wanted: str, which: int) -> None:
        """The worst moment: the checks are passed, the manifest is on its way, and another driver decides meanwhile."""
        old, number = self.job, self.job.coordinator.next_id
        failpoints.arm("checkpoint.publish.before", lambda: self.start(wanted, which, None))
        self.clock.advance(1000)
        try:
            with pytest.raises(FencedError):
                old.checkpoint()
        finally:
            failpoints.disarm_all()
        if self.job is None:
            # The other one claimed the job, and did not come to a decision: what was published before counts.
            self.highest = number
            self.lineage.append(number)
            self.foreign = None
        # Else it is void, and nobody has seen it: once it is deleted, its number may come again.
        self.job = None

    @precondition(lambda self: self.lineage)
    @rule(which=st.integers(0, 99), step=st.sampled_from((None, *BASE_STEPS)))
    def roll_back(self, which: int, step: str | None) -> None:
        number = which % self.highest + 1
        can = number in read_catalog(self.jobdir).live
        self.job = None
        if step is not None:
            failpoints.arm(step, crash)
        try:
            rollback(self.jobdir, CheckpointId(number), self.clock)
        except Crash:
            if step != "generation.base.after":
                return
        except NotFoundError:
            assert not can
            return
        finally:
            failpoints.disarm_all()
        self.lineage = [i for i in self.lineage if i <= number]

    @rule()
    def their_job_goes_on(self) -> None:
        """Its newest checkpoint takes the place of an older one, which we may have restored."""
        assert self._others() == self.others, "ours has touched what is theirs"
        self.clock.advance(1000)
        self.theirs.checkpoint()
        self.others = self._others()

    @rule()
    def collect_garbage(self) -> None:
        self.job = None
        self.clock.advance(2 * HOUR_MS)
        execute(plan(self.jobdir, self.clock))

    @invariant()
    def only_the_lineage_counts(self) -> None:
        if not hasattr(self, "others"):
            return
        catalog = read_catalog(self.jobdir)
        assert set(catalog.live) <= set(self.lineage)
        assert max(catalog.live, default=None) == max(self.lineage, default=None)
        assert self._others() == self.others

    def teardown(self) -> None:
        failpoints.disarm_all()
        if hasattr(self, "scratch"):
            self.scratch.cleanup()
            self.patch.undo()


TestOrigins = Origins.TestCase
TestOrigins.settings = examples(60, stateful_step_count=25, suppress_health_check=list(HealthCheck))
