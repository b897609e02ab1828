from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.control.wire import ProgressMessage
from strandline.core.clock import SystemClock
from strandline.core.ids import CheckpointId
from strandline.core.texts import time_text
from strandline.snapshot.opening.origin import rollback
from tests.cli.conftest import Command
from tests.cli.fabricate import WATERMARKS, FabricatedJob
from tests.cli.snapshots import Made, make
from tests.cli.terminal import check_width
from tests.snapshot.helpers import tree, write_savepoint


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A job's real checkpoints."""
    return make(tmp_path_factory.mktemp("made"))


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# -- list


def test_list_finds_checkpoints_and_savepoints_alike(
    strandline: Command, alerts: FabricatedJob, tmp_path: Path
) -> None:
    write_savepoint(tmp_path / "sp/a")
    found = strandline("snapshots", "list", tmp_path, "--json")
    assert [(one["kind"], one["form"], one["job"], one["checkpoint"], one["state"]) for one in found.json] == [
        ("checkpoint", "incremental", "alerts", 3, "complete"), ("checkpoint", "incremental", "alerts", 2, "complete"),
        ("savepoint", "native", "other", 9, "complete"),
    ]  # fmt: skip
    newest = found.json[0]
    assert (newest["url"], newest["epoch"]) == ((alerts.directory / "alerts/chk-3").as_uri(), 30)
    assert newest["generation"] == 1
    assert 0 < newest["uploaded_bytes"] < newest["total_bytes"]
    rows = [line.split()[:4] for line in strandline("snapshots", "list", tmp_path).stdout.splitlines()]
    assert ["ck/alerts/chk-3", "complete", "incremental", "alerts"] in rows
    assert ["sp/a", "complete", "native", "other"] in rows
    (single,) = strandline("snapshots", "list", tmp_path / "sp/a", "--json").json
    assert single["url"] == (tmp_path / "sp/a").as_uri()


def test_list_of_one_job(strandline: Command, alerts: FabricatedJob) -> None:
    FabricatedJob(alerts.directory, "other").checkpoint()
    of_all = strandline("snapshots", "list", f"file://{alerts.directory}").stdout
    assert "other/chk-1" in of_all
    for args, names in (((alerts.directory, "--job", "alerts"), ["alerts/chk-3", "alerts/chk-2"]),
                        ((alerts.directory / "alerts",), ["chk-3", "chk-2"])):  # fmt: skip
        lines = strandline("snapshots", "list", *args).stdout.splitlines()
        assert [line.split()[0] for line in lines if "incremental" in line] == names


def test_list_shows_damaged_and_void_checkpoints_with_the_reason(strandline: Command, alerts: FabricatedJob) -> None:
    alerts.path_of(CheckpointId(3), 1).unlink()
    (alerts.directory / "alerts" / "chk-2" / "_metadata").write_bytes(b"SLMANIF1 and no more")
    states = {c["checkpoint"]: c for c in strandline("snapshots", "list", alerts.directory, "--json").json}
    assert [states[n]["state"] for n in (3, 2)] == ["damaged", "damaged"]
    assert "missing" in states[3]["reason"]
    assert "cut off" in states[2]["reason"]
    # A new driver finds nothing to go on from: what is there belongs to a history that it did not choose.
    FabricatedJob(alerts.directory, seed=1)
    states = {c["checkpoint"]: c for c in strandline("snapshots", "list", alerts.directory, "--json").json}
    assert states[3]["state"] == "void"
    assert "generation 1" in states[3]["reason"]


def test_a_job_of_which_no_manifest_can_be_read_is_listed(strandline: Command, alerts: FabricatedJob) -> None:
    for number in (2, 3):
        damage(alerts.directory / f"alerts/chk-{number}/_metadata")
    for args in ((alerts.directory,), (alerts.directory, "--job", "alerts")):
        found = strandline("snapshots", "list", *args, "--json").json
        assert [(one["job"], one["checkpoint"], one["state"]) for one in found] == [
            ("alerts", 3, "damaged"), ("alerts", 2, "damaged"),
        ]  # fmt: skip
    write_savepoint(alerts.directory / "sp")
    damage(alerts.directory / "sp/_metadata")
    assert "no job 'nope' there" in strandline("snapshots", "list", alerts.directory, "--job", "nope").stderr


