"""Savepoints of the first version of the format, read and restored by this one: `golden/savepoint-v1`.

They are of the state that `lived` in test_taking.py makes, of two partitions; the native one is of the memory backend.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.runtime.program import Restore
from strandline.snapshot.opening.listing import verify_snapshot
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.savepoints.take import FORMS, Form
from strandline.storage.place import Place
from tests.runtime.bench import KINDS, Model
from tests.runtime.rescaling import KEYS, Job

GOLDEN = Path(__file__).parent / "golden" / "savepoint-v1"


def model() -> Model:
    found: dict[str, Any] = json.loads((GOLDEN / "model.json").read_text())
    for state in found.values():
        state["map"] = dict(state["map"])
        for name in ("pair", "mean"):
            if name in state:
                state[name] = tuple(state[name])
    return Model(found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("backend", "parallelism"), [(kind, 1 + number) for number, kind in enumerate(KINDS)])
def test_a_savepoint_of_the_first_version_is_restored(
    tmp_path: Path, form: Form, backend: str, parallelism: int
) -> None:
    snapshot = open_snapshot(str(GOLDEN / form))
    assert snapshot.manifest.savepoint == form
    assert verify_snapshot(str(GOLDEN / form)).problems == []
    job, wanted = Job(tmp_path), model()
    place = Place(url=GOLDEN.as_uri(), path=form)
    manifest = snapshot.manifest
    job.epoch = manifest.epoch
    job.restore = Restore(
        checkpoint=manifest.checkpoint, epoch=manifest.epoch, stored=manifest.operators[0], place=place
    )
    job.start(parallelism, backend)
    found = dict(job.run([(key, "read", 0, 0) for key in KEYS]))
    assert found == {key: repr(wanted.answer(key, "read", 0, 0)) for key in KEYS}
    job.stop()
