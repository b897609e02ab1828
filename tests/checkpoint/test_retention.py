"""Retention alone: which files are deleted with the checkpoints that referenced them."""

from __future__ import annotations

import pytest

from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import choose
from strandline.checkpoint.retention import Holds, Retention
from strandline.core.ids import CheckpointId
from strandline.format.manifest import MANIFEST
from tests.checkpoint.helpers import manifest, shared_ref
from tests.clock import ManualClock


@pytest.mark.parametrize(
    ("retain", "checkpoints", "left"),
    [
        (1, ["ab", "bcd"], ["ab", "bcd"]),
        (2, ["ab", "abcd", "xde", "xy"], ["ab", "abcd", "abcdxe", "dexy"]),
    ],
    ids=["one file is shared", "files merged by compaction"],
)
def test_a_file_goes_with_its_last_checkpoint(
    retain: int, checkpoints: list[str], left: list[str], jobdir: JobDirectory, clock: ManualClock
) -> None:
    owned = claim(jobdir, clock)
    choose(jobdir, owned)
    owned.set_base(None)
    retention = Retention(jobdir, owned, retain, None, Holds(), clock)
    for number, (files, expected) in enumerate(zip(checkpoints, left, strict=True), 1):
        made = manifest(number, [shared_ref(f"shared/{name}/{name}") for name in files])
        for file in made.files():
            jobdir.put(file.path, b"")
        jobdir.create(manifest_path(CheckpointId(number)), MANIFEST.encode(made))
        retention.confirm(made)
        assert retention.delete_due()
        assert {info.path[-1] for info in jobdir.list("shared")} == set(expected)
