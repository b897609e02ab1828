"""What every backend promises, run against each of them."""

from __future__ import annotations

import random
import threading

import pytest

from strandline.backends.base import Backend
from strandline.backends.reading import open_reader
from strandline.core.errors import UnavailableError
from strandline.core.keygroups import BROADCAST_GROUP, first_key

from .conftest import Lab, restore_files


def contents(backend: Backend, state: str) -> dict[bytes, bytes]:
    return dict(backend.scan(state))


def numbered(count: int, value: bytes = b"v") -> list[tuple[bytes, bytes | None]]:
    return [(b"\0\1%06d" % number, value) for number in range(count)]


def test_empty_state_holds_nothing(lab: Lab) -> None:
    backend = lab.open()
    assert backend.get_many("a", [b"k"]) == [None]
    assert backend.get_many("a", []) == []
    assert list(backend.scan("a")) == []


def test_put_overwrite_and_delete(lab: Lab) -> None:
    backend = lab.open()
    backend.write({"a": [(b"1", b"one"), (b"2", b"two"), (b"3", b"three")]})
    backend.write({"a": [(b"2", b"zwei"), (b"3", None), (b"never", None)]})
    assert contents(backend, "a") == {b"1": b"one", b"2": b"zwei"}
    backend.write({"a": [(b"3", b"drei")]})
    assert backend.get_many("a", [b"3"]) == [b"drei"]


def test_empty_keys_and_values_are_values(lab: Lab) -> None:
    backend = lab.open()
    backend.write({"a": [(b"", b"of the empty key"), (b"k", b"")]})
    assert backend.get_many("a", [b"k", b""]) == [b"", b"of the empty key"]
    restored = lab.restore(backend.persist({}, lab.place()))
    assert contents(restored, "a") == {b"": b"of the empty key", b"k": b""}


@pytest.mark.parametrize("count", [3, 5000, 45_000])
def test_get_many_answers_in_the_order_asked_with_gaps_and_repeats(lab: Lab, count: int) -> None:
    backend = lab.open()
    entries = [(b"%d" % number, b"=%d" % number) for number in range(0, count, 2)]
    backend.write({"a": iter(entries)})
    asked = random.Random(1).choices(range(count), k=count)
    expected = [b"=%d" % number if number % 2 == 0 else None for number in asked]
    assert backend.get_many("a", [b"%d" % number for number in asked]) == expected


def test_states_do_not_see_each_other(lab: Lab) -> None:
    backend = lab.open()
    backend.write({"a": [(b"k", b"of a")], "b": [(b"k", b"of b")]})
    backend.write({"a": [(b"k", None)]})
    assert backend.get_many("a", [b"k"]) == [None]
    assert backend.get_many("b", [b"k"]) == [b"of b"]


def test_an_unknown_state_is_named(lab: Lab) -> None:
    backend = lab.open()
    for touch in (
        lambda: backend.get_many("missing", [b"k"]),
        lambda: list(backend.scan("missing")),
        lambda: backend.read_group("missing", b"k"),
        lambda: backend.write({"missing": [(b"k", b"v")]}),
        lambda: backend.release("missing"),
    ):
        with pytest.raises(KeyError, match="missing"):
            touch()


@pytest.mark.parametrize("prefix", [b"", b"\0\1", b"\0\1k", b"\0\xff", b"\xff", b"\xff\xff", b"\0\1k\xff", b"none"])
def test_scan_gives_the_prefix_in_key_order(lab: Lab, prefix: bytes) -> None:
    keys = [b"\0\1", b"\0\1k", b"\0\1k\0", b"\0\1k\xff", b"\0\1k\xff\xff", b"\0\1l", b"\0\2", b"\0\xff", b"\0\xff\xff"]
    keys += [b"\1", b"\xff", b"\xff\xfe", b"\xff\xff", b"\xff\xff\0"]
    backend = lab.open()
    backend.write({"a": [(key, b"v" + key) for key in reversed(keys)]})
    expected = sorted((key, b"v" + key) for key in keys if key.startswith(prefix))
    assert list(backend.scan("a", prefix)) == expected
    assert backend.read_group("a", prefix) == expected
    restored = lab.restore(backend.persist({}, lab.place()))
    assert list(restored.scan("a", prefix)) == expected
    assert restored.read_group("a", prefix) == expected