def test_a_job_without_checkpoints(strandline: Command, tmp_path: Path) -> None:
    FabricatedJob(tmp_path / "ck", "new")
    for args in ((tmp_path / "ck",), (tmp_path / "ck/new",), (tmp_path / "ck", "--job", "new")):
        found = strandline("snapshots", "list", *args, "--json")
        assert (found.code, found.stdout, found.stderr) == (0, "", "no checkpoint is complete yet\n")
    for command in ("show", "verify"):
        found = strandline("snapshots", command, tmp_path / "ck")
        assert (found.code, "it has no checkpoint" in found.stderr) == (1, True)


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_into_the_terminal(alerts: FabricatedJob, tmp_path: Path, width: int) -> None:
    write_savepoint(tmp_path / "savepoints/monday-before-the-upgrade-of-everything")
    lines = check_width(width, "snapshots", "list", tmp_path)
    checkpoints = [line.split() for line in lines if "ck/alerts/chk-" in line]
    assert [line[:4] for line in checkpoints] == [
        [f"ck/alerts/chk-{number}", "complete", "incremental", "alerts"] for number in (3, 2)
    ]
    assert any("increment  duration" in line for line in lines) == (width == 160)
    assert any("monday-before-the-upgrade-of-everything" in line for line in lines) == (width == 160)
    # The path says which job it is; an epoch fits, where paths are short.
    (header,) = [line.split() for line in check_width(width, "snapshots", "list", alerts.directory) if "taken" in line]
    assert header[:5] == ["snapshot", "state", "form", "taken", "epoch"]
    check_width(width, "snapshots", "show", alerts.directory)


# -- which place, which job


@pytest.mark.parametrize("command", ["list", "show", "verify", "delete", "diff {} ", "copy {} "])
def test_a_directory_that_is_not_there_is_not_made(strandline: Command, tmp_path: Path, command: str) -> None:
    found = strandline("snapshots", *command.format(tmp_path / "typo").split(), tmp_path / "typo")
    assert (found.code, found.stdout) == (1, "")
    expected = f"error: {tmp_path / 'typo'}: expected a directory, and it is not there\n  next step: "
    assert found.stderr.startswith(expected)
    assert not (tmp_path / "typo").exists()


def test_an_unknown_job_is_answered_with_those_there_are(strandline: Command, alerts: FabricatedJob) -> None:
    for command in ("list", "gc"):
        found = strandline("snapshots", command, alerts.directory, "--job", "alert")
        assert found.code == 1
        assert "no job 'alert' there\n  next step: the jobs there are: alerts" in found.stderr
        own = strandline("snapshots", command, alerts.directory / "alerts", "--job", "alert")
        assert own.code == 1
        assert "--job alerts" in own.stderr


def test_a_folder_of_other_things_holds_no_snapshot(strandline: Command, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "chk-1.jpg").write_bytes(b"")
    for command in ("list", "show", "verify"):
        found = strandline("snapshots", command, tmp_path)
        assert (found.code, found.stdout) == (1, "")
        assert "no snapshot there" in found.stderr
        assert "there is below it: photos" in found.stderr


def test_one_snapshot_of_several_jobs_needs_a_name(strandline: Command, alerts: FabricatedJob) -> None:
    (before,) = strandline("snapshots", "show", alerts.directory, "--json").json
    assert (before["job"], before["checkpoint"]) == ("alerts", 3)
    FabricatedJob(alerts.directory, "other").checkpoint()
    found = strandline("snapshots", "show", alerts.directory)
    assert found.code == 1
    assert f"alerts, other: give the path of one, as {alerts.directory.as_uri()}/alerts" in found.stderr


