"""temporary until the merge of the checkpoint branch"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.source_log import pack, unpack
from strandline.core.clock import Clock
from strandline.core.errors import NotFoundError
from strandline.format.frame import frame, unframe


class Start(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    created_ms: int
    names: list[str]
    archive: bytes


def save_start(
    jobdir: JobDirectory, claim: Claim, files: Mapping[str, bytes], names: Sequence[str], clock: Clock
) -> None:
    claim.check()
    jobdir.create(
        "generations/start",
        frame(
            b"SLSTART1",
            1,
            msgspec.json.encode(
                Start(generation=claim.generation, created_ms=clock.now_ms(), names=list(names), archive=pack(files))
            ),
        ),
    )


def load_start(jobdir: JobDirectory) -> Start | None:
    try:
        _, p = unframe(jobdir.get("generations/start"), b"SLSTART1", (1,), "start")
    except NotFoundError:
        return None
    return msgspec.json.decode(p, type=Start)


def restore_start(start: Start, directory: Path) -> None:
    for name, data in unpack(start.archive, "start").items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
