"""Full disks, in words: whichever library meets them."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.scratch import Scratch


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("make", [OSError, pa.ArrowException, duckdb.IOException, Exception])
def test_a_full_disk_is_named_with_the_next_step(tmp_path: Path, make: type[Exception], number: int) -> None:
    text = os.strerror(number)
    error = OSError(number, text) if make is OSError else make(f"IO Error: while writing: {text}")
    with (
        pytest.raises(UnavailableError, match=rf"strandline-x-\w+: cannot be written: {text}\n.*set TMPDIR"),
        Scratch("x", tmp_path),
    ):
        raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError("x"), CorruptionError("x: No space left on device")])
def test_other_errors_pass(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)), Scratch("x", tmp_path):
        raise error


def test_no_room_for_the_directory_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**given: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(UnavailableError, match="no temporary directory can be made: No space left"):
        Scratch("x", tmp_path)
