from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.checkpoint.registry import SharedFiles
from strandline.core.ids import CheckpointId
from tests.checkpoint.helpers import manifest, shared_ref

EXAMPLES = json.loads((Path(__file__).parent / "vectors" / "registry.json").read_text())["examples"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e["name"])
def test_worked_examples(example: dict[str, Any]) -> None:
    registry = SharedFiles()
    for step in example["steps"]:
        deleted: list[str] = []
        if "drop" in step:
            deleted = registry.drop(CheckpointId(step["drop"]))
        else:
            registry.complete(manifest(step["complete"], [shared_ref(f) for f in step["files"]]))
            for old in registry.checkpoints[: -(example["retain"] or 100)]:
                deleted += registry.drop(old)
        assert dict(registry.live) == step["live"]
        assert sorted(deleted) == sorted(step["deleted"])


def test_a_registry_rebuilt_from_manifests_is_the_same() -> None:
    manifests = [manifest(i, [shared_ref(f"f{j}") for j in range(i, i + 3)]) for i in range(1, 6)]
    grown, rebuilt = SharedFiles(), SharedFiles()
    for m in manifests:
        grown.complete(m)
    grown.complete(manifests[2])  # twice changes nothing
    grown.drop(CheckpointId(1))
    grown.drop(CheckpointId(2))
    for m in reversed(manifests[2:]):
        rebuilt.complete(m)
    assert dict(grown.live) == dict(rebuilt.live)
    assert grown.checkpoints == rebuilt.checkpoints == [3, 4, 5]


def test_dropping_an_unknown_checkpoint_frees_nothing() -> None:
    registry = SharedFiles()
    registry.complete(manifest(1, [shared_ref("a")]))
    assert registry.drop(CheckpointId(9)) == []
    assert registry.live == {"a": 1}
