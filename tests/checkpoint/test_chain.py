"""Whatever record is damaged: what counts is never taken for void, and what is void comes back in one case only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.chain import Restored
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import choose
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import manifest
from tests.clock import ManualClock
from tests.soak import examples

FOREIGN = Restored(
    requested="file:///sp", url="file:///sp", kind="savepoint", job="other", checkpoint=3, generation=1, life="ab" * 16,
    sha256="0" * 64,
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.just(("take over",)),
        st.just(("claim only",)),
        st.just(("restore",)),
        st.tuples(st.just("go back"), st.integers(0, 3)),
        st.tuples(st.just("publish"), st.integers(0, 3)),  # 0: the owner; else a driver that was replaced
        st.tuples(st.just("subsume"), st.integers(1, 3)),
    ),
    max_size=20,
)


def played(steps: list[tuple[object, ...]]) -> JobDirectory:
    """Return the directory after drivers took over, published (also when they were replaced) and subsumed."""
    clock = ManualClock()
    jobdir = JobDirectory(open_store("memory://"), "job")
    drivers: list[Claim] = []
    number = 0
    for step in [("take over",), *steps]:
        if step[0] == "claim only":
            claim(jobdir, clock)
        elif step[0] == "take over":
            owned = claim(jobdir, clock)
            found = choose(jobdir, owned).manifest
            owned.set_base(CheckpointId(found.checkpoint) if found else None)
            drivers.append(owned)
        elif step[0] in ("restore", "go back"):
            owned = claim(jobdir, clock)
            choose(jobdir, owned)
            live = [*read_catalog(jobdir).live]
            if step[0] == "restore":
                owned.set_base(None, FOREIGN)
            else:
                owned.set_base(live[int(str(step[1])) % len(live)] if live else None, back=True)
            drivers.append(owned)
        elif step[0] == "publish":
            number += 1
            driver = drivers[max(0, len(drivers) - 1 - int(str(step[1])))]
            jobdir.put(
                manifest_path(CheckpointId(number)), MANIFEST.encode(manifest(number, generation=driver.generation))
            )
        else:
            newest = drivers[-1].generation
            live = [i for i, m in read_catalog(jobdir).live.items() if m.generation <= newest]
            jobdir.delete([manifest_path(i) for i in live[: -int(str(step[1]))]])
    return jobdir


@given(steps=STEPS, which=st.integers(0, 99))
@examples(250)
def test_a_damaged_record(steps: list[tuple[object, ...]], which: int) -> None:
    jobdir = played(steps)
    before = read_catalog(jobdir)
    records = sorted(info.path for info in jobdir.list() if info.path.endswith(".base"))
    newest = max(before.chain.bases)
    damaged = records[which % len(records)]
    jobdir.put(damaged, b"")
    after = read_catalog(jobdir)
    assert set(after.void) <= set(before.void), "what counts is not void"
    published = {m.generation for m in before.manifests.values()}
    if damaged == f"generations/{newest}.base" and newest not in published:
        assert set(after.live) >= set(before.live), "what counted still does"
    else:
        assert set(after.live) <= set(before.live), "what was void does not count again"
    if damaged.replace(".base", ".turned") in {info.path for info in jobdir.list()}:
        assert after.live == before.live, "a generation that turned back has a copy of its record"
        assert after.chain == before.chain
    own = {i for i, m in before.manifests.items() if m.generation == newest}
    assert own <= set(after.live), "what the newest generation has published counts"
    assert bool(after.unknown) <= (after.chain.broken_at is not None)
    # The next driver goes on, and its record is the newest: whoever was passed over publishes in vain.
    owned = claim(jobdir, ManualClock())
    choice = choose(jobdir, owned)
    if choice.manifest is None and any(skipped.lost for skipped in choice.skipped):
        return  # It fails, and says what it cannot judge.
    owned.set_base(CheckpointId(choice.manifest.checkpoint) if choice.manifest else None)
    late = choice.next_id + 10
    jobdir.put(manifest_path(CheckpointId(late)), MANIFEST.encode(manifest(late, generation=newest)))
    assert late in read_catalog(jobdir).void