def test_keys_that_are_prefixes_of_each_other_stay_apart(lab: Lab) -> None:
    backend = lab.open()
    keys = [b"\0\0" + b"x" * length for length in range(300)]
    backend.write({"a": [(key, b"%d" % len(key)) for key in keys]})
    restored = lab.restore(backend.persist({"a": [(keys[17], None)]}, lab.place()))
    assert restored.get_many("a", keys) == [None if key == keys[17] else b"%d" % len(key) for key in keys]


def test_large_values_survive(lab: Lab) -> None:
    rng = random.Random(2)
    values = {b"%d" % number: rng.randbytes(1 << 20) for number in range(5)}
    backend = lab.open()
    backend.write({"a": list(values.items())})
    restored = lab.restore(backend.persist({"b": [(b"x", b"y" * (3 << 20))]}, lab.place()))
    assert contents(restored, "a") == values
    assert restored.get_many("b", [b"x"]) == [b"y" * (3 << 20)]


def test_persist_holds_the_writes_and_the_last_changes(lab: Lab) -> None:
    backend = lab.open()
    backend.write({"a": [(b"1", b"old"), (b"2", b"kept"), (b"3", b"old")]})
    files = backend.persist({"a": [(b"1", b"new"), (b"3", None)], "b": [(b"k", b"v")]}, lab.place())
    expected = {b"1": b"new", b"2": b"kept"}
    assert contents(backend, "a") == expected
    restored = lab.restore(files)
    assert contents(restored, "a") == expected
    assert contents(restored, "b") == {b"k": b"v"}


def test_files_are_as_they_are_described(lab: Lab) -> None:
    backend = lab.open()
    into = lab.place()
    files = backend.persist({"a": numbered(1000)}, into)
    assert sorted(file.path for file in files) == sorted(into.iterdir())
    assert len({file.name for file in files}) == len(files)
    for file in files:
        assert file.path.name == file.name
        assert file.path.stat().st_size == file.size_bytes > 0


def test_an_empty_backend_can_be_persisted(lab: Lab) -> None:
    restored = lab.restore(lab.open().persist({}, lab.place()))
    assert contents(restored, "a") == {}
    restored.write({"a": [(b"k", b"v")]})
    assert contents(restored, "a") == {b"k": b"v"}


def test_a_snapshot_does_not_see_later_writes(lab: Lab) -> None:
    backend = lab.open()
    first = backend.persist({"a": numbered(2000, b"first")}, lab.place())
    second = backend.persist({"a": numbered(1000, b"second")}, lab.place())
    backend.persist({"a": [(key, None) for key, _ in numbered(2000)]}, lab.place())
    assert contents(lab.restore(first), "a") == dict(numbered(2000, b"first"))
    assert contents(lab.restore(second), "a") == dict(numbered(2000, b"first")) | dict(numbered(1000, b"second"))


def test_a_snapshot_outlives_the_backend(lab: Lab) -> None:
    backend = lab.open()
    files = backend.persist({"a": numbered(500)}, lab.place())
    backend.write({"a": numbered(500, b"given up")})
    backend.close()
    assert contents(lab.restore(files), "a") == dict(numbered(500))


def test_using_a_restored_backend_leaves_the_snapshot_alone(lab: Lab) -> None:
    files = lab.open().persist({"a": numbered(500)}, lab.place())
    before = {file.name: file.path.read_bytes() for file in files}
    user = lab.restore(files)
    for round_number in range(12):
        user.persist({"a": numbered(500, b"%d" % round_number)}, lab.place())
    user.close()
    assert {file.name: file.path.read_bytes() for file in files} == before
    assert contents(lab.restore(files), "a") == dict(numbered(500))


def test_states_may_be_added_at_a_restore(lab: Lab) -> None:
    files = lab.open().persist({"a": [(b"k", b"v")]}, lab.place())
    restored = lab.restore(files, ("a", "b", "new"))
    assert contents(restored, "new") == {}
    again = lab.restore(restored.persist({"new": [(b"n", b"1")]}, lab.place()), ("a", "b", "new"))
    assert contents(again, "new") == {b"n": b"1"}
    assert contents(again, "a") == {b"k": b"v"}


