"""What drivers leave behind for people: a log, and word of how they ended."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.control import journal, rotated
from strandline.control.announcements import listening, tell
from strandline.control.driverlog import DriverLog
from strandline.keeper.paths import Places


def record(places: Places, **given: object) -> journal.JournalEntry:
    return journal.JournalEntry(**{  # type: ignore[arg-type]
        "job": places.job, "directory": places.store_url, "pid": os.getpid(), "born": journal.process_start(os.getpid()),
        "since_ms": 1, "state": "running", "at_ms": 2, **given,
    })  # fmt: skip


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path / "l", "file:///ck", "alerts/é")
    made.make()
    return made


def test_a_job_is_killed_when_its_process_is_gone(places: Places) -> None:
    assert record(places).fate == ""
    assert record(places, state="failed").fate == "failed"
    # Its number is another process's by now.
    assert record(places, born="1").fate == "killed"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        theirs = record(places, pid=other.pid, born=journal.process_start(other.pid))
        assert theirs.fate == ""
        other.kill()
        # Also while nobody has asked what became of it.
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert theirs.fate == "killed"
        other.wait()
        assert theirs.fate == "killed"


def test_records_are_found_and_broken_ones_passed_over(places: Places) -> None:
    first = record(places, state="failed", failure="why\nso", at_ms=10)
    assert journal.write(places, first) is None
    other = Places(places.local_dir, "file:///elsewhere", places.job)
    second = record(other, at_ms=20)
    journal.write(other, second)
    third = Places(places.local_dir, "file:///ck", "third")
    third.make()
    third.driver_record.write_text('{"job": 7')
    assert journal.records(places.local_dir) == [second, first]
    assert journal.records(places.local_dir, "third") == []
    assert places.driver_record.stat().st_mode & 0o777 == 0o600
    newer = record(places, at_ms=30)
    assert journal.write(places, newer) == first
    assert journal.records(places.local_dir, places.job) == [newer, second]
    # A driver that was frozen wakes behind its successor.
    successor = record(places, since_ms=2, at_ms=40)
    journal.write(places, successor)
    assert journal.write(places, record(places, state="failed", at_ms=50)) is None
    assert journal.records(places.local_dir, places.job) == [successor, second]
    journal.write(places, record(places, since_ms=2, state="stopped", at_ms=60))
    # The clock was set back.
    journal.write(places, newer)
    assert journal.records(places.local_dir, places.job) == [newer, second]
    # Nothing depends on it: where it cannot be written, nothing is.
    assert journal.write(Places(places.local_dir / "gone", "x", "y"), first) is None


def test_the_log_has_what_is_told_and_warned_of(places: Places) -> None:
    log = DriverLog(places.driver_log)
    log.open()
    try:
        heard: list[tuple[str, bool]] = []
        with listening(lambda text, detail: heard.append((text, detail))):
            tell("it begins")
            tell("again", detail=True)
        logging.getLogger("strandline.any").warning("look at %s\n  next step: this", "that")
        try:
            raise ValueError("x = 1")
        except ValueError:
            logging.getLogger("strandline.any").exception("broken")
    finally:
        log.close()
    tell("nobody hears that")
    lines = places.driver_log.read_text().splitlines()
    assert heard == [("it begins", False), ("again", True)]
    said = [line.split(" ", 3)[1:] for line in lines[:3]]
    assert said == [
        [str(os.getpid()), "INFO", "it begins"],
        [str(os.getpid()), "DEBUG", "again"],
        [str(os.getpid()), "WARNING", "look at that"],
    ]
    assert lines[3] == "    next step: this"
    assert lines[4].endswith("ERROR broken")
    assert lines[-1] == "  ValueError: x = 1"
    assert places.driver_log.stat().st_mode & 0o777 == 0o600


def test_the_log_is_put_aside_when_it_is_long(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotated, "MAX_BYTES", 1000)
    log = DriverLog(places.driver_log)
    for number in range(40):
        log.note(f"line {number}")
    aside = places.driver_log.with_name("driver.log.1")
    kept = [line.rpartition(" ")[2] for path in (aside, places.driver_log) for line in path.read_text().splitlines()]
    assert max(aside.stat().st_size, places.driver_log.stat().st_size) <= 1000
    assert kept == [str(n) for n in range(40 - len(kept), 40)]


def test_a_full_disk_is_nobodys_trouble(places: Places) -> None:
    log = DriverLog(places.local_dir / "not" / "there")
    log.open()
    try:
        tell("unheard")
        logging.getLogger("strandline").warning("unheard")
        log.note("unheard")
    finally:
        log.close()


@pytest.mark.parametrize(
    ("before", "shown"),
    [("", "look"), ("logging.basicConfig(format='mine: %(message)s')", "mine: look"), ("logging.getLogger('strandline').addHandler(logging.NullHandler())", "")],
)  # fmt: skip
def test_warnings_are_shown_as_if_there_were_no_log(tmp_path: Path, before: str, shown: str) -> None:
    code = f"""
import logging
from pathlib import Path
from strandline.control.driverlog import DriverLog
{before}
for name in "ab":
    DriverLog(Path({str(tmp_path)!r}, name)).open()
logging.getLogger("strandline.spark").warning("look")
logging.getLogger("strandline.spark").info("not this")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == (f"{shown}\n" if shown else "")
    assert all(Path(tmp_path, name).read_text().endswith("WARNING look\n") for name in "ab")


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("", "strandline: it begins"),
        # The program keeps a log: there, and once.
        ("logging.basicConfig(format='mine: %(message)s')", "mine: it begins"),
        # Somebody shows it, or leaves it out, as `strandline run` does.
        ("screen = listening(lambda text, detail: None, shows=True); screen.__enter__()", ""),
    ],
)
def test_what_everybody_is_to_know_is_said_once(tmp_path: Path, before: str, shown: str) -> None:
    code = f"""
import logging
from pathlib import Path
from strandline.control.driverlog import DriverLog
from strandline.control.announcements import listening, tell, tell_always
{before}
for name in "ab":
    DriverLog(Path({str(tmp_path)!r}, name)).open()
tell("not this")
tell_always("it begins")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == (f"{shown}\n" if shown else "")
    for name in "ab":
        assert [line[-9:] for line in Path(tmp_path, name).read_text().splitlines()] == [" not this", "it begins"]