def test_a_savepoint_is_meant_before_a_job_below_it(strandline: Command, alerts: FabricatedJob, tmp_path: Path) -> None:
    write_savepoint(tmp_path)
    (shown,) = strandline("snapshots", "show", tmp_path, "--json").json
    assert (shown["job"], shown["url"]) == ("other", tmp_path.as_uri())


def test_a_wrong_storage_option_is_not_repeated(strandline: Command, alerts: FabricatedJob) -> None:
    for option in ("hunter2", "=hunter2", "my key=hunter2"):
        found = strandline("snapshots", "list", alerts.directory, "--option", "a=b", "--option", option)
        assert found.code == 1
        assert "number 2" in found.stderr
        assert "hunter2" not in found.stderr + found.stdout


def test_storage_options_of_a_store_that_refuses_them_are_not_repeated(process: Command) -> None:
    found = process(
        "snapshots", "list", "s3://bucket/ck", "--option", "secret_access_key=hunter2", "--option", "nonsense=hunter3"
    )
    assert found.code == 1
    assert found.stderr.startswith("error: ")
    assert "hunter" not in found.stderr + found.stdout
    assert "Traceback" not in found.stderr


def test_storage_options_come_from_the_environment_too(process: Command) -> None:
    found = process("snapshots", "list", "s3://bucket/ck", STRANDLINE_STORAGE_OPTIONS="region=x nonsense=hunter2")
    assert found.code == 1
    assert "nonsense" in found.stderr
    assert "hunter2" not in found.stderr
    help_ = process("snapshots", "list", "--help", STRANDLINE_STORAGE_OPTIONS="region=hunter2")
    assert help_.code == 0
    assert "hunter2" not in help_.stdout


# -- show


def test_show_as_data(strandline: Command, alerts: FabricatedJob) -> None:
    (shown,) = strandline("snapshots", "show", alerts.directory / "alerts/chk-3", "--json").json
    assert (shown["kind"], shown["job"], shown["checkpoint"], shown["epoch"]) == ("checkpoint", "alerts", 3, 30)
    assert "savepoint" not in shown
    (operator,) = shown["operators"]
    assert [(s["name"], s["kind"], s["key_type"], s["value_type"]) for s in operator["states"]] == [
        ("seen", "value", "", "bigint"), ("by_kind", "map", "string", "array<double>"),
    ]  # fmt: skip
    assert operator["states"][0]["ttl"] == {"duration_ms": 90_000, "refresh": "read", "time": "event"}
    assert "ttl" not in operator["states"][1]
    assert [(p["first_key_group"], p["last_key_group"]) for p in operator["partitions"]] == [(0, 63), (64, 127)]
    for partition in operator["partitions"]:
        assert {f["name"] for f in partition["files"]} >= {"CURRENT", f"{partition['partition']}-3.sst"}
        assert partition["total_bytes"] == sum(f["size_bytes"] for f in partition["files"]) == 3 * 5000 + 16
        assert partition["uploaded_bytes"] == 5016
        assert (partition["sync_ms"], partition["async_ms"]) == (1.5, 40.0)
    assert shown["source"]["total_bytes"] > 190_000
    assert shown["source"]["names"] == ["clicks", "orders"]
    assert shown["watermarks"] == WATERMARKS
    assert shown["sinks"] == [{"name": "out", "pending": 2, "committables": ["epoch-1", "epoch-2"]}]


@pytest.mark.parametrize("place", ["alerts/chk-3", "alerts", ""])
def test_show_as_tables(strandline: Command, alerts: FabricatedJob, place: str) -> None:
    found = strandline("snapshots", "show", alerts.directory / place)
    assert found.code == 0
    lines = [" ".join(line.split()) for line in found.stdout.splitlines()]
    assert f"snapshot {(alerts.directory / 'alerts/chk-3').as_uri()}" in lines
    assert "operator detect: backend rocksdb, key user string, parallelism 2 (at most 128)" in lines
    assert "by_kind map string → array<double>" in lines
    assert "seen value bigint, expires 90.0 s after each read" in lines
    assert "1 64-127 4 14.7 KB 4.9 KB 1.5 ms 40 ms" in lines
    assert "out 2" in lines
    for what, at_s in (("", 0), ("newest event of source 0", 10), ("newest event of source 1, eu", 20)):
        assert f"{what or 'watermark'} {time_text((1_700_000_000 + at_s) * 1000)}" in lines
    assert any(
        line.startswith("source progress 19") and line.endswith("KB of clicks, orders, after batch 30")
        for line in lines
    )


