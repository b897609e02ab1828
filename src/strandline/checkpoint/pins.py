"""Pins: copies of a checkpoint's manifest in the job's folder, which keep its files while another process reads them.

A reader (1) reads a manifest, (2) writes its pin, and (3) checks that the manifest still exists. The driver (1) deletes
a manifest, (2) lists the pins, and (3) deletes the files that no pin names. So either the reader finds that its
manifest is gone and takes a newer one, or the driver finds the pin.

A pin that was not renewed for `LEASE_MS` is void: its reader was killed, or is not used any more. The driver deletes it
when it has seen it unchanged for so long, by its steady clock: the storage may have another time, and a clock may be
set, or jump where its machine was suspended. The garbage collector, which looks once, compares the two clocks.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from strandline.checkpoint.folder import Folder, delete_quietly
from strandline.checkpoint.jobdir import PINS
from strandline.core.clock import Clock, SystemClock
from strandline.core.errors import CorruptionError, NotFoundError, StrandlineError
from strandline.core.failpoints import hit
from strandline.core.ids import unique_name
from strandline.format.manifest import MANIFEST
from strandline.storage.base import ObjectInfo

LEASE_MS = 3_600_000
_RENEW_MS = LEASE_MS // 4
_PIN = re.compile(rf"{PINS}/[0-9a-f]{{32}}/_metadata")


def is_pin(path: str) -> bool:
    """Whether an object of a job's directory is a pin."""
    return _PIN.fullmatch(path) is not None


def write_pin(folder: Folder, manifest_path: str) -> str | None:
    """Pin a checkpoint; return the path of the pin, or None if the checkpoint is deleted already."""
    path = f"{PINS}/{unique_name()}/_metadata"
    try:
        data = folder.get(manifest_path)
        hit("pins.write.before")
        folder.put(path, data)
        folder.head(manifest_path)
    except NotFoundError:
        delete_quietly(folder, [path])
        return None
    return path


def renew(folder: Folder, path: str) -> None:
    """Renew a pin if it is old. Raises NotFoundError if it is gone."""
    try:
        # Where the clocks differ by more, it is renewed each time.
        if abs(SystemClock().now_ms() - folder.head(path).modified_ms) > _RENEW_MS:
            folder.put(path, folder.get(path))
    except NotFoundError:
        raise NotFoundError(
            f"{folder.url}: the pinned checkpoint is not kept any more: it was not used for an hour",
            hint="open the job's folder again: that is its newest checkpoint",
        ) from None


@contextmanager
def keep_renewed(folder: Folder, path: str) -> Iterator[None]:
    """A context in which a thread renews a pin. Raises NotFoundError if it is gone."""
    ended = threading.Event()

    def renew_often() -> None:
        while not ended.wait(_RENEW_MS / 2000):
            with suppress(StrandlineError):
                renew(folder, path)

    renew(folder, path)
    thread = threading.Thread(target=renew_often, name="strandline-pin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_void(pin: ObjectInfo, clock: Clock) -> bool:
    """Whether a pin was not renewed in time."""
    return pin.modified_ms < clock.now_ms() - LEASE_MS


class Pins:
    """The pins of a job's directory, as its driver sees them."""

    def __init__(self, folder: Folder, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._files: dict[str, frozenset[str]] = {}
        """The files of each pin."""
        self._seen: dict[tuple[str, int], float] = {}
        """The steady time at which each pin, with its last renewal, was first seen."""

    def files(self) -> set[str]:
        """Return the files that pins keep; delete the pins that are void."""
        pins, now_ms = [pin for pin in self._folder.list(PINS) if is_pin(pin.path)], self._clock.monotonic_ms()
        self._seen = {at: self._seen.get(at, now_ms) for at in ((pin.path, pin.modified_ms) for pin in pins)}
        void = {path for (path, _), since_ms in self._seen.items() if now_ms - since_ms > LEASE_MS}
        self._files = {
            pin.path: known
            if (known := self._files.get(pin.path)) is not None
            else files_of_pin(self._folder, pin.path)
            for pin in pins
            if pin.path not in void
        }
        delete_quietly(self._folder, void)
        return {path for files in self._files.values() for path in files}


def files_of_pin(folder: Folder, path: str) -> frozenset[str]:
    """Return the files that a pin names; none if it is gone, or damaged: then its reader cannot use it either."""
    try:
        return frozenset(file.path for file in folder.read(path, MANIFEST.decode).stored())
    except (NotFoundError, CorruptionError):
        return frozenset()
