"""The heap file: its golden bytes, and that no damaged byte goes unseen."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

from strandline.core.errors import CorruptionError
from strandline.format.heapfile import read_heap, write_heap

GOLDEN = Path(__file__).parent / "golden" / "state-v1.heap"
GOLDEN_STATES = [
    ("counts", [(b"\0\1alice", b"\1\0\0\0"), (b"\0\1bob", b""), (b"\0\2", b"\xff" * 20)]),
    ("empty", []),
    ("größe", [(b"", b"empty key")]),
]

States = list[tuple[str, list[tuple[bytes, bytes]]]]


def write(path: Path, states: States) -> bytes:
    with path.open("wb") as file:
        write_heap(file, ((name, iter(entries)) for name, entries in states))
    return path.read_bytes()


def read(path: Path) -> States:
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    with path.open("rb") as file:
        for state, entries in read_heap(file, str(path)):
            found.setdefault(state, []).extend(entries)
    return list(found.items())


def test_the_golden_file_is_read() -> None:
    assert read(GOLDEN) == GOLDEN_STATES


def test_todays_writer_gives_the_golden_bytes(tmp_path: Path) -> None:
    assert write(tmp_path / "f", GOLDEN_STATES) == GOLDEN.read_bytes()


def test_many_blocks_come_back_in_order(tmp_path: Path) -> None:
    rng = random.Random(3)
    entries = [(b"%06d" % number, rng.randbytes(rng.choice((0, 10, 1000)))) for number in range(5000)]
    entries.append((b"z", rng.randbytes(2 << 20)))
    states: States = [("a", entries), ("b", entries[:1])]
    write(tmp_path / "f", states)
    assert read(tmp_path / "f") == states
    with (tmp_path / "f").open("rb") as file:
        assert len(list(read_heap(file, "f"))) > 5


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_damage_at_every_byte_is_found(tmp_path: Path, flip: int) -> None:
    data = GOLDEN.read_bytes()
    target = tmp_path / "f"
    for at in range(len(data)):
        target.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
        with pytest.raises(CorruptionError, match=str(target)):
            read(target)


def test_a_cut_at_every_byte_is_found(tmp_path: Path) -> None:
    data = GOLDEN.read_bytes()
    target = tmp_path / "f"
    for length in range(len(data)):
        target.write_bytes(data[:length])
        with pytest.raises(CorruptionError, match=str(target)):
            read(target)


def test_bytes_behind_the_end_are_found(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(GOLDEN.read_bytes() + b"\0")
    with pytest.raises(CorruptionError, match="goes on"):
        read(tmp_path / "f")


def test_blocks_dropped_or_swapped_whole_are_found(tmp_path: Path) -> None:
    # Every block alone is intact here: only index and count tell.
    whole = write(tmp_path / "whole", [("a", [(b"k", b"1")]), ("b", [(b"k", b"2")])])
    header, state, entry, end = 16, 13 + 1, 13 + 8 + 2, 13 + 8
    assert len(whole) == header + 2 * (state + entry) + end
    cuts = [header, header + state, header + state + entry, header + 2 * state + entry, len(whole) - end]
    first, second, third, fourth = (whole[a:b] for a, b in pairwise(cuts))
    for blocks in ([first, second], [first, fourth, third, second], [third, fourth], [first, second, second, fourth]):
        (tmp_path / "f").write_bytes(whole[:header] + b"".join(blocks) + whole[-end:])
        with pytest.raises(CorruptionError):
            read(tmp_path / "f")


def test_another_version_is_refused_with_a_hint(tmp_path: Path) -> None:
    head = GOLDEN.read_bytes()[:8] + (7).to_bytes(4, "little")
    (tmp_path / "f").write_bytes(head + zlib.crc32(head).to_bytes(4, "little") + GOLDEN.read_bytes()[16:])
    with pytest.raises(CorruptionError, match="version 7") as caught:
        read(tmp_path / "f")
    assert "newer release" in caught.value.hint