def test_a_state_no_longer_declared_is_carried_along(lab: Lab) -> None:
    files = lab.open().persist({"a": [(b"k", b"v")], "b": [(b"k", b"w")]}, lab.place())
    without = lab.restore(files, ("a",))
    files = without.persist({"a": [(b"k2", b"v2")]}, lab.place())
    assert contents(lab.restore(files), "b") == {b"k": b"w"}


def test_a_directory_in_use_is_not_overwritten(lab: Lab) -> None:
    backend = lab.open()
    into = lab.place()
    files = backend.persist({"a": numbered(10)}, into)
    with pytest.raises(UnavailableError, match="exists"):
        backend.persist({"a": numbered(20)}, into)
    assert contents(lab.restore(files), "a") == dict(numbered(10))


def test_reads_while_another_thread_writes_and_persists(lab: Lab) -> None:
    backend = lab.open()
    rounds = 15
    keys = [key for key, _ in numbered(3000)]
    backend.write({"a": numbered(3000, b"00")})
    failures: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            for number in range(1, rounds + 1):
                backend.write({"a": numbered(3000, b"%02d" % number)})
                backend.persist({}, lab.root / f"round-{number}")
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    seen = [b"00"] * len(keys)
    reads = 0
    while not done.is_set() or not reads:
        values = backend.get_many("a", keys)
        assert all(new is not None and new >= old for new, old in zip(values, seen, strict=True))
        seen = [value or b"" for value in values]
        assert [key for key, _ in backend.scan("a")] == keys
        reads += 1
    thread.join()
    assert not failures
    assert backend.get_many("a", keys) == [b"%02d" % rounds] * len(keys)


def test_metrics_are_whole_numbers_with_units(lab: Lab) -> None:
    backend = lab.open()
    backend.persist({"a": numbered(1000)}, lab.place())
    for name, value in backend.metrics().items():
        assert name.rsplit("_", 1)[1] in ("bytes", "count", "us")
        assert isinstance(value, int)
        assert value >= 0


def test_a_closed_backend_can_be_opened_again_elsewhere_at_once(lab: Lab) -> None:
    directory = lab.place()
    backend = lab.open(directory)
    files = backend.persist({"a": numbered(10)}, lab.place())
    backend.close()
    backend.close()
    assert contents(lab.restore(files), "a") == dict(numbered(10))
    lab.open(directory)


GROUPED = [(group_key + rest, b"v" + rest) for group_key in (b"\0\0", b"\0\1", b"\0\7", b"\0\xff", b"\1\0", b"\x7f\xff")
           for rest in (b"", b"\0", b"a", b"\xff\xff")]  # fmt: skip
WITHOUT_GROUP = [(b"\xff\xffrule", b"1"), (b"\xff\xff\xff", b"2")]


@pytest.mark.parametrize(
    "groups", [range(1), range(1, 8), range(7, 256), range(255, 257), range(300, 400), range(32768)]
)
def test_a_clipped_snapshot_holds_its_key_groups_and_what_has_none(lab: Lab, groups: range) -> None:
    backend = lab.open()
    backend.write({"a": [*GROUPED, *WITHOUT_GROUP], "b": GROUPED})
    restored = lab.restore(backend.persist({}, lab.place()))
    restored.clip(groups)
    ours = {key: value for key, value in GROUPED if int.from_bytes(key[:2], "big") in groups}
    # What was cut off does not come back with what is written later, nor with the next snapshot.
    restored.write({"b": [(first_key(groups.start) + b"new", b"n")]})
    again = lab.restore(restored.persist({}, lab.place()))
    for opened in (restored, again):
        assert contents(opened, "a") == {**ours, **dict(WITHOUT_GROUP)}
        assert contents(opened, "b") == {**ours, first_key(groups.start) + b"new": b"n"}
        assert opened.get_many("a", [GROUPED[0][0]]) == [ours.get(GROUPED[0][0])]


