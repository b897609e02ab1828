from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.control.wire import ProgressMessage
from tests.cli.conftest import Command
from tests.cli.fabricate import FabricatedJob
from tests.cli.snapshots import Made, make
from tests.snapshot.helpers import tree, write_savepoint


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A job's real checkpoints."""
    return make(tmp_path_factory.mktemp("made"))


# -- list, show, verify, delete


def test_list_finds_checkpoints_and_savepoints_alike(
    strandline: Command, alerts: FabricatedJob, tmp_path: Path
) -> None:
    write_savepoint(tmp_path / "sp/a")
    found = strandline("snapshots", "list", tmp_path, "--json")
    assert [(one["kind"], one["form"], one["job"], one["state"]) for one in found.json] == [
        ("checkpoint", "incremental", "alerts", "complete"), ("checkpoint", "incremental", "alerts", "complete"),
        ("savepoint", "native", "other", "complete"),
    ]  # fmt: skip
    rows = [line.split()[:4] for line in strandline("snapshots", "list", tmp_path).stdout.splitlines()]
    assert ["ck/alerts/chk-3", "complete", "incremental", "alerts"] in rows
    assert ["sp/a", "complete", "native", "other"] in rows
    (single,) = strandline("snapshots", "list", tmp_path / "sp/a", "--json").json
    assert single["url"] == (tmp_path / "sp/a").as_uri()
    assert strandline("snapshots", "list", tmp_path / "nowhere").code == 1
    (tmp_path / "empty").mkdir()
    assert "no snapshot" in strandline("snapshots", "list", tmp_path / "empty").stderr


def test_show_of_a_checkpoint_and_of_a_savepoint(strandline: Command, made: Made) -> None:
    (shown,) = strandline("snapshots", "show", made.checkpoints[-1], "--json").json
    assert (shown["kind"], shown["checkpoint"], len(shown["operators"][0]["partitions"])) == ("checkpoint", 2, 3)
    assert "savepoint" not in shown
    (shown,) = strandline("snapshots", "show", made.canonical, "--json").json
    (operator,) = shown["operators"]
    assert (shown["savepoint"], operator["partitions"]) == ("canonical", [])
    (table,) = operator["tables"]["value"]
    assert (table["rows"], table["file"]["path"][:5]) == (made.keys_with("value"), "data/")
    text = strandline("snapshots", "show", made.canonical).stdout
    assert made.canonical.as_uri() in text
    rows = [line.split()[:4] for line in text.splitlines()]
    assert ["value", f"{table['first_key_group']}-{table['last_key_group']}", "1", str(table["rows"])] in rows