def test_show_of_a_savepoint(strandline: Command, made: Made) -> None:
    (shown,) = strandline("snapshots", "show", made.canonical, "--json").json
    (operator,) = shown["operators"]
    assert (shown["savepoint"], operator["partitions"]) == ("canonical", [])
    (table,) = operator["tables"]["value"]
    assert (table["rows"], table["file"]["path"][:5]) == (made.keys_with("value"), "data/")
    text = strandline("snapshots", "show", made.canonical).stdout
    assert made.canonical.as_uri() in text
    rows = [line.split()[:4] for line in text.splitlines()]
    assert ["value", f"{table['first_key_group']}-{table['last_key_group']}", "1", str(table["rows"])] in rows


def test_show_a_checkpoint_that_is_not_there_or_damaged(strandline: Command, alerts: FabricatedJob) -> None:
    job = alerts.directory / "alerts"
    found = strandline("snapshots", "show", job / "chk-7", "--json")
    assert (found.code, found.stdout) == (1, "")
    assert "chk-7: expected a directory, and it is not there\n  next step: in " in found.stderr
    assert "chk-2, chk-3" in found.stderr
    damage(job / "chk-3" / "_metadata")
    found = strandline("snapshots", "show", job / "chk-3")
    assert found.code == 1
    assert "chk-3/_metadata: its checksum does not match" in found.stderr
    (shown,) = strandline("snapshots", "show", job, "--json").json
    assert shown["checkpoint"] == 2


# -- verify