def test_entries_of_other_snapshots_are_taken_in_beside_our_own(lab: Lab) -> None:
    """Many, so that several files of them are made."""
    one, other = lab.open(), lab.open()
    one.write({"a": [(first_key(1) + b"%06d" % n, b"one") for n in range(1000)], "b": [(first_key(1) + b"x", b"old")]})
    other.write({"a": [(first_key(2) + b"%06d" % n, b"other" * 20) for n in range(30_000)]})
    base = lab.restore(one.persist({}, lab.place()))
    files = restore_files(other.persist({}, lab.place()), lab.place())
    reader = open_reader(lab.file_kind, files)
    assert set(reader.states) == {"a", "b"}
    base.load("a", reader.scan("a", range(2, 3)))
    base.load("b", reader.scan("b", range(2, 3)))
    assert list(reader.scan("never there", range(128))) == []
    reader.close()
    base.write({"a": [(first_key(2) + b"000007", b"new"), (first_key(2) + b"000008", None)]})
    again = lab.restore(base.persist({}, lab.place()))
    for opened in (base, again):
        found = contents(opened, "a")
        assert len(found) == 30_999
        assert found[first_key(1) + b"000999"] == b"one"
        assert found[first_key(2) + b"000007"] == b"new"
        assert opened.get_many("a", [first_key(2) + b"029999"]) == [b"other" * 20]
        assert contents(opened, "b") == {first_key(1) + b"x": b"old"}
    assert not [path for path in lab.root.iterdir() if "load" in path.name]


def test_a_reader_gives_the_range_it_is_asked_for(lab: Lab) -> None:
    backend = lab.open()
    backend.write({"a": [*GROUPED, *WITHOUT_GROUP]})
    reader = open_reader(lab.file_kind, restore_files(backend.persist({}, lab.place()), lab.place()))
    for groups in (range(1), range(1, 8), range(8, 255), range(255, 32768)):
        wanted = sorted((key, value) for key, value in GROUPED if int.from_bytes(key[:2], "big") in groups)
        assert list(reader.scan("a", groups)) == wanted
    assert list(reader.scan("a", range(BROADCAST_GROUP, BROADCAST_GROUP + 1))) == WITHOUT_GROUP
    reader.close()


def test_a_reader_gives_what_begins_as_it_is_asked_for(lab: Lab) -> None:
    keys = [b"", b"\0", b"\0\xff", b"\0\xff\xff", b"\0\xff\xff\0", b"\1", b"\1\0\0", b"\1\1", b"\xff", b"\xff\xff\xff"]
    entries = [(b"\0\7" + key, b"v%d" % number) for number, key in enumerate(keys)]
    backend = lab.open()
    backend.write({"a": [*entries, *WITHOUT_GROUP]})
    reader = open_reader(lab.file_kind, restore_files(backend.persist({}, lab.place()), lab.place()))
    for key in keys:
        prefix = b"\0\7" + key
        assert list(reader.scan_prefix("a", prefix)) == [entry for entry in entries if entry[0].startswith(prefix)]
    assert list(reader.scan_prefix("a", b"\xff\xff")) == WITHOUT_GROUP
    assert list(reader.scan_prefix("a", b"\0\7\2")) == list(reader.scan_prefix("never there", b"")) == []
    reader.close()


# -- a state gets another name, or is given up


def test_a_state_is_moved_and_forgotten_for_good(lab: Lab) -> None:
    backend = lab.open(states=("a", "b", "old"))
    backend.write({"old": numbered(3000), "b": numbered(10), "a": []})
    files = backend.persist({}, lab.place())
    moved = lab.restore(files, ("a", "new"))
    moved.move("old", "new")
    moved.forget("b")
    moved.write({"new": [(numbered(1)[0][0], None), (b"\0\2", b"more")]})
    expected = {**dict(numbered(3000)[1:]), b"\0\2": b"more"}
    for _ in range(2):
        assert contents(moved, "new") == expected
        assert contents(moved, "a") == {}
        for gone in ("old", "b"):
            with pytest.raises(KeyError, match=gone):
                moved.get_many(gone, [b"k"])
        moved = lab.restore(moved.persist({}, lab.place()), ("a", "new"))
    # Under a name that was given up, a state begins empty.
    again = lab.restore(moved.persist({}, lab.place()), ("a", "b", "new", "old"))
    assert contents(again, "b") == contents(again, "old") == {}


def test_to_move_or_forget_what_is_not_there_does_nothing(lab: Lab) -> None:
    backend = lab.open()
    backend.write({"a": [(b"\0\1", b"v")]})
    backend.move("missing", "a")
    backend.forget("missing")
    assert contents(backend, "a") == {b"\0\1": b"v"}