def test_verify_reads_every_byte_of_several(strandline: Command, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_savepoint(tmp_path / name)
    assert strandline("snapshots", "verify", tmp_path / "a", tmp_path / "b").code == 0
    damaged = next((tmp_path / "b/data").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    found = strandline("snapshots", "verify", tmp_path / "a", tmp_path / "b", "--json")
    assert (found.code, [one["ok"] for one in found.json]) == (1, [True, False])
    assert found.json[1]["problems"][0]["path"] == f"data/{damaged.name}"
    assert "next step" in found.stderr


def test_delete_takes_a_savepoint_and_no_checkpoint(strandline: Command, alerts: FabricatedJob, tmp_path: Path) -> None:
    write_savepoint(tmp_path / "sp")
    before = tree(tmp_path)
    checkpoint = alerts.directory / "alerts/chk-3"
    for args in ((checkpoint,), (checkpoint, "--dry-run")):
        refused = strandline("snapshots", "delete", *args)
        assert refused.code == 1
        assert "not deleted by hand" in refused.stderr
    (would,) = strandline("snapshots", "delete", tmp_path / "sp", "--dry-run", "--json").json
    assert (would["files"], would["bytes"], would["dry_run"]) == (2, 600, True)
    assert tree(tmp_path) == before
    assert "2 files, 600 B" in strandline("snapshots", "delete", tmp_path / "sp").stdout
    assert strandline("snapshots", "show", tmp_path / "sp").code == 1


# -- copy


def test_a_copy_sends_what_is_not_there(strandline: Command, alerts: FabricatedJob, tmp_path: Path) -> None:
    source, target = alerts.directory / "alerts", tmp_path / "there/alerts"
    (first,) = strandline("snapshots", "copy", source / "chk-2", target, "--json").json
    assert (first["url"], first["sent_files"]) == (f"{target.as_uri()}/chk-2", first["files"])
    (second,) = strandline("snapshots", "copy", source, target, "--json").json
    assert second["url"] == f"{target.as_uri()}/chk-3"
    assert 0 < second["sent_files"] < second["files"]
    again = strandline("snapshots", "copy", source, target)
    assert again.stdout.endswith("sent: none, all were there\n")
    assert strandline("snapshots", "verify", target / "chk-2", target / "chk-3").code == 0


def test_nothing_is_copied_to_where_a_job_collects_its_garbage(
    strandline: Command, alerts: FabricatedJob, tmp_path: Path
) -> None:
    write_savepoint(tmp_path / "sp")
    job = alerts.directory / "alerts"
    before = tree(tmp_path)
    for args in (("sp", "chk-99"), ("sp", "shared/sp"), ("sp", "chk-2/sp"), ("sp", "chk-99", "--canonical")):
        refused = strandline("snapshots", "copy", tmp_path / args[0], job / args[1], *args[2:])
        assert (refused.code, "of a job's directory" in refused.stderr) == (1, True), args
    assert tree(tmp_path) == before


def test_a_checkpoint_becomes_a_savepoint(strandline: Command, made: Made, tmp_path: Path) -> None:
    for form in ("canonical", "native"):
        done = strandline("snapshots", "copy", made.checkpoints[-1], tmp_path / form, f"--{form}", "--json")
        assert [one["form"] for one in done.json] == [form]
        (tmp_path / form).rename(tmp_path / f"moved-{form}")
        assert strandline("snapshots", "verify", tmp_path / f"moved-{form}").code == 0
    from_native = strandline("snapshots", "copy", tmp_path / "moved-native", tmp_path / "tables", "--canonical")
    assert from_native.code == 0
    assert tree(tmp_path / "tables/data") == tree(tmp_path / "moved-canonical/data") == tree(made.canonical / "data")
    refused = strandline("snapshots", "copy", made.canonical, tmp_path / "x", "--native")
    assert (refused.code, (tmp_path / "x").exists()) == (1, False)
    assert "cannot be made native" in refused.stderr
    assert strandline("snapshots", "copy", made.canonical, tmp_path / "x", "--native", "--canonical").code == 2
    in_the_way = strandline("snapshots", "copy", made.checkpoints[-1], made.canonical, "--canonical")
    assert in_the_way.code == 1
    assert "Traceback" not in in_the_way.stderr


# -- diff


def test_diff_counts_keys_by_state_and_shows_some(strandline: Command, made: Made) -> None:
    one, other = made.checkpoints
    (found,) = strandline("snapshots", "diff", one, other, "--keys", 2, "--json").json
    states = {state["state"]: state for state in found["states"]}
    assert not found["equal"]
    assert {
        name: tuple(state[what]["found"] for what in ("added", "changed", "removed"))
        for name, state in states.items()
        if not state["equal"]
    } == {"value": (0, 30, 0), "history": (0, 30, 0), "short": (0, 30, 0)}
    assert (states["value"]["rows_before"], states["value"]["rows_after"]) == (60, 60)
    first, second = states["history"]["keys"]
    assert (first["change"], first["before"], first["after"]) == ("changed", [], [{"position": 1, "value": 2}])
    assert first["key"] != second["key"]
    text = strandline("snapshots", "diff", one, other, "--keys", 1)
    assert f'op.value: changed {json.dumps(states["value"]["keys"][0]["key"])}\n  - {{"value": 1}}\n  + ' in text.stdout
    assert ["op", "value", "0", "30", "0", "60", "60"] in [line.split() for line in text.stdout.splitlines()]
    assert "no differences: op.pair, op.tags, op.by_kind," in text.stdout
    assert text.code == 0
    assert strandline("snapshots", "diff", one, other, "--exit-code").code == 1


def test_diff_of_the_same_state_in_every_form(strandline: Command, made: Made, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert strandline("snapshots", "copy", made.canonical, copy).code == 0
    for one, other in ((made.checkpoints[1], made.canonical), (made.canonical, made.native), (made.canonical, copy)):
        found = strandline("snapshots", "diff", one, other, "--exit-code")
        assert (found.code, "no differences" in found.stdout) == (0, True), found.stdout
    for file in (copy / "data").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    (found,) = strandline("snapshots", "diff", made.canonical, copy, "--json").json
    assert (found["equal"], found["groups_read"]) == (True, 0), "what has the same name is not read"
    damaged = strandline("snapshots", "diff", copy, made.checkpoints[0])
    assert (damaged.code, damaged.stdout) == (1, "")
    assert damaged.stderr.startswith(f"error: {copy.as_uri()}/data/")


def test_diff_of_a_sample(strandline: Command, made: Made) -> None:
    (found,) = strandline("snapshots", "diff", *made.checkpoints, "--sample", "25%", "--json").json
    assert (found["groups_read"], found["groups"]) == (32, 128)
    changed = next(state["changed"] for state in found["states"] if state["state"] == "value")
    assert changed["estimate"] == 4 * changed["found"] != 0
    assert abs(changed["estimate"] - 30) <= changed["error"]
    assert "±" in strandline("snapshots", "diff", *made.checkpoints, "--sample", "25").stdout
    for wrong in ("0", "101%", "much"):
        refused = strandline("snapshots", "diff", *made.checkpoints, "--sample", wrong)
        assert (refused.code, "expected a percentage" in refused.stderr) == (1, True)


def test_what_takes_long_tells_how_far_it_is(
    strandline: Command, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ProgressMessage] = []

    @contextlib.contextmanager
    def hear() -> Iterator[Callable[[ProgressMessage], object]]:
        yield heard.append

    monkeypatch.setattr("strandline.cli.snapshots.progress_bar", hear)
    first, second = made.checkpoints

    def last(*args: object) -> ProgressMessage:
        heard.clear()
        assert strandline("snapshots", *args).code == 0
        return heard[-1]

    (done,) = strandline("snapshots", "copy", second, tmp_path / "copy", "--json").json
    assert last("copy", second, tmp_path / "again") == ProgressMessage("copying", done["bytes"], done["bytes"], "bytes")
    assert last("diff", first, second) == ProgressMessage("comparing", 128, 128, "key groups")
    assert last("verify", first, second).step == f"reading {second}"