def test_verify_reads_every_byte_of_several(strandline: Command, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_savepoint(tmp_path / name)
    found = strandline("snapshots", "verify", tmp_path / "a", tmp_path / "b", "--json")
    assert [(one["url"], one["ok"], one["files"], one["bytes"]) for one in found.json] == [
        ((tmp_path / name).as_uri(), True, 2, 600) for name in ("a", "b")
    ]
    assert "intact" in strandline("snapshots", "verify", tmp_path / "a").stdout
    damaged = next((tmp_path / "b/data").iterdir())
    damage(damaged)
    found = strandline("snapshots", "verify", tmp_path / "a", tmp_path / "b", "--json")
    assert (found.code, [one["ok"] for one in found.json]) == (1, [True, False])
    assert found.json[1]["problems"][0]["path"] == f"data/{damaged.name}"
    assert "next step" in found.stderr


def test_verify_names_what_is_damaged_and_what_is_missing(strandline: Command, alerts: FabricatedJob) -> None:
    bad, lost = alerts.path_of(CheckpointId(3), 0), alerts.path_of(CheckpointId(3), 1)
    damage(bad)
    lost.unlink()
    found = strandline("snapshots", "verify", alerts.directory / "alerts/chk-3", "--json")
    assert found.code == 1
    (report,) = found.json
    assert report["ok"] is False
    problems = {Path(p["path"]).name: p["problem"] for p in report["problems"]}
    assert problems.keys() == {bad.name, lost.name}
    assert "damaged" in problems[bad.name]
    assert "missing" in problems[lost.name]
    shown = strandline("snapshots", "verify", alerts.directory)
    assert shown.code == 1
    assert bad.name in shown.stdout
    assert lost.name in shown.stdout


def test_verify_does_not_pass_over_a_damaged_newest_manifest(strandline: Command, alerts: FabricatedJob) -> None:
    damage(alerts.directory / "alerts" / "chk-3" / "_metadata")
    for place in (alerts.directory, alerts.directory / "alerts"):
        found = strandline("snapshots", "verify", place, "--json")
        assert found.code == 1
        assert [(r["checkpoint"], r["problems"][0]["path"]) for r in found.json] == [(3, "_metadata")]


def test_verify_of_a_directory_reads_what_is_current_or_all(
    strandline: Command, alerts: FabricatedJob, tmp_path: Path
) -> None:
    FabricatedJob(alerts.directory, "other").checkpoint()
    for seed, name in enumerate("ab"):
        write_savepoint(tmp_path / "sp" / name, seed=seed)
    damage(alerts.path_of(CheckpointId(3), 0))

    def verified(*args: object) -> list[tuple[str, bool]]:
        found = strandline("snapshots", "verify", *args, "--json")
        assert found.code == 1
        return sorted((one["url"].removeprefix(f"{tmp_path.as_uri()}/"), one["ok"]) for one in found.json)

    current = [("ck/alerts/chk-3", False), ("ck/other/chk-1", True)]
    assert verified(alerts.directory) == current
    assert verified(tmp_path) == [*current, ("sp/a", True), ("sp/b", True)]
    assert verified(alerts.directory, "--all") == [("ck/alerts/chk-2", True), *current]
    # Those that are void are not read, unless one is named.
    rollback(alerts.jobdir, CheckpointId(2), SystemClock())
    done = strandline("snapshots", "verify", alerts.directory / "alerts", "--all", "--json")
    assert [(one["checkpoint"], one["ok"]) for one in done.json] == [(2, True)]
    void = strandline("snapshots", "verify", alerts.directory / "alerts/chk-3", "--json")
    assert "void: published by generation 1" in void.json[0]["problems"][-1]["problem"]


# -- gc, delete


def test_gc_plans_then_deletes_only_garbage(strandline: Command, alerts: FabricatedJob) -> None:
    lost = alerts.leave_garbage()
    args = ("snapshots", "gc", alerts.directory, "--job", "alerts")

    young = strandline(*args, "--json").json[0]
    assert (young["garbage"], young["too_young"], young["deleted"]) == ([], 1, 0)

    planned = strandline(*args, "--grace", "0s", "--dry-run")
    assert "0 objects" in planned.stdout, "it may be of a checkpoint in progress"
    alerts.checkpoint()
    planned = strandline(*args, "--grace", "0s", "--dry-run")
    assert lost.name in planned.stdout
    assert "nothing was deleted" in planned.stdout
    assert lost.exists()

    (done,) = strandline(*args, "--grace", "0s", "--json").json
    assert [Path(item["path"]).name for item in done["garbage"]] == [lost.name]
    assert (done["deleted"], done["total_bytes"], done["live"], done["dry_run"]) == (1, 5000, [3, 4], False)
    assert not lost.exists()
    assert strandline("snapshots", "verify", alerts.directory, "--all").code == 0


def test_gc_refuses_when_a_needed_file_is_missing(strandline: Command, alerts: FabricatedJob) -> None:
    lost = alerts.leave_garbage()
    alerts.path_of(CheckpointId(3), 0).unlink()
    found = strandline("snapshots", "gc", alerts.directory, "--job", "alerts", "--grace", "0s")
    assert (found.code, found.stdout) == (1, "")
    assert "nothing is deleted" in found.stderr
    assert lost.exists()


def test_gc_needs_a_job_and_a_sensible_grace(strandline: Command, alerts: FabricatedJob) -> None:
    assert strandline("snapshots", "gc", alerts.directory).code == 2
    found = strandline("snapshots", "gc", alerts.directory, "--job", "alerts", "--grace", "soon")
    assert found.code == 1
    assert "--grace is 'soon'" in found.stderr


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
        name: tuple(state[what] for what in ("added", "changed", "removed"))
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
    assert 0 < changed < 30
    assert "read: 32 of 128 key groups" in strandline("snapshots", "diff", *made.checkpoints, "--sample", "25").stdout
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
    last("verify", first, second)
    assert [one.step for one in heard] == sorted(one.step for one in heard)
    assert heard[-1].step == f"reading job/{second.name}"
